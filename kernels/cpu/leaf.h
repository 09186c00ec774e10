/* Leaves of the exact sums: a leaf is rounded once to the grid 2^-shift and added as an integer, so the order of leaves cannot matter
 * (README, "Numerics"). Used by every kernel that makes a weight gradient or a statistic.                                          */
#ifndef ETALON_LEAF_H
#define ETALON_LEAF_H
#include "real.h"

enum { LEAF_BOUND = 128 };   /* largest magnitude of a leaf, per token in it */

static inline double leaf_pow2(int n) {   /* 2^n, -1022 <= n <= 1023 */
  union { uint64_t u; double d; } v = { .u = (uint64_t)(n + 1023) << 52 };
  return v.d;
}

/* llrint(x) for |x| < 2^63, written so that compilers vectorise it: adding and taking away 2^52 rounds to the nearest (even) integer. */
static inline uint64_t leaf_round(double x) {
  double big = __builtin_copysign(0x1p52, x);
  double r = (x + big) - big;
  r = __builtin_fabs(x) < 0x1p52 ? r : x;
  return (uint64_t)(int64_t)r;
}

static inline void leaf_fault(uint64_t *fault) { __atomic_fetch_or(fault, 1, __ATOMIC_RELAXED); }

/* acc[i] += llrint(x[i] * scale); true when some x is not finite or above the bound (it then adds 0). */
static inline bool leaf_add_exact(uint64_t *acc, const real *x, int64_t n, double scale, double bound) {
  uint64_t bad = 0;
  for (int64_t i = 0; i < n; i++) {
    double v = (double)x[i];
    bool ok = __builtin_fabs(v) <= bound;
    bad |= ok ? 0u : 1u;
    v = ok ? v : 0.0;
    acc[i] += leaf_round(v * scale);
  }
  return bad != 0;
}

/* Adds n consecutive elements of a leaf of n_token tokens at element `at` of the accumulator (expert and block offsets included).
 * Elements of one accumulator must not be added to by two threads at once.                                                     */
static inline void leaf_add(const Accum *a, int64_t at, const real *x, int64_t n, int64_t n_token) {
  if (a->exact) {
    if (leaf_add_exact((uint64_t *)a->data + at, x, n, leaf_pow2(a->shift), (double)LEAF_BOUND * (double)n_token)) leaf_fault(a->fault);
    return;
  }
  real *acc = (real *)a->data + at;
  for (int64_t i = 0; i < n; i++) acc[i] += x[i];
}

/* A statistic's leaf on the grid 2^-(shift - coarser); the bound grows with the grid, so no sum can wrap. Any thread may call. */
static inline void leaf_add_stat(const StatSink *s, int64_t word, double x, int coarser, int64_t n_token) {
  if (!(__builtin_fabs(x) <= (double)LEAF_BOUND * leaf_pow2(coarser) * (double)n_token)) {
    leaf_fault(s->fault);
    return;
  }
  __atomic_fetch_add(&s->word[word], leaf_round(x * leaf_pow2(s->shift - coarser)), __ATOMIC_RELAXED);
}
#endif
