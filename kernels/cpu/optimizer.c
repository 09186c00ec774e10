/* Gradients from accumulators, norms, AdamW. */
#include "cpu_kernels.h"
#include "leaf.h"

void FN(grad_finish)(const KCtx *c, void *grad, const void *acc, bool exact, int shift, double n_valid, int64_t n) {
  real *g = grad;
  if (n_valid == 0) {
    for (int64_t i = 0; i < n; i++) g[i] = 0;
    return;
  }
  const int64_t *sum = acc;
  const real *plain = acc;
  double grid = leaf_pow2(-shift);
  if (exact) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < n; i++) g[i] = (real)((double)sum[i] * grid / n_valid);
  } else {
#pragma omp parallel for num_threads(c->threads) schedule(static)
    for (int64_t i = 0; i < n; i++) g[i] = (real)((double)plain[i] / n_valid);
  }
}

enum { NORM_LANES = 8 };

static double norm_block(const real *g, int64_t n) {
  double v[NORM_LANES] = {0};
  int64_t i = 0;
  for (; i + NORM_LANES <= n; i += NORM_LANES)
    for (int l = 0; l < NORM_LANES; l++) v[l] = __builtin_fma((double)g[i + l], (double)g[i + l], v[l]);
  for (int l = 0; i + l < n; l++) v[l] = __builtin_fma((double)g[i + l], (double)g[i + l], v[l]);
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

void FN(norm_blocks)(const KCtx *c, double *sq, const void *grad, int64_t n) {
  int64_t blocks = (n + NORM_BLOCK - 1) / NORM_BLOCK;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t b = 0; b < blocks; b++) {
    int64_t at = b * NORM_BLOCK;
    sq[b] = norm_block((const real *)grad + at, n - at < NORM_BLOCK ? n - at : NORM_BLOCK);
  }
}

void FN(adamw)(const KCtx *c, void *w, void *m, void *v, const void *grad, int64_t n, const AdamArgs *a) {
  real *weight = w, *first = m, *second = v;
  const real *g = grad;
  const real beta1 = (real)a->beta1, beta2 = (real)a->beta2, rest1 = (real)(1 - a->beta1), rest2 = (real)(1 - a->beta2);
  const real lr = (real)a->lr, eps = (real)a->eps, keep = (real)(1 - a->lr * a->weight_decay), clip = (real)a->clip;
  const real correction1 = (real)a->correction1, correction2 = (real)a->correction2;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n; i++) {
    real d = g[i] * clip;
    real mean = first[i] * beta1 + d * rest1;
    real square = second[i] * beta2 + rest2 * d * d;
    real step = lr * (mean / correction1) / (REAL_SQRT(square / correction2) + eps);
    first[i] = mean;
    second[i] = square;
    weight[i] = weight[i] * keep - step;
  }
}
