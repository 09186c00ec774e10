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
      uint64_t *word = fix_u64(&f, 1), sum = 0;
      f.k->xent_fwd(&f.ctx, loss, lse, x, &s, LABEL, &v.v, &(StatSink){word, SHIFT, &f.fault});
      fix_compare(&f, "loss", loss, want, T, 16);
      fix_compare(&f, "lse", lse, want_lse, T, 4);
      for (int w = 0; w < v.v.n_window; w++) { /* the statistic, bit for bit from the kernel's own losses */
        double leaf = 0;
        for (int t = v.window[w]; t < v.window[w + 1]; t++) leaf = fix_round(&f, leaf + fix_at(&f, loss, t));
        sum += (uint64_t)llrint(leaf * ldexp(1, SHIFT));
      }
      assert_true(word[0] == sum && f.fault == 0);
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
        f.k->xent_fwd(&f.ctx, l2, e2, x, &s, LABEL, &v.v, NULL);
        fix_same_bits(&f, "loss", l2, loss, T);
        fix_same_bits(&f, "lse", e2, lse, T);
      }
      f.ctx.threads = 1;
      f.k->xent_bwd(&f.ctx, x, x, lse, &s, LABEL, T); /* in place */
      fix_same_bits(&f, "in place", x, d, T * V);
    }
  }
}

static void labels_and_gradients_of_a_part(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    double *x = fix_random(&f, T * V, -5, 5);
    Shards all = shards_all(3, V, 1), middle = {3, 1, 1, V, 1};
    double *packed = shard_pack(&f, x, &all, T);
    void *whole = fix_copy(&f, packed, T * V), *loss = fix_real(&f, T), *lse = fix_real(&f, T), *d = fix_real(&f, T * V);
    View v;
    view_make(&v, (int[]){T}, 1, T, 0);
    f.k->xent_fwd(&f.ctx, loss, lse, whole, &all, LABEL, &v.v, NULL);
    f.k->xent_bwd(&f.ctx, d, whole, lse, &all, LABEL, T);
    int64_t at = shard_begin(&all, 1) * T, n = shard_width(&all, 1) * T;
    void *part = fix_copy(&f, packed + at, n), *dp = fix_real(&f, n);
    f.k->xent_bwd(&f.ctx, dp, part, lse, &middle, LABEL, T);
    fix_same_bits(&f, "part of d_logits", dp, (char *)d + (size_t)at * f.k->real_size, n);
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
    f.k->xent_fwd(&f.ctx, loss, lse, x, &s, LABEL, &v.v, &(StatSink){whole, SHIFT, &f.fault});
    for (int cut = 1; cut < v.v.n_window; cut++) {
      uint64_t *word = fix_u64(&f, 1);
      for (int i = 0; i < 2; i++) {
        View part;
        view_part(&part, &v, i ? cut : 0, i ? v.v.n_window : cut);
        int64_t from = i ? v.window[cut] : 0;
        f.k->xent_fwd(&f.ctx, loss, lse, (char *)x + (size_t)(from * V) * f.k->real_size, &s, LABEL + from, &part.v,
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
    f.k->xent_fwd(&f.ctx, loss, lse, fix_copy(&f, (double[]){1e4, -1e4, 0, 0, 0, 0, 0, 0}, 8), &s, (int32_t[]){0, 1}, &v.v, &sink);
    fix_compare(&f, "loss", loss, (double[]){0, log(4)}, 2, 2);
    assert_true(f.fault == 0);
    f.k->xent_fwd(&f.ctx, loss, lse, fix_copy(&f, (double[]){1e4, -1e4, 0, 0, 0, 0, 0, 0}, 8), &s, (int32_t[]){1, 1}, &v.v, &sink);
    assert_true(f.fault == 1); /* loss 20000 on 2 tokens */
    f.fault = 0;
    f.k->xent_fwd(&f.ctx, loss, lse, fix_copy(&f, (double[]){0, 0, 0, 0, NAN, 0, 0, 0}, 8), &s, (int32_t[]){1, 1}, &v.v, &sink);
    assert_true(f.fault == 1 && isnan(fix_at(&f, lse, 0)) && !isnan(fix_at(&f, lse, 1)));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward_and_backward_for_any_cut),
      cmocka_unit_test(labels_and_gradients_of_a_part),
      cmocka_unit_test(statistics_do_not_depend_on_calls),
      cmocka_unit_test(large_and_bad_logits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
