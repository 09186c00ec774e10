/* Checkpoints: one HDF5 file per save, one data set per logical tensor under its Hugging Face name, no trace of any layout. README, "Checkpoints".
 *   /weights/NAME, /moments/m/NAME, /moments/v/NAME      attributes: hash (u64, layer-free tensor hash), dtype
 *   /masters/NAME                                         hard link to the weight where compute is FP32 or FP64
 *   /meta  attributes: format_version, step, consumed_samples, seed, config (YAML), world, code_version, isa, gemm, mpi, hdf5, numerics...
 * Written beside (name.part), synced, renamed, then `latest` (a text file with the name) is moved. The only folder that includes hdf5.h. */
#ifndef ETALON_CKPT_H
#define ETALON_CKPT_H
#include <stdio.h>
#include "base/dtype.h"
#include "comm/comm.h"

/* A rectangle of a logical tensor that lies dense in this rank's memory. 1-D tensors: rows 1. All pieces of all ranks cover each tensor exactly once
 * when saving; overlap is legal when loading.                                                                             */
typedef struct CkptPiece { int tensor; int64_t row, n_row, col, n_col; void *data; } CkptPiece;
typedef struct CkptTensor { const char *name; DType dtype; int n_dim /* 1 or 2 */; int64_t rows, cols; uint64_t hash; } CkptTensor;   /* identical list on all ranks */
typedef struct CkptSet { const char *group /* "weights", "moments/m", ... */; const CkptTensor *tensor; int n_tensor; const CkptPiece *piece; int n_piece; } CkptSet;
typedef struct CkptMeta {
  int64_t step, consumed_samples; uint64_t seed; int world;
  const char *config;            /* resolved YAML */
  const char *numerics;          /* one line: what bits depend on: mode, dtype, window, shards, isa, gemm */
  const char *code_version, *isa, *gemm;
} CkptMeta;

/* Collective. dir/step_00000100.h5. ERR_CKPT: what failed and where (space is checked before writing). keep_last 0: keep all. */
bool ckpt_save(World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, int keep_last, Err *e);
/* path: a file, or a directory (its `latest`). Strings live in `a`. Refuses foreign and newer files. Not collective: every rank may call it. */
bool ckpt_read_meta(Arena *a, const char *path, CkptMeta *m, char **file, Err *e);
/* Collective. Fills the pieces; tensor hashes as stored are returned in tensor[].hash for the caller to compare with what arrived (ERR_CKPT names shape or name mismatches). */
bool ckpt_load(World *w, Arena *scratch, const char *file, CkptSet *set, int n_set, Err *e);
/* `etalon ckpt list|show|verify`: one process, no MPI. */
bool ckpt_list(Arena *a, const char *dir, FILE *out, Err *e);
bool ckpt_show(Arena *a, const char *path, FILE *out, Err *e);
bool ckpt_verify(Arena *a, const char *path, FILE *out, Err *e);   /* recomputes every hash */
#endif
