/* Values of one forward pass, whole, on every rank: what golden files hold of them. Private to golden_verb. */
#ifndef ETALON_COLLECT_H
#define ETALON_COLLECT_H
#include "train/check_tap.h"
#include "train/tap_map.h"

typedef struct Collected {
  const char *value;         /* name in the program */
  const CheckTap *row; int layer;      /* -1: of no layer */
  bool integer;
  int64_t width; uint64_t *bits;       /* [tokens of the batch, width] FP64 or int64 bit patterns */
} Collected;
typedef struct Collect { TapMap map; Collected *item; int n; int *of[STEP_MAX_CHUNK]; int64_t n_written, n_token; } Collect;

/* Collective: every value of check_tap that the model has. */
void collect_open(Collect *c, const Job *j, World *w, Arena *a);
/* An ExecTap; ctx: the Collect. */
void collect_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row);
/* Collective. CHECK: every element was written once. */
void collect_gather(Collect *c, World *w);
#endif
