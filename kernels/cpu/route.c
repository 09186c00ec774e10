/* Router: softmax, top-k, where rows go, statistics; and its backward. Auxiliary loss: Fedus et al. 2022; z-loss: Zoph et al. 2022. */
#include "cpu_kernels.h"
#include "lanes.h"
#include "leaf.h"
#include <math.h>
#include <string.h>

enum { FORCED_NONE, FORCED_BALANCED, FORCED_ONE, FORCED_ZIPF, FORCED_REPLAY };
enum { Z_COARSER = 10 }; /* squares of log-sum-exps are large: their grid is 2^10 coarser */

/* Scores of a token; returns the log-sum-exp of its logits. */
static real route_softmax(real *restrict s, const real *restrict x, int E) {
  real m = row_max(x, E), sum = row_sum_exp(x, m, E);
  for (int e = 0; e < E; e++) s[e] = real_exp(x[e] - m) / sum;
  return m + real_log(sum);
}

/* The k largest of s, ties to the lowest id; ids are valid even where s is not a number. */
static void route_top_k(int32_t *idx, const real *s, int E, int k) {
  for (int j = 0; j < k; j++) {
    int best = -1;
    for (int e = 0; e < E; e++) {
      bool taken = false;
      for (int i = 0; i < j; i++) taken |= idx[i] == e;
      if (!taken && (best < 0 || s[e] > s[best])) best = e;
    }
    idx[j] = best;
  }
}

static uint64_t route_mix(uint64_t x) { /* finaliser of splitmix64 */
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* k distinct experts without replacement, p_e ~ (e + 1)^-exponent: the k earliest of exponential clocks with these rates. FP64 in both
 * element types, so both route alike.                                                                                          */
static void route_zipf(int32_t *idx, const double *scale /* [E] (e + 1)^exponent */, int E, int k, uint64_t seed, uint64_t token) {
  double best[k];
  int n = 0;
  uint64_t key = route_mix(seed + 0x9e3779b97f4a7c15u * (token + 1));
  for (int e = 0; e < E; e++) {
    double u = ((double)(route_mix(key + 0x9e3779b97f4a7c15u * (uint64_t)(e + 1)) >> 11) + 0.5) * 0x1p-53;
    double clock = -log(u) * scale[e];
    if (n == k && !(clock < best[n - 1])) continue;
    int at = n < k ? n++ : n - 1;
    for (; at > 0 && clock < best[at - 1]; at--) best[at] = best[at - 1], idx[at] = idx[at - 1];
    best[at] = clock, idx[at] = e;
  }
}

static void route_choose(int32_t *idx, const real *s, const double *zipf, const RouteArgs *a, int64_t token) {
  int E = a->n_expert, k = a->top_k;
  if (a->forced == FORCED_NONE || (a->forced == FORCED_REPLAY && !a->replay)) route_top_k(idx, s, E, k);
  if (a->forced == FORCED_ZIPF) route_zipf(idx, zipf, E, k, a->seed, (uint64_t)token);
  if (a->forced == FORCED_BALANCED)
    for (int j = 0; j < k; j++) idx[j] = (int32_t)((token * k + j) % E);
  if (a->forced == FORCED_REPLAY && a->replay)
    for (int j = 0; j < k; j++) idx[j] = a->replay[token * k + j];
  if (a->forced == FORCED_ONE)
    for (int j = 0; j < k; j++) idx[j] = j;
}

static real route_chosen_sum(const real *s, const int32_t *idx, int k) {
  real sum = s[idx[0]];
  for (int j = 1; j < k; j++) sum += s[idx[j]];
  return sum;
}

static void route_window(int32_t *idx, real *wt, int32_t *counts, const real *logits, const double *zipf, const RouteArgs *a,
                         const TokenView *tv, int w, const StatSink *stat) {
  int E = a->n_expert, k = a->top_k;
  int64_t begin = tv->window_start[w], end = tv->window_start[w + 1];
  real s[E], sum[E], z = 0;
  memset(sum, 0, sizeof sum);
  memset(counts, 0, (size_t)E * sizeof *counts);
  for (int64_t t = begin; t < end; t++) {
    int32_t *id = idx + t * k;
    real lse = route_softmax(s, logits + t * E, E);
    route_choose(id, s, zipf, a, tv->window_number[w] + t - begin);
    real norm = a->renormalise ? route_chosen_sum(s, id, k) : R(1.0);
    for (int j = 0; j < k; j++) wt[t * k + j] = s[id[j]] / norm, counts[id[j]]++;
    for (int e = 0; e < E; e++) sum[e] += s[e];
    z += lse * lse;
  }
  if (!stat || !stat->word) return;
  uint64_t unheard = 0;
  StatSink z_sink = {stat->word, stat->shift, a->z_scale != 0 ? stat->fault : &unheard}; /* without a z-loss its size stops nothing */
  leaf_add_stat(&z_sink, 0, (double)z, Z_COARSER, end - begin);
  for (int e = 0; e < E; e++) {
    __atomic_fetch_add(&stat->word[2 + e], (uint64_t)counts[e], __ATOMIC_RELAXED);
    leaf_add_stat(stat, 2 + E + e, (double)sum[e], 0, end - begin);
  }
}

/* Counting sort of the slots by (expert, token). */
static void route_sort(int32_t *row_of, const int32_t *idx, const int32_t *counts, int E, int64_t n_slot, int n_window) {
  int32_t next[E], at = 0;
  for (int e = 0; e < E; e++) {
    next[e] = at;
    for (int w = 0; w < n_window; w++) at += counts[(int64_t)w * E + e];
  }
  for (int64_t i = 0; i < n_slot; i++) row_of[i] = next[idx[i]]++;
}

void FN(route_fwd)(const KCtx *c, int32_t *idx, void *wt, int32_t *row_of, int32_t *counts, const void *logits, const RouteArgs *a,
                   const TokenView *tv, const StatSink *stat) {
  int E = a->n_expert;
  double zipf[E];
  for (int e = 0; e < E; e++) zipf[e] = a->forced == FORCED_ZIPF ? pow((double)(e + 1), a->zipf_exponent) : 0;
#pragma omp parallel for num_threads(c->threads) schedule(dynamic, 1)
  for (int w = 0; w < tv->n_window; w++) route_window(idx, wt, counts + (int64_t)w * E, logits, zipf, a, tv, w, stat);
  route_sort(row_of, idx, counts, E, tv->n_token * a->top_k, tv->n_window);
}

void FN(sequence_counts)(const KCtx *c, int32_t *seq_counts, const int32_t *counts, int n_expert, const TokenView *tv) {
  (void)c;
  memset(seq_counts, 0, (size_t)tv->n_seq * (size_t)n_expert * sizeof *seq_counts);
  for (int w = 0; w < tv->n_window; w++)
    for (int e = 0; e < n_expert; e++) seq_counts[(int64_t)tv->window_seq[w] * n_expert + e] += counts[(int64_t)w * n_expert + e];
}

/* ds_e of the auxiliary loss, the same for every token of the scope */
static void route_aux_gradient(real *ds, const int32_t *seq_counts, const uint64_t *batch_counts, const RouteArgs *a) {
  double n = (double)(seq_counts ? a->seq_length : a->n_token_global);
  double scale = a->aux_scale * (double)a->n_expert / ((double)a->top_k * n * n);
  for (int e = 0; e < a->n_expert; e++)
    ds[e] = (real)(seq_counts ? scale * (double)seq_counts[e] : batch_counts ? scale * (double)batch_counts[e] : 0);
}

/* Auxiliary loss of a sequence, leaf: one window, from the sums of its scores. */
static void route_aux_statistic(const real *sum, const int32_t *seq_counts, const RouteArgs *a, int64_t n_token, const StatSink *stat) {
  double n = (double)a->seq_length, scale = (double)a->n_expert / ((double)a->top_k * n * n), dot = 0;
  for (int e = 0; e < a->n_expert; e++) dot += (double)seq_counts[e] * (double)sum[e];
  leaf_add_stat(stat, 1, scale * dot, 0, n_token);
}

/* s: the scores of the token, computed again */
static void route_token_backward(real *dx, real *s, const real *dw, const real *x, const int32_t *id, const real *aux, const RouteArgs *a) {
  int E = a->n_expert, k = a->top_k;
  real ds[E];
  real lse = route_softmax(s, x, E);
  memcpy(ds, aux, sizeof ds);
  real sum = a->renormalise ? route_chosen_sum(s, id, k) : R(1.0), mean = 0;
  if (a->renormalise)
    for (int j = 0; j < k; j++) mean = REAL_FMA(dw[j], s[id[j]] / sum, mean);
  for (int j = 0; j < k; j++) ds[id[j]] += (dw[j] - mean) / sum;
  real dot = row_dot(ds, s, E), z = (real)(2 * a->z_scale) * lse;
  for (int e = 0; e < E; e++) dx[e] = s[e] * (ds[e] - dot + z);
}

typedef struct RouteBackward {
  real *d_logits;
  const real *d_wt, *logits;
  const int32_t *idx, *seq_counts;
  const uint64_t *batch_counts;
} RouteBackward;

static void route_window_backward(const RouteBackward *b, const RouteArgs *a, const TokenView *tv, int w, const StatSink *stat) {
  int E = a->n_expert, k = a->top_k;
  int64_t begin = tv->window_start[w], end = tv->window_start[w + 1];
  const int32_t *counts = b->seq_counts ? b->seq_counts + (int64_t)tv->window_seq[w] * E : NULL;
  real aux[E], s[E], sum[E];
  memset(sum, 0, sizeof sum);
  route_aux_gradient(aux, counts, b->batch_counts, a);
  for (int64_t t = begin; t < end; t++) {
    route_token_backward(b->d_logits + t * E, s, b->d_wt + t * k, b->logits + t * E, b->idx + t * k, aux, a);
    for (int e = 0; e < E; e++) sum[e] += s[e];
  }
  if (counts && stat && stat->word) route_aux_statistic(sum, counts, a, end - begin, stat);
}

void FN(route_bwd)(const KCtx *c, void *d_logits, const void *d_wt, const void *logits, const int32_t *idx, const int32_t *seq_counts,
                   const uint64_t *batch_counts, const RouteArgs *a, const TokenView *tv, const StatSink *stat) {
  RouteBackward b = {d_logits, d_wt, logits, idx, seq_counts, batch_counts};
#pragma omp parallel for num_threads(c->threads) schedule(dynamic, 1)
  for (int w = 0; w < tv->n_window; w++) route_window_backward(&b, a, tv, w, stat);
}
