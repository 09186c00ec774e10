/* Rotary embedding (Su et al. 2021). Angles in FP64. */
#include "cpu_kernels.h"
#include <math.h>

enum { ROPE_STEP = 16, ROPE_PAIRS = 64 }; /* ROPE_PAIRS: pairs of a head handled at a time */

/* The angle of a position is that of the multiple of ROPE_STEP below it plus that of the rest, joined by the addition theorem: two library
 * calls for ROPE_STEP positions instead of two for each. A pure function of (position, pair).                                          */
typedef struct RopeTable {
  int64_t first, n, coarse; /* pairs first .. first+n-1; base is for position coarse * ROPE_STEP */
  double freq[ROPE_PAIRS], fine_cos[ROPE_STEP][ROPE_PAIRS], fine_sin[ROPE_STEP][ROPE_PAIRS], base_cos[ROPE_PAIRS], base_sin[ROPE_PAIRS];
  real cos[ROPE_PAIRS], sin[ROPE_PAIRS];
} RopeTable;

static void rope_open(RopeTable *r, int64_t first, int64_t n, int64_t D, double theta) {
  r->first = first, r->n = n, r->coarse = -1;
  for (int64_t j = 0; j < n; j++) {
    r->freq[j] = 1.0 / pow(theta, 2.0 * (double)(first + j) / (double)D);
    for (int p = 0; p < ROPE_STEP; p++) {
      r->fine_cos[p][j] = cos((double)p * r->freq[j]);
      r->fine_sin[p][j] = sin((double)p * r->freq[j]);
    }
  }
}

static void rope_at(RopeTable *r, int64_t position, int sign) {
  if (position / ROPE_STEP != r->coarse) {
    r->coarse = position / ROPE_STEP;
    for (int64_t j = 0; j < r->n; j++) {
      double angle = (double)(r->coarse * ROPE_STEP) * r->freq[j];
      r->base_cos[j] = cos(angle);
      r->base_sin[j] = sin(angle);
    }
  }
  const double *fc = r->fine_cos[position % ROPE_STEP], *fs = r->fine_sin[position % ROPE_STEP];
  for (int64_t j = 0; j < r->n; j++) {
    double bc = r->base_cos[j], bs = r->base_sin[j];
    r->cos[j] = (real)__builtin_fma(bc, fc[j], -(bs * fs[j]));
    r->sin[j] = (real)((double)sign * __builtin_fma(bs, fc[j], bc * fs[j]));
  }
}

static void rope_head(const RopeTable *r, act *restrict y, const real *restrict x, int64_t half) {
  for (int64_t j = 0; j < r->n; j++) {
    real a = x[r->first + j], b = x[r->first + j + half];
    y[r->first + j] = act_store(REAL_FMA(a, r->cos[j], -(b * r->sin[j])));
    y[r->first + j + half] = act_store(REAL_FMA(b, r->cos[j], a * r->sin[j]));
  }
}

static void rope_token(const RopeTable *r, act *y, const real *x, const Shards *heads, int64_t T, int64_t t) {
  for (int i = heads->first; i < heads->first + heads->count; i++) {
    int64_t width = shard_width(heads, i), at = shard_local(heads, i) * T + t * width;
    for (int64_t h = 0; h < width; h += heads->unit) rope_head(r, y + at + h, x + at + h, heads->unit / 2);
  }
}

void FN(rope)(const KCtx *c, void *y, const void *x, const Shards *heads, double theta, int sign, const TokenView *tv) {
  int64_t T = tv->n_token, pairs = heads->unit / 2, threads = c->threads;
#pragma omp parallel for num_threads(c->threads) schedule(static, 1)
  for (int64_t part = 0; part < threads; part++) {
    int64_t begin = T * part / threads, end = T * (part + 1) / threads;
    for (int64_t first = 0; first < pairs && begin < end; first += ROPE_PAIRS) {
      RopeTable r;
      rope_open(&r, first, pairs - first < ROPE_PAIRS ? pairs - first : ROPE_PAIRS, heads->unit, theta);
      for (int64_t t = begin; t < end; t++) {
        rope_at(&r, tv->position[t] - (tv->doc_start ? tv->doc_start[t] : 0), sign);
        rope_token(&r, y, x, heads, T, t);
      }
    }
  }
}
