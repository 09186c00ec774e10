/* Parameters and optimizer state as logical tensors: initial values, hashes, comparison of replicas, checkpoint pieces. Walks segments (program/params.h) and knows
 * nothing of layouts. Called by train, check.                                                                                          */
#ifndef ETALON_STATE_H
#define ETALON_STATE_H
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "train/job.h"

/* Weights (masters, and the weights rounded from them): N(0, initializer_range^2) keyed by (seed, tensor name, element), gains 1; moments 0. Whole local weights, no communication. */
void state_init(Exec *x, const Job *j);

/* A dense rectangle [n_row, n_col] of logical tensor `tensor`, part of its segment; data: numbers of `type` (row-major, n_col wide).
 * `flat`, `group`: where it lies. */
typedef struct StatePiece { int tensor; int64_t row, n_row, col, n_col; ParamGroupId group; int64_t flat; DType type; void *data; } StatePiece;
typedef enum { PIECES_OWNED, PIECES_LOCAL } PieceSet;     /* OWNED: every element of the model once over all ranks; LOCAL: all that is here, copies included (moments: where they are not sharded) */
/* Lists the pieces of a view in `a`; data points into state, or for TENSOR_GRAD into a converted copy in `a`. Returns their number. */
int  state_pieces(Exec *x, const Job *j, Arena *a, TensorView v, PieceSet set, StatePiece **out);

bool state_has_masters(const Job *j);          /* weights are rounded masters; else the two are one */
/* hash[tensor]: layout-free hash of a view of every tensor of the model (README, "Numerics"). Collective. */
void state_hash(Exec *x, const Job *j, World *w, TensorView v, uint64_t *hash /* [n_tensor] */);
uint64_t state_hash_all(const Job *j, const uint64_t *hash);      /* one number for a view */
/* ERR_MISMATCH, naming the first tensor, when ranks that hold the same weights hold other bits. Collective; every rank gets the error. */
bool state_check_replicas(Exec *x, const Job *j, World *w, Err *e);

/* What a checkpoint of the state now holds, as lists in `a` that point into the state: for ckpt_save or ckpt_task_begin. */
enum { N_SAVED = 4 };
typedef struct StateSave { CkptSet set[N_SAVED]; CkptMeta meta; } StateSave;
/* Bytes that one element of group g takes in it, over the sets that have data of their own; *n_set: how many those are. */
size_t state_saved_bytes(const Job *j, ParamGroupId g, int *n_set);
void state_open_save(Exec *x, const Job *j, Arena *a, int64_t step, int64_t consumed, StateSave *s);
/* Where a run goes on from. changes: what its configuration has otherwise than that of the run that saved (config_changes). Long texts are cut. */
typedef struct StateFrom { int64_t step, consumed; char file[1024], changes[2048]; } StateFrom;
/* path: a checkpoint or a directory (ckpt_load_newest). Logs the file, what was passed over and what is not as it was. Collective. */
bool state_load(Exec *x, const Job *j, World *w, const char *path, StateFrom *from, Log *log, Err *e);
char *state_numerics(const Job *j, Arena *a);                      /* what bits depend on, one line */
#endif
