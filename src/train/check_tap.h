/* Values of the forward pass that a golden file holds too, compared as the step computes them. Private to check. */
#ifndef ETALON_CHECK_TAP_H
#define ETALON_CHECK_TAP_H
#include "ckpt/golden.h"
#include "train/check_compare.h"
#include "train/job.h"

enum { CHECK_TAPS = 7 };                       /* rows of the table in check_tap.c */
/* value: name in the program, inside a layer where `layered`. stored: name in the file, inside step1/ or step1/layers/I/. */
typedef struct CheckTap { const char *value, *stored, *title; bool layered; Judge judge; } CheckTap;
extern const CheckTap check_tap[CHECK_TAPS];   /* golden files are written by the same list */
typedef struct TapPlace { CheckQuantity *quantity; int item; const double *golden; } TapPlace;
typedef struct CheckTaps {
  const DealMb *mb;
  int n; CheckQuantity quantity[CHECK_TAPS];   /* those that the model has */
  TapPlace *place[STEP_MAX_CHUNK];                             /* [n_val] quantity NULL: not compared */
} CheckTaps;

/* Reads what there is to compare with. ERR_CKPT. The CheckTaps must stay where it is. */
bool taps_open(CheckTaps *t, const Job *j, Arena *a, Golden *g, const CheckLimits *limit, Err *e);
/* An ExecTap; ctx: the CheckTaps. */
void taps_compare(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row);
#endif
