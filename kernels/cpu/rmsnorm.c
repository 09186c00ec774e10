/* RMSNorm (Zhang & Sennrich 2019). */
#include "cpu_kernels.h"
#include "lanes.h"
#include "leaf.h"

enum { NORM_COLUMNS = 256 };

void FN(rmsnorm_fwd)(const KCtx *c, void *y, void *rstd, const void *x, const void *gain, int64_t T, int64_t H, double eps) {
  const real *g = gain;
  real *scale = rstd;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    const act *in = (const act *)x + t * H;
    act *out = (act *)y + t * H;
    real r = R(1.0) / REAL_SQRT(act_dot(in, in, H) / (real)H + (real)eps);
    scale[t] = r;
    for (int64_t i = 0; i < H; i++) out[i] = act_store(act_load(in[i]) * r * g[i]);
  }
}

void FN(rmsnorm_dx)(const KCtx *c, void *dx, const void *dy, const void *x, const void *rstd, const void *gain, int64_t T, int64_t H) {
  const real *g = gain, *scale = rstd;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    const act *in = (const act *)x + t * H;
    const real *d = (const real *)dy + t * H;
    act *out = (act *)dx + t * H;
    real r = scale[t];
    real mean = row_dot3(d, g, in, H) * r / (real)H; /* of (dy gain) (x rstd) */
    for (int64_t i = 0; i < H; i++) out[i] = act_store(r * REAL_FMA(-(act_load(in[i]) * r), mean, d[i] * g[i]));
  }
}

/* Leaf: one window, added in token order. Threads share out the columns. */
void FN(rmsnorm_dw)(const KCtx *c, const Accum *acc, const void *dy, const void *x, const void *rstd, int64_t H, const TokenView *tv) {
  const real *d = dy, *scale = rstd;
  const act *in = x;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t h = 0; h < H; h += NORM_COLUMNS) {
    int64_t n = H - h < NORM_COLUMNS ? H - h : NORM_COLUMNS;
    for (int w = 0; w < tv->n_window; w++) {
      real sum[NORM_COLUMNS] = {0};
      for (int64_t t = tv->window_start[w]; t < tv->window_start[w + 1]; t++)
        for (int64_t i = 0; i < n; i++) sum[i] = REAL_FMA(d[t * H + h + i], act_load(in[t * H + h + i]) * scale[t], sum[i]);
      leaf_add(acc, acc->offset[0] + h, sum, n, tv->window_start[w + 1] - tv->window_start[w]);
    }
  }
}
