/* Copies between tokens and routed rows; sums of bit patterns. */
#include "cpu_kernels.h"
#include <string.h>

void FN(rows_scatter)(const KCtx *c, void *rows, const void *x, const int32_t *row_of, int64_t T, int k, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++)
    for (int j = 0; j < k; j++) memcpy((act *)rows + row_of[t * k + j] * n, (const act *)x + t * n, (size_t)n * sizeof(act));
}

enum { COMBINE_COLUMNS = 512 };

/* y = the rows added in slot order, rounded once */
static void combine_token(act *y, const act *rows, const int32_t *row_of, int k, int64_t n) {
  real sum[COMBINE_COLUMNS];
  for (int64_t h = 0; h < n; h += COMBINE_COLUMNS) {
    int64_t m = n - h < COMBINE_COLUMNS ? n - h : COMBINE_COLUMNS;
    act_widen(sum, rows + row_of[0] * n + h, m);
    for (int j = 1; j < k; j++)
      for (int64_t i = 0; i < m; i++) sum[i] += act_load(rows[row_of[j] * n + h + i]);
    act_narrow(y + h, sum, m);
  }
}

void FN(rows_combine)(const KCtx *c, void *y, const void *rows, const int32_t *row_of, int64_t T, int k, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) combine_token((act *)y + t * n, rows, row_of + t * k, k, n);
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

typedef act_uint __attribute__((may_alias)) ActBits;

void FN(bits_add)(const KCtx *c, void *y, const void *x, int64_t n) {
  ActBits *out = y;
  const ActBits *in = x;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) out[i] = (ActBits)(out[i] + in[i]);
}
