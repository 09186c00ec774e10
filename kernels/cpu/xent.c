/* Cross-entropy over a vocabulary cut into blocks. */
#include "cpu_kernels.h"
#include "lanes.h"
#include "leaf.h"
#include "tree.h"

static const real *xent_row(const void *logits, const Shards *vocab, int block, int64_t T, int64_t t) {
  return (const real *)logits + shard_local(vocab, block) * T + t * shard_width(vocab, block);
}

static real xent_lse(const void *logits, const Shards *vocab, int64_t T, int64_t t) {
  Tree tree = {.top = 0};
  for (int i = vocab->first; i < vocab->first + vocab->count; i++) {
    const real *x = xent_row(logits, vocab, i, T, t);
    int64_t n = shard_width(vocab, i);
    if (n == 0) continue;
    real m = row_max(x, n);
    tree_push(&tree, i, (TreeValue){m, row_sum_exp(x, m, n)}, tree_merge_exp);
  }
  TreeValue v = tree_close(&tree, tree_merge_exp);
  return v.a + real_log(v.b);
}

/* Logit of the label; 0 when the label's block is not here. */
static real xent_label_logit(const void *logits, const Shards *vocab, int32_t label, int64_t T, int64_t t) {
  int i = shard_find(vocab, label);
  return shard_is_local(vocab, i) ? xent_row(logits, vocab, i, T, t)[label - shard_begin(vocab, i)] : R(0.0);
}

void FN(xent_fwd)(const KCtx *c, void *loss, void *lse, const void *logits, const Shards *vocab, const int32_t *label, const TokenView *tv,
                  const StatSink *stat) {
  real *l = loss, *s = lse;
  int64_t T = tv->n_token;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    s[t] = xent_lse(logits, vocab, T, t);
    l[t] = label[t] < 0 ? R(0.0) : s[t] - xent_label_logit(logits, vocab, label[t], T, t);
  }
  if (!stat || !stat->word) return;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int w = 0; w < tv->n_window; w++) {
    real sum = 0;
    for (int64_t t = tv->window_start[w]; t < tv->window_start[w + 1]; t++) sum += l[t];
    leaf_add_stat(stat, 0, (double)sum, 0, tv->window_start[w + 1] - tv->window_start[w]);
  }
}

static void xent_row_backward(real *d, const real *x, real lse, int64_t n) {
  for (int64_t i = 0; i < n; i++) d[i] = real_exp(x[i] - lse);
}

void FN(xent_bwd)(const KCtx *c, void *d_logits, const void *logits, const void *lse, const Shards *vocab, const int32_t *label,
                  int64_t T) {
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    for (int i = vocab->first; i < vocab->first + vocab->count; i++) {
      int64_t n = shard_width(vocab, i), at = shard_local(vocab, i) * T + t * n, own = label[t] - shard_begin(vocab, i);
      real *d = (real *)d_logits + at;
      if (label[t] < 0) {
        for (int64_t j = 0; j < n; j++) d[j] = 0;
        continue;
      }
      xent_row_backward(d, (const real *)logits + at, ((const real *)lse)[t], n);
      if (own >= 0 && own < n) d[own] -= R(1.0);
    }
  }
}
