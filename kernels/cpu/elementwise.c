/* Sums of two values (residual connections); values from one type to the other. */
#include "cpu_kernels.h"

enum { CHUNK = 4096 };

void FN(add)(const KCtx *c, void *y, const void *a, const void *b, int64_t n) {
  act *out = y;
  const act *p = a, *q = b;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) out[i] = act_store(act_load(p[i]) + act_load(q[i]));
}

void FN(widen)(const KCtx *c, void *y, const void *x, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i += CHUNK) act_widen((real *)y + i, (const act *)x + i, n - i < CHUNK ? n - i : CHUNK);
}

void FN(narrow)(const KCtx *c, void *y, const void *x, int64_t n) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i += CHUNK) act_narrow((act *)y + i, (const real *)x + i, n - i < CHUNK ? n - i : CHUNK);
}
