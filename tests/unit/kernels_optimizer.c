/* Gradients from accumulators, norms, AdamW. */
#include "kernels_common.h"

static void gradients_from_integers(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    const double sum[] = {0, 1.5, -1.5, 1000000.25, -3, 0.001953125, -0.0625};
    int64_t acc[7];
    for (int i = 0; i < 7; i++) acc[i] = llrint(sum[i] * 0x1p40);
    void *g = fix_real(&f, 7);
    for (f.ctx.threads = 1; f.ctx.threads <= 3; f.ctx.threads++) {
      f.k->grad_finish(&f.ctx, g, acc, true, 40, 24, 7);
      for (int i = 0; i < 7; i++) assert_true(fix_at(&f, g, i) == fix_round(&f, sum[i] / 24));
    }
    f.k->grad_finish(&f.ctx, g, acc, true, 40, 0, 7);
    for (int i = 0; i < 7; i++) assert_true(fix_at(&f, g, i) == 0);
    void *plain = fix_copy(&f, sum, 7);
    f.k->grad_finish(&f.ctx, g, plain, false, 0, 24, 7);
    for (int i = 0; i < 7; i++) assert_true(fix_at(&f, g, i) == fix_round(&f, fix_round(&f, sum[i]) / 24));
    f.k->grad_finish(&f.ctx, g, plain, false, 0, 0, 7);
    for (int i = 0; i < 7; i++) assert_true(fix_at(&f, g, i) == 0);
  }
}

/* 8 lanes by index mod 8, then the tree. */
static double norm_of_block(const double *x, int64_t n) {
  double v[8] = {0};
  for (int64_t i = 0; i < n; i++) v[i % 8] = fma(x[i], x[i], v[i % 8]);
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

static void norms_by_block(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { N = 2 * NORM_BLOCK + 13 };
    double *x = fix_random(&f, N, -1, 1), *sq = fix_bytes(&f, 3 * sizeof(double));
    for (int i = 0; i < N; i++) x[i] = fix_round(&f, x[i] / 3); /* squares of more bits than a double has */
    void *g = fix_copy(&f, x, N);
    for (int from = 0; from < 30; from++) {
      f.ctx.threads = 1 + from % 3;
      f.k->norm_blocks(&f.ctx, sq, (char *)g + (size_t)from * f.k->real_size, N - from);
      for (int64_t b = 0, n = N - from; b < (n + NORM_BLOCK - 1) / NORM_BLOCK; b++) {
        int64_t at = b * NORM_BLOCK;
        assert_true(sq[b] == norm_of_block(x + from + at, n - at < NORM_BLOCK ? n - at : NORM_BLOCK));
      }
    }
  }
}

/* By hand, from Loshchilov & Hutter with lr 0.5, beta 0.5 and 0.75, eps 0.25, decay 0.5, clip 0.5:
 * step 1 (corrections 0.5, 0.25), w 1, g 4: gr 2, m 1, v 1, w (1 - 0.25) - 0.5 * 2 / (2 + 0.25) = 0.75 - 4/9.
 * step 2 (corrections 0.75, 0.4375), same g: m 1.5, v 1.75, w (0.75 - 4/9) 0.75 - 0.5 * 2 / (2 + 0.25) = 0.5625 - 1/3 - 4/9.
 * g 0 at step 1: only the decay.                                                                                       */
static void adamw_by_hand(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    AdamArgs a = {
        .lr = 0.5, .beta1 = 0.5, .beta2 = 0.75, .eps = 0.25, .weight_decay = 0.5, .correction1 = 0.5, .correction2 = 0.25, .clip = 0.5};
    void *w = fix_copy(&f, (double[]){1, 1}, 2), *m = fix_copy(&f, (double[]){0, 0}, 2), *v = fix_copy(&f, (double[]){0, 0}, 2);
    void *g = fix_copy(&f, (double[]){4, 0}, 2);
    f.k->adamw(&f.ctx, w, m, v, g, 2, &a);
    fix_compare(&f, "w", w, (double[]){0.75 - 4.0 / 9, 0.75}, 2, 2);
    assert_true(fix_at(&f, m, 0) == 1 && fix_at(&f, v, 0) == 1 && fix_at(&f, m, 1) == 0 && fix_at(&f, v, 1) == 0);
    a.correction1 = 0.75, a.correction2 = 0.4375;
    f.k->adamw(&f.ctx, w, m, v, g, 2, &a);
    fix_compare(&f, "w", w, (double[]){0.5625 - 1.0 / 3 - 4.0 / 9, 0.5625}, 2, 2);
    assert_true(fix_at(&f, m, 0) == 1.5 && fix_at(&f, v, 0) == 1.75);
    a.weight_decay = 0, a.clip = 1, a.correction1 = 0.5, a.correction2 = 0.25; /* w 2, g 1, m 0, v 0: m 0.5, v 0.25, w 2 - 0.5 / 1.25 */
    void *w3 = fix_copy(&f, (double[]){2}, 1), *m3 = fix_copy(&f, (double[]){0}, 1), *v3 = fix_copy(&f, (double[]){0}, 1);
    f.k->adamw(&f.ctx, w3, m3, v3, fix_copy(&f, (double[]){1}, 1), 1, &a);
    fix_compare(&f, "w", w3, (double[]){1.6}, 1, 2);
  }
}

/* Elements are independent of their place: one at a time gives the bits of the whole. */
static void adamw_does_not_depend_on_cuts(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { N = 45 };
    AdamArgs a = {3e-4, 0.9, 0.95, 1e-8, 0.1, 1 - 0.9 * 0.9, 1 - 0.95 * 0.95, 0.37};
    double *x = fix_random(&f, 3 * N, -1, 1), *sq = fix_random(&f, N, 0, 1);
    void *w[2], *m[2], *v[2], *g = fix_copy(&f, x + 2 * N, N);
    for (int i = 0; i < 2; i++) w[i] = fix_copy(&f, x, N), m[i] = fix_copy(&f, x + N, N), v[i] = fix_copy(&f, sq, N);
    f.ctx.threads = 3;
    f.k->adamw(&f.ctx, w[0], m[0], v[0], g, N, &a);
    for (size_t i = 0; i < N; i++) {
      size_t at = i * f.k->real_size;
      f.k->adamw(&f.ctx, (char *)w[1] + at, (char *)m[1] + at, (char *)v[1] + at, (char *)g + at, 1, &a);
    }
    fix_same_bits(&f, "w", w[0], w[1], N);
    fix_same_bits(&f, "m", m[0], m[1], N);
    fix_same_bits(&f, "v", v[0], v[1], N);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_from_integers),
      cmocka_unit_test(norms_by_block),
      cmocka_unit_test(adamw_by_hand),
      cmocka_unit_test(adamw_does_not_depend_on_cuts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
