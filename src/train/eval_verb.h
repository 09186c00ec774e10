/* `etalon eval`: the validation loss of a checkpoint, over all tokens of data.valid. */
#ifndef ETALON_EVAL_VERB_H
#define ETALON_EVAL_VERB_H
#include "config/config.h"
#include "comm/comm.h"
/* Collective. Rank 0 prints one line to `out`. Canonical numerics: the same digits on every layout, and those of a training run at that
 * step. ERR_CONFIG: no data.valid; ERR_DATA; ERR_CKPT; ERR_NONFINITE. */
bool eval_verb(World *w, Arena *a, const Config *c, const char *resume, FILE *out, Err *e);
#endif
