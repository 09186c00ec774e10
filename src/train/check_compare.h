/* Quantities of a check: named tensors of which every rank has seen some elements, their errors, and the table of them. Private to
 * check. */
#ifndef ETALON_CHECK_COMPARE_H
#define ETALON_CHECK_COMPARE_H
#include "base/log.h"
#include "comm/comm.h"

typedef enum {
  JUDGE_EACH,       /* relative L2 error of each tensor */
  JUDGE_TOGETHER,   /* of all of them as one vector */
  JUDGE_EQUAL,      /* integers: the error is the number that differ, and must be 0, or is only told (tolerance INFINITY) */
  N_JUDGE
} Judge;
typedef struct CheckItem { const char *name; int64_t size /* elements */, seen; double diff, ref /* sums of squares */; } CheckItem;
typedef struct CheckQuantity {
  const char *name; Judge judge; double tolerance;
  double floor;                     /* an item is compared as if its root mean square were at least this share of that of all items: a gradient that is zero
                                     * by its formula (of a router that always chooses all) is rounding in the file */
  bool lists;                       /* the table shows a line per tensor too */
  bool shared;                      /* every rank has seen everything: nothing to add up */
  int n; CheckItem *item;
} CheckQuantity;

/* Largest errors that pass: losses (and the first gradient norm), values of the forward pass, gradients, weights, gradient norms after
 * updates, router choices that differ. */
typedef struct CheckLimits {
  double loss, value, gradient, weight, later_norm, choice;
  bool gradients_together, weights_together;
} CheckLimits;

CheckQuantity quantity_new(Arena *a, const char *name, int n, Judge judge, double tolerance);
/* One element of item i: what is here and what the file says. */
void quantity_add(CheckQuantity *q, int i, double here, double golden);
/* Collective. Adds the ranks' sums in rank order, so the result is the same on every rank and every time. CHECK: each element was seen
 * exactly once. */
void quantity_combine(CheckQuantity *q, World *w, Arena *a);
double quantity_error(const CheckQuantity *q, int i);       /* INFINITY where the file has zero and we do not, without a floor */
bool   quantity_passes(const CheckQuantity *q);
void   quantity_print_header(Log *log);
void   quantity_print(const CheckQuantity *q, Log *log);
/* ERR_MISMATCH that names the worst tensor of the first quantity beyond its tolerance. */
bool   quantity_judge(CheckQuantity *const *q, int n, const char *file, Err *e);
#endif
