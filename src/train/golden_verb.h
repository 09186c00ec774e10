/* `etalon golden`: reference numbers of the user's model and data, in the format that `etalon check` and any other trainer's tests can read
 * (tests/oracle/README.md): tokens, weights, activations, router choices, gradients, and weights after updates. */
#ifndef ETALON_GOLDEN_VERB_H
#define ETALON_GOLDEN_VERB_H
#include "config/config.h"
#include "comm/comm.h"

/* What a golden file is computed with unless the command line says otherwise, as "key=value": FP64, a constant learning rate, the
 * auxiliary loss over the whole batch. Returns [*n], in `a`. */
const char *const *golden_verb_sets(Arena *a, int n_step, int *n);
/* Collective. c: resolved, read with those settings. resume: NULL (initial weights of the seed), or a checkpoint, whose next batches are the
 * data. Weights are rounded to FP32 before the first step, so that trainers of either type start from the same numbers; moments are zero.
 * changes: what of that is otherwise than the user's file says, for a note ("": nothing). Rank 0 writes `path`. The same bits on every layout where numerics
 * are canonical.
 * ERR_CONFIG: settings that the format cannot say; ERR_DATA; ERR_CKPT; ERR_NONFINITE. */
bool golden_verb(World *w, Arena *a, const Config *c, const char *path, const char *resume, const char *changes, FILE *out, Err *e);
#endif
