/* Checkpoints: one HDF5 file per save, one data set per logical tensor under its Hugging Face name, no trace of any layout. README, "Checkpoints".
 *   /                                                     attribute: etalon = "checkpoint"
 *   /weights/NAME, /moments/m/NAME, /moments/v/NAME      attributes: hash (u64, layer-free tensor hash), dtype
 *   /masters/NAME                                         hard link to the weight where compute is FP32 or FP64
 *   /meta  attributes: format_version, n_tensors (links under all groups), step, consumed_samples, seed, config (YAML), world, code_version, isa,
 *                      gemm, mpi, hdf5, numerics
 * NAME holds dots, never slashes. A tensor's hash is the sum modulo 2^64 of hash_element(hash_name(NAME), row * cols + col, bits), bits being the
 * element's, zero-extended. Written beside (name.part), synced, renamed, then `latest` (a text file with the name) is moved: whenever a save stops
 * half-way, the previous checkpoint is still the one that counts. The only folder that includes hdf5.h. Called by the training loop and the verbs. */
#ifndef ETALON_CKPT_H
#define ETALON_CKPT_H
#include <stdio.h>
#include "base/dtype.h"
#include "comm/comm.h"

/* A rectangle of a logical tensor that lies dense in this rank's memory. 1-D tensors: rows 1. All pieces of all ranks cover each tensor exactly once
 * when saving (CHECK: the counts add up); overlap is legal when loading, holes are not.                                   */
typedef struct CkptPiece { int tensor; int64_t row, n_row, col, n_col; void *data; } CkptPiece;
typedef struct CkptTensor { const char *name; DType dtype; int n_dim /* 1 or 2 */; int64_t rows, cols; uint64_t hash; } CkptTensor;   /* identical list on all ranks */
typedef struct CkptSet {
  const char *group;             /* "weights", "moments/m", ... */
  CkptTensor *tensor; int n_tensor;
  const CkptPiece *piece; int n_piece;
  const char *same_as;           /* NULL, or: when saving, names become hard links to those of this group, saved earlier in the list; no pieces */
} CkptSet;
typedef struct CkptMeta {
  int64_t step, consumed_samples; uint64_t seed; int world;
  const char *config;            /* resolved YAML */
  const char *numerics;          /* one line: what bits depend on: mode, dtype, window, shards, isa, gemm */
  const char *code_version, *isa, *gemm;
} CkptMeta;

/* Checkpoints of a directory that are not of the history of the state that is saved: they stay; those of steps that a save passes are deleted, so that what is there
 * up to `latest` is one history; all are deleted. Deleting comes last, when the new checkpoint counts. */
typedef enum { CKPT_OTHERS_STAY, CKPT_OTHERS_PASSED, CKPT_OTHERS_GO } CkptOthers;
/* keep_last > 0: of the checkpoints up to this step the latest keep_last stay; 0: all. compress: 0 none, else zlib's level 1 to 9: data sets are then
 * chunked, and rank 0 writes them, some rows at a time. own: checkpoints up to this step, and the one that is saved, are no others; -1: none is. */
typedef struct CkptPolicy { int keep_last, compress; CkptOthers others; int64_t own; } CkptPolicy;
/* The name of a checkpoint: dir/step_00000100.h5. */
char *ckpt_path(Arena *a, const char *dir, int64_t step);
/* Collective. What a run finds in the directory that it is going to save to. from: what it resumes from, or NULL. */
typedef struct CkptDir { int64_t n, last /* step; -1: none */; bool own /* `from` is there */; } CkptDir;
CkptDir ckpt_look(World *w, Arena *a, const char *dir, const char *from);
/* Collective. Makes the directory if need be and leaves it as it was. ERR_CKPT: rank 0 cannot write there, or another rank sees another directory. */
bool ckpt_try_directory(World *w, Arena *a, const char *dir, Err *e);
/* Collective. dir/step_00000100.h5; dir is created. ERR_CKPT: what failed and where (space is checked before writing and then reserved); a file of the
 * same name stays as it was. What other saves left behind half-way is deleted. scratch: some 300 bytes per tensor and a few KiB; compressed: 64 MiB on
 * rank 0 more. The tensors' hashes are computed here; those of the sets are not looked at. */
bool ckpt_save(World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, const CkptPolicy *p, Err *e);

/* A save in the background: the state is copied, then a thread of each rank hashes and writes the copy while training goes on. The thread sends no
 * messages; ranks agree when ckpt_task_poll is called. The file has the same bytes as ckpt_save's. Between begin and the end of the task no other
 * function of this header may be called. Not for compressed checkpoints (CHECK). */
typedef struct CkptTask CkptTask;
/* Memory for the copies of one rank, used again by each save. data: bytes of all pieces; n_piece, n_tensor: at most, over all sets. */
typedef struct CkptRoom { Arena arena; size_t data; } CkptRoom;
size_t ckpt_room_bytes(size_t data, int64_t n_piece, int64_t n_tensor);
void ckpt_room_open(CkptRoom *r, size_t data, int64_t n_piece, int64_t n_tensor);
void ckpt_room_close(CkptRoom *r);
/* Collective. What the room held is gone. CHECK: the pieces are not more than the room was opened for. */
CkptTask *ckpt_task_begin(World *w, CkptRoom *room, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, const CkptPolicy *p);
/* Collective. Goes on with the save where every rank's thread is done with its part; wait: until the save is over. Returns whether it is over: e then
 * says how it ended, as after ckpt_save, and the task must not be used again. */
bool ckpt_task_poll(CkptTask *t, bool wait, Err *e);

/* Collective. Loads the checkpoint `path`, or the newest good one of the directory `path`: what its `latest` names, else the one with the next lower step
 * that is whole (no `latest`: the highest step). file: the one. note: NULL, or what was passed over and why, one line. ERR_CKPT as ckpt_load; in a directory, for files
 * that are damaged only when all are: a whole file that does not fit the model is not passed over. Strings live in `a`. */
bool ckpt_load_newest(World *w, Arena *a, const char *path, CkptMeta *m, CkptSet *set, int n_set, char **file, char **note, Err *e);
/* The same for whoever has to look into the file before it can tell what to load: `read`, collective, is called for one candidate after the other until it is
 * content. file: the one. */
typedef bool CkptReader(void *ctx, World *w, Arena *a, const char *file, const CkptMeta *m, Err *e);
bool ckpt_read_newest(World *w, Arena *a, const char *path, CkptMeta *m, CkptReader *read, void *ctx, char **file, char **note, Err *e);
/* Reads everything about the file but its data once in a child process (probe.h): HDF5 does not survive every damage. ERR_CKPT: it did not. One process. */
bool ckpt_trial(const char *file, Err *e);
/* path: a file, or a directory (its `latest`). Strings live in `a`. Refuses foreign and newer files. Not collective: every rank may call it. */
bool ckpt_read_meta(Arena *a, const char *path, CkptMeta *m, char **file, Err *e);
/* Collective. Fills the pieces. Every tensor of the sets is read once more, in shares dealt evenly to the ranks, and its hash compared with the stored
 * one. ERR_CKPT names the tensor that is missing, unknown, of another shape or type, or damaged. Groups that no set names are not looked at.
 * tensor[].hash returns the stored hashes. scratch: 8 MiB and some 100 bytes per tensor and piece. */
bool ckpt_load(World *w, Arena *scratch, const char *file, CkptSet *set, int n_set, Err *e);
/* `etalon ckpt list|show|verify`: one process, no MPI. list: a line per checkpoint of a directory, unfinished and broken ones marked. show: meta and
 * the table of tensors. verify: recomputes every hash, prints each damaged tensor. path: as in ckpt_read_meta. */
bool ckpt_list(Arena *a, const char *dir, FILE *out, Err *e);
bool ckpt_show(Arena *a, const char *path, FILE *out, Err *e);
bool ckpt_verify(Arena *a, const char *path, FILE *out, Err *e);
#endif
