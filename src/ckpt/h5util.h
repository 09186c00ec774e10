/* Private to ckpt: HDF5 with our errors. Functions return false and set ERR_CKPT with HDF5's own innermost reason. */
#ifndef ETALON_H5UTIL_H
#define ETALON_H5UTIL_H
#include <hdf5.h>
#include "ckpt/ckpt.h"

enum { CKPT_FORMAT_VERSION = 1, CKPT_CHUNK_BYTES = 8 << 20 };
#define CKPT_MAGIC "checkpoint"

void h5_silence(void);                                              /* no error stacks on stderr: reasons go into our messages */
/* "path: what: reason of the last failed HDF5 call" */
bool h5_fail(Err *e, const char *path, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
hid_t h5_open_read(const char *path, Err *e);                       /* < 0: failed. Posix I/O, no locks */

hid_t h5_open_write(const char *path, Err *e);                      /* < 0: failed */
bool h5_put_text(hid_t at, const char *name, const char *text);     /* attributes */
bool h5_put_i64(hid_t at, const char *name, int64_t value);
bool h5_put_u64(hid_t at, const char *name, uint64_t value);
char *h5_get_text(hid_t at, const char *name, Arena *a);            /* NULL: failed */
bool h5_get_i64(hid_t at, const char *name, int64_t *value);
bool h5_get_u64(hid_t at, const char *name, uint64_t *value);

/* meta.c */
bool meta_write(hid_t file, const CkptMeta *m, const char *mpi, int64_t n_tensor);
bool meta_read(hid_t file, const char *path, Arena *a, CkptMeta *m, int64_t *n_tensor, Err *e);
/* Where a path leads: itself, or its `latest`. NULL: failed. */
char *ckpt_resolve(Arena *a, const char *path, Err *e);
/* The file that dir's `latest` names, there or not. NULL: failed. */
char *ckpt_latest(Arena *a, const char *dir, int64_t *step, Err *e);
bool ckpt_parse_name(const char *name, int64_t *step);              /* "step_00000100.h5" */

/* tensor.c: one data set. */
/* Opens or creates one group, without a time stamp: equal content gives equal bytes. */
hid_t group_create(hid_t at, const char *name);
/* Creates the data sets and links of all sets. offset: where the data of each tensor of all sets begins in the file, bytes (links and compressed data
 * sets: untouched). compress: 0, or zlib's level. */
bool tensor_create_all(hid_t file, const CkptSet *set, int n_set, int compress, const char *path, uint64_t *offset, Err *e);
/* Opens group/name and compares dtype and shape with t. < 0: failed. */
hid_t tensor_open(hid_t file, const char *path, const char *group, const CkptTensor *t, Err *e);
/* What the file says about an open data set. */
bool tensor_describe(hid_t d, CkptTensor *t);
size_t tensor_row_bytes(const CkptTensor *t);
hid_t tensor_type(DType t);                                         /* little-endian, both in files and in memory */
/* One rectangle into p->data; p->tensor is not looked at. */
bool tensor_read(hid_t d, const CkptTensor *t, const CkptPiece *p);
/* The hash terms of a piece's elements, added. */
uint64_t piece_hash(const CkptTensor *t, const CkptPiece *p);
/* The same from p->data to the file. */
bool tensor_write(hid_t d, const CkptTensor *t, const CkptPiece *p);
int64_t tensor_chunk_rows(const CkptTensor *t);                     /* rows of a chunk of a compressed data set */
/* Adds the hash terms of rows [from, to) to *sum; reads through buf, of at least one element. */
bool tensor_hash_rows(hid_t d, const CkptTensor *t, int64_t from, int64_t to, void *buf, size_t buf_bytes, uint64_t *sum);

/* Pieces of one set by tensor: those of tensor t are order[start[t]] .. order[start[t + 1] - 1]. */
typedef struct PieceIndex { int *start, *order; } PieceIndex;
PieceIndex piece_index(Arena *a, const CkptSet *s);                 /* CHECK: pieces lie within their tensors */
/* Sum over the ranks of the elements of each tensor's pieces; out: one number per tensor of all sets. */
void piece_count_elements(World *w, const CkptSet *set, int n_set, uint64_t *out);
int  set_count_tensors(const CkptSet *set, int n_set);
#endif
