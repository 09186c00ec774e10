/* Copies between tokens and routed rows; sums of bit patterns. */
#include "cpu_kernels.h"
#include <string.h>

void FN(rows_scatter)(const KCtx *c, void *rows, const void *x, const int32_t *row_of, int64_t T, int k, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++)
    for (int j = 0; j < k; j++) memcpy((real *)rows + row_of[t * k + j] * n, (const real *)x + t * n, (size_t)n * sizeof(real));
}

static void row_add(real *restrict y, const real *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void FN(rows_combine)(const KCtx *c, void *y, const void *rows, const int32_t *row_of, int64_t T, int k, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    real *out = (real *)y + t * n;
    memcpy(out, (const real *)rows + row_of[t * k] * n, (size_t)n * sizeof(real));
    for (int j = 1; j < k; j++) row_add(out, (const real *)rows + row_of[t * k + j] * n, n);
  }
}

void FN(slots_to_rows)(const KCtx *c, void *rows, const void *slot, const int32_t *row_of, int64_t n) {
  real *out = rows;
  const real *in = slot;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) out[row_of[i]] = in[i];
}

void FN(rows_to_slots)(const KCtx *c, void *slot, const void *rows, const int32_t *row_of, int64_t n) {
  real *out = slot;
  const real *in = rows;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) out[i] = in[row_of[i]];
}

typedef real_uint __attribute__((may_alias)) RealBits;

void FN(bits_add)(const KCtx *c, void *y, const void *x, int64_t n) {
  RealBits *out = y;
  const RealBits *in = x;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) out[i] += in[i];
}
