/* Cross-entropy over a vocabulary cut into blocks. */
#include "cpu_kernels.h"
#include "lanes.h"
#include "leaf.h"
#include "tree.h"

enum { XENT_LEAF = 3 }; /* max, sum of exp relative to it, logit of the label */

static const real *xent_row(const void *logits, const Shards *vocab, int block, int64_t T, int64_t t) {
  return (const real *)logits + shard_local(vocab, block) * T + t * shard_width(vocab, block);
}

void FN(xent_leaves)(const KCtx *c, void *leaf, const void *logits, const Shards *vocab, const int32_t *label, int64_t T) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    for (int i = vocab->first; i < vocab->first + vocab->count; i++) {
      const real *x = xent_row(logits, vocab, i, T, t);
      int64_t n = shard_width(vocab, i), own = label[t] - shard_begin(vocab, i);
      real *out = (real *)leaf + ((i - vocab->first) * T + t) * XENT_LEAF, m = row_max(x, n);
      out[0] = m;
      out[1] = row_sum_exp(x, m, n);
      out[2] = label[t] >= 0 && own >= 0 && own < n ? x[own] : R(0.0);
    }
  }
}

static real xent_lse(const real *leaf, const Shards *vocab, int64_t T, int64_t t) {
  Tree tree = {.top = 0};
  for (int i = 0; i < vocab->n; i++) {
    const real *x = leaf + (i * T + t) * XENT_LEAF;
    if (shard_width(vocab, i) > 0) tree_push(&tree, i, (TreeValue){x[0], x[1]}, tree_merge_exp);
  }
  TreeValue v = tree_close(&tree, tree_merge_exp);
  return v.a + real_log(v.b);
}

static void xent_statistic(const KCtx *c, const real *loss, const TokenView *own, const StatSink *stat) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int w = 0; w < own->n_window; w++) {
    real sum = 0;
    for (int64_t t = own->window_start[w]; t < own->window_start[w + 1]; t++) sum += loss[t];
    leaf_add_stat(stat, 0, (double)sum, 0, own->window_start[w + 1] - own->window_start[w]);
  }
}

void FN(xent_merge)(const KCtx *c, void *loss, void *lse, const void *leaf, const Shards *vocab, const int32_t *label, int64_t T,
                    const TokenView *own, int64_t t0, const StatSink *stat) {
  const real *x = leaf;
  real *l = loss, *s = lse;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    s[t] = xent_lse(x, vocab, T, t);
    l[t] = label[t] < 0 ? R(0.0) : s[t] - x[(shard_find(vocab, label[t]) * T + t) * XENT_LEAF + 2];
  }
  if (own && stat && stat->word) xent_statistic(c, l + t0, own, stat);
}

static void xent_row_backward(act *d, const real *x, real lse, int64_t n) {
  for (int64_t i = 0; i < n; i++) d[i] = act_store(real_exp(x[i] - lse));
}

void FN(xent_bwd)(const KCtx *c, void *d_logits, const void *logits, const void *lse, const Shards *vocab, const int32_t *label,
                  int64_t T) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    for (int i = vocab->first; i < vocab->first + vocab->count; i++) {
      int64_t n = shard_width(vocab, i), at = shard_local(vocab, i) * T + t * n, own = label[t] - shard_begin(vocab, i);
      const real *x = (const real *)logits + at;
      real l = ((const real *)lse)[t], label_logit = own >= 0 && own < n ? x[own] : 0;
      act *d = (act *)d_logits + at;
      if (label[t] < 0) {
        for (int64_t j = 0; j < n; j++) d[j] = 0;
        continue;
      }
      xent_row_backward(d, x, l, n);
      if (own >= 0 && own < n) d[own] = act_store(real_exp(label_logit - l) - R(1.0));
    }
  }
}
