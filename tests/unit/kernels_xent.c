/* Cross-entropy over a cut vocabulary. */
#include "kernels_common.h"

enum { T = 7, V = 53, SHIFT = 44 };

static const int32_t LABEL[T] = {0, 52, 17, -100, 18, 35, 9};

typedef struct Xent {
  double *x;
} Xent;
static void xent_reference(const double *x, double *loss, double *lse) {
  for (int t = 0; t < T; t++) {
    double m = -INFINITY, s = 0;
    for (int v = 0; v < V; v++) m = fmax(m, x[t * V + v]);
    for (int v = 0; v < V; v++) s += exp(x[t * V + v] - m);
    lse[t] = m + log(s);
    loss[t] = LABEL[t] < 0 ? 0 : lse[t] - x[t * V + LABEL[t]];
  }
}
static double xent_loss(void *arg) {
  double loss[T], lse[T], sum = 0;
  xent_reference(((Xent *)arg)->x, loss, lse);
  for (int t = 0; t < T; t++) sum += loss[t];
  return sum;
}

/* Leaves of all blocks, then the merge; `stat` counts the tokens of `own`, which begin at t0. */
static void forward(Fix *f, void *loss, void *lse, const void *logits, const Shards *vocab, const int32_t *label, int64_t n,
                    const TokenView *own, int64_t t0, const StatSink *stat) {
  void *leaf = fix_real(f, vocab->n * n * 3);
  f->k->xent_leaves(&f->ctx, leaf, logits, vocab, label, n);
  f->k->xent_merge(&f->ctx, loss, lse, leaf, vocab, label, n, own, t0, stat);
}

/* The statistic, bit for bit from the kernel's own losses. */
static uint64_t statistic(const Fix *f, const View *v, const void *loss) {
  uint64_t sum = 0;
  for (int w = 0; w < v->v.n_window; w++) {
    double leaf = 0;
    for (int t = v->window[w]; t < v->window[w + 1]; t++) leaf = fix_round(f, leaf + fix_at(f, loss, t));
    sum += (uint64_t)llrint(leaf * ldexp(1, SHIFT));
  }
  return sum;
}

static void forward_and_backward_for_any_cut(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){4, 3}, 2, 3, 0);
    Xent a = {fix_random(&f, T * V, -5, 5)};
    double want[T], want_lse[T];
    xent_reference(a.x, want, want_lse);
    for (int blocks = 1; blocks <= 3; blocks++) {
      Shards s = shards_all(blocks, V, 1);
      void *x = fix_copy(&f, shard_pack(&f, a.x, &s, T), T * V), *loss = fix_real(&f, T), *lse = fix_real(&f, T), *d = fix_real(&f, T * V);
      uint64_t *word = fix_u64(&f, 1);
      forward(&f, loss, lse, x, &s, LABEL, T, &v.v, 0, &(StatSink){word, SHIFT, &f.fault});
      fix_compare(&f, "loss", loss, want, T, 16);
      fix_compare(&f, "lse", lse, want_lse, T, 4);
      assert_true(word[0] == statistic(&f, &v, loss) && f.fault == 0);
      f.k->xent_bwd(&f.ctx, d, x, lse, &s, LABEL, T);
      double flat[T * V];
      for (int b = 0; b < blocks; b++)
        for (int t = 0; t < T; t++)
          for (int64_t j = 0; j < shard_width(&s, b); j++)
            flat[t * V + shard_begin(&s, b) + j] = fix_at(&f, d, shard_begin(&s, b) * T + t * shard_width(&s, b) + j);
      fix_check_gradient(&f, "d_logits", xent_loss, &a, a.x, fix_copy(&f, flat, T * V), T * V);
      for (int j = 0; j < V; j++) assert_true(flat[3 * V + j] == 0);
      for (f.ctx.threads = 2; f.ctx.threads <= 3; f.ctx.threads++) {
        void *l2 = fix_real(&f, T), *e2 = fix_real(&f, T);
        forward(&f, l2, e2, x, &s, LABEL, T, &v.v, 0, NULL);
        fix_same_bits(&f, "loss", l2, loss, T);
        fix_same_bits(&f, "lse", e2, lse, T);
      }
      f.ctx.threads = 1;
      f.k->xent_bwd(&f.ctx, x, x, lse, &s, LABEL, T); /* in place */
      fix_same_bits(&f, "in place", x, d, T * V);
    }
  }
}

/* A node of the tree over blocks: (max, sum), absent where it has no logit. Recursion over halves, independent of the kernel's stack. */
static bool node(const Fix *f, const double *row, const Shards *s, int first, int count, double out[2]) {
  if (first >= s->n) return false;
  if (count == 1) {
    int64_t n = shard_width(s, first), begin = shard_begin(s, first);
    if (n == 0) return false;
    Shards one = {1, 0, 1, n, 1};
    void *x = fix_copy((Fix *)f, row + begin, n), *leaf = fix_real((Fix *)f, 3);
    f->k->xent_leaves(&f->ctx, leaf, x, &one, (int32_t[]){-1}, 1);
    out[0] = fix_at(f, leaf, 0), out[1] = fix_at(f, leaf, 1);
    return true;
  }
  double l[2] = {0}, r[2] = {0};
  bool left = node(f, row, s, first, count / 2, l), right = node(f, row, s, first + count / 2, count / 2, r);
  if (!left || !right) memcpy(out, left ? l : r, sizeof l);
  if (left && right) out[0] = fmax(l[0], r[0]), out[1] = l[1] * exp(l[0] - out[0]) + r[1] * exp(r[0] - out[0]);
  return left || right;
}

/* Vocabulary dealt to several ranks, some without blocks, blocks without logits; each rank counts its share of the tokens. */
static void ranks_give_the_bits_of_one(void **state) {
  (void)state;
  const int blocks[] = {3, 4, 8, 60, 8}, units[] = {V, V, 5, V, 3};
  Fix f;
  FOR_BOTH_TYPES(f) {
    for (int i = 0; i < 5; i++) {
      Shards all = shards_all(blocks[i], units[i], 1);
      int32_t label[T];
      for (int t = 0; t < T; t++) label[t] = LABEL[t] < 0 ? -100 : LABEL[t] % units[i];
      double *x = fix_random(&f, T * units[i], -5, 5), *packed = shard_pack(&f, x, &all, T);
      void *whole = fix_copy(&f, packed, T * units[i]), *loss = fix_real(&f, T), *lse = fix_real(&f, T), *d = fix_real(&f, T * units[i]);
      View v;
      view_make(&v, (int[]){4, 3}, 2, 2, 0);
      uint64_t *word = fix_u64(&f, 1);
      forward(&f, loss, lse, whole, &all, label, T, &v.v, 0, &(StatSink){word, SHIFT, &f.fault});
      f.k->xent_bwd(&f.ctx, d, whole, lse, &all, label, T);
      if (blocks[i] == 8) { /* of 8 blocks three or five are empty: the tree is over the others, in their places */
        double top[2] = {0};
        node(&f, x, &all, 0, 8, top);
        fix_compare(&f, "lse", lse, (double[]){top[0] + log(top[1])}, 1, 2);
      }
      const int rank_counts[] = {2, 3, 5};
      for (int k = 0; k < 3; k++) {
        int ranks = rank_counts[k];
        char *leaf = fix_real(&f, blocks[i] * T * 3);
        for (int r = 0; r < ranks; r++) {
          Shards s = shards_rank(&all, ranks, r);
          char *logits = (char *)whole + (size_t)(shard_begin(&all, s.first) * T) * f.k->real_size;
          f.k->xent_leaves(&f.ctx, leaf + (size_t)(s.first * T * 3) * f.k->real_size, logits, &s, label, T);
        }
        uint64_t *sum = fix_u64(&f, 1);
        for (int r = 0; r < ranks; r++) {
          void *l2 = fix_real(&f, T), *e2 = fix_real(&f, T);
          View own;
          int a = v.v.n_window * r / ranks, b = v.v.n_window * (r + 1) / ranks;
          view_part(&own, &v, a, b);
          Shards s = shards_rank(&all, ranks, r);
          f.k->xent_merge(&f.ctx, l2, e2, leaf, &s, label, T, &own.v, v.window[a], &(StatSink){sum, SHIFT, &f.fault});
          fix_same_bits(&f, "loss", l2, loss, T);
          fix_same_bits(&f, "lse", e2, lse, T);
          int64_t at = shard_begin(&all, s.first) * T, n = shard_total(&s) * T;
          void *dp = fix_real(&f, n);
          f.k->xent_bwd(&f.ctx, dp, (char *)whole + (size_t)at * f.k->real_size, lse, &s, label, T);
          fix_same_bits(&f, "part of d_logits", dp, (char *)d + (size_t)at * f.k->real_size, n);
        }
        assert_true(sum[0] == word[0] && f.fault == 0);
      }
    }
  }
}

static void statistics_do_not_depend_on_calls(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){4, 3}, 2, 2, 0);
    Shards s = shards_all(1, V, 1);
    void *x = fix_copy(&f, fix_random(&f, T * V, -5, 5), T * V), *loss = fix_real(&f, T), *lse = fix_real(&f, T);
    uint64_t *whole = fix_u64(&f, 1);
    forward(&f, loss, lse, x, &s, LABEL, T, &v.v, 0, &(StatSink){whole, SHIFT, &f.fault});
    for (int cut = 1; cut < v.v.n_window; cut++) {
      uint64_t *word = fix_u64(&f, 1);
      for (int i = 0; i < 2; i++) {
        View part;
        view_part(&part, &v, i ? cut : 0, i ? v.v.n_window : cut);
        int64_t from = i ? v.window[cut] : 0;
        forward(&f, loss, lse, (char *)x + (size_t)(from * V) * f.k->real_size, &s, LABEL + from, part.v.n_token, &part.v, 0,
                &(StatSink){word, SHIFT, &f.fault});
      }
      assert_true(word[0] == whole[0]);
    }
  }
}

static void large_and_bad_logits(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){2}, 1, 2, 0);
    Shards s = shards_all(2, 4, 1);
    uint64_t *word = fix_u64(&f, 1);
    StatSink sink = {word, SHIFT, &f.fault};
    void *loss = fix_real(&f, 2), *lse = fix_real(&f, 2);
    forward(&f, loss, lse, fix_copy(&f, (double[]){1e4, -1e4, 0, 0, 0, 0, 0, 0}, 8), &s, (int32_t[]){0, 1}, 2, &v.v, 0, &sink);
    fix_compare(&f, "loss", loss, (double[]){0, log(4)}, 2, 2);
    assert_true(f.fault == 0);
    forward(&f, loss, lse, fix_copy(&f, (double[]){1e4, -1e4, 0, 0, 0, 0, 0, 0}, 8), &s, (int32_t[]){1, 1}, 2, &v.v, 0, &sink);
    assert_true(f.fault == 1); /* loss 20000 on 2 tokens */
    f.fault = 0;
    forward(&f, loss, lse, fix_copy(&f, (double[]){0, 0, 0, 0, NAN, 0, 0, 0}, 8), &s, (int32_t[]){1, 1}, 2, &v.v, 0, &sink);
    assert_true(f.fault == 1 && isnan(fix_at(&f, lse, 0)) && !isnan(fix_at(&f, lse, 1)));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward_and_backward_for_any_cut),
      cmocka_unit_test(ranks_give_the_bits_of_one),
      cmocka_unit_test(statistics_do_not_depend_on_calls),
      cmocka_unit_test(large_and_bad_logits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
