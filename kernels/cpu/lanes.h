/* Sums over a row in an order that depends on its length alone: element i is added to lane i mod LANES, then the lanes by a fixed tree.
 * Tails go to the same lanes, so a row's sum has the same bits however compilers cut the loop.                                     */
#ifndef ETALON_LANES_H
#define ETALON_LANES_H
#include "real_math.h"

enum { LANES = 32 };

static inline real lanes_sum(real *v /* [LANES], destroyed */) {
  for (int i = 0; i < 16; i++) v[i] += v[i + 16];
  for (int i = 0; i < 8; i++) v[i] += v[i + 8];
  for (int i = 0; i < 4; i++) v[i] += v[i + 4];
  return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline real lanes_max(real *v /* [LANES], destroyed */) {
  for (int i = 0; i < 16; i++) v[i] = v[i + 16] > v[i] ? v[i + 16] : v[i];
  for (int i = 0; i < 8; i++) v[i] = v[i + 8] > v[i] ? v[i + 8] : v[i];
  for (int i = 0; i < 4; i++) v[i] = v[i + 4] > v[i] ? v[i + 4] : v[i];
  real a = v[2] > v[0] ? v[2] : v[0], b = v[3] > v[1] ? v[3] : v[1];
  return b > a ? b : a;
}

/* sum of a[i] b[i] */
static inline real row_dot(const real *a, const real *b, int64_t n) {
  real v[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) v[l] = REAL_FMA(a[i + l], b[i + l], v[l]);
  for (int l = 0; i + l < n; l++) v[l] = REAL_FMA(a[i + l], b[i + l], v[l]);
  return lanes_sum(v);
}

static inline real act_dot(const act *a, const act *b, int64_t n) {
  real v[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) v[l] = REAL_FMA(act_load(a[i + l]), act_load(b[i + l]), v[l]);
  for (int l = 0; i + l < n; l++) v[l] = REAL_FMA(act_load(a[i + l]), act_load(b[i + l]), v[l]);
  return lanes_sum(v);
}

/* sum of a[i] b[i] c[i] */
static inline real row_dot3(const real *a, const real *b, const act *c, int64_t n) {
  real v[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) v[l] = REAL_FMA(a[i + l] * b[i + l], act_load(c[i + l]), v[l]);
  for (int l = 0; i + l < n; l++) v[l] = REAL_FMA(a[i + l] * b[i + l], act_load(c[i + l]), v[l]);
  return lanes_sum(v);
}

/* -inf for n = 0; NaN elements are passed over (the sum of exponentials that follows carries them) */
static inline real row_max(const real *x, int64_t n) {
  real v[LANES];
  for (int l = 0; l < LANES; l++) v[l] = -REAL_INF;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) v[l] = x[i + l] > v[l] ? x[i + l] : v[l];
  for (int l = 0; i + l < n; l++) v[l] = x[i + l] > v[l] ? x[i + l] : v[l];
  return lanes_max(v);
}

/* sum of exp(x[i] - shift) */
static inline real row_sum_exp(const real *x, real shift, int64_t n) {
  real v[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) v[l] += real_exp(x[i + l] - shift);
  for (int l = 0; i + l < n; l++) v[l] += real_exp(x[i + l] - shift);
  return lanes_sum(v);
}
#endif
