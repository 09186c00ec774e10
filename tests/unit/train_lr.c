/* The learning rate at every iteration, from the published formulas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/lr.h"

static Config config(LrDecay style, int64_t iters, int64_t warmup) {
  Config c = {0};
  c.train.train_iters = iters;
  c.optimizer.lr = 6e-4, c.optimizer.min_lr = 6e-5, c.optimizer.lr_decay_style = style, c.optimizer.lr_warmup_iters = warmup;
  return c;
}
static void near(double x, double y) { assert_true(fabs(x - y) <= 1e-15); }

/* 1500 steps of cosine, none of warm-up: at 1401 the value is that of the formula, resumed or not. */
static void cosine(void **state) {
  (void)state;
  Config c = config(DECAY_COSINE, 1500, 0);
  near(lr_at(&c, 750), (6e-4 + 6e-5) / 2);
  near(lr_at(&c, 1401), 6e-5 + 5.4e-4 * 0.5 * (1 + cos(acos(-1.0) * 1401 / 1500)));
  near(lr_at(&c, 1500), 6e-5);
  near(lr_at(&c, 1501), 6e-5);
}

/* 220 steps with 22 of warm-up: warm-up counts once, and the rate falls to the very end. */
static void warmup(void **state) {
  (void)state;
  Config c = config(DECAY_COSINE, 220, 22);
  c.optimizer.min_lr = 0;
  for (int64_t i = 1; i <= 22; i++) near(lr_at(&c, i), 6e-4 * (double)i / 22);
  for (int64_t i = 23; i < 220; i++) assert_true(lr_at(&c, i) > 0 && lr_at(&c, i) < lr_at(&c, i - 1));
  near(lr_at(&c, 121), 3e-4);
  assert_true(lr_at(&c, 220) == 0);
}

static void other_styles(void **state) {
  (void)state;
  Config c = config(DECAY_LINEAR, 100, 0);
  near(lr_at(&c, 25), 6e-5 + 5.4e-4 * 0.75);
  c = config(DECAY_CONSTANT, 100, 10);
  near(lr_at(&c, 5), 3e-4);
  near(lr_at(&c, 100), 6e-4);
  c = config(DECAY_WSD, 100, 10);
  c.optimizer.lr_wsd_decay_iters = 20;
  near(lr_at(&c, 80), 6e-4);
  near(lr_at(&c, 90), 6e-5 + 5.4e-4 * 0.5);
  near(lr_at(&c, 100), 6e-5);
  c = config(DECAY_COSINE, 100, 0);
  c.optimizer.lr_decay_iters = 50;
  near(lr_at(&c, 25), (6e-4 + 6e-5) / 2);
  near(lr_at(&c, 75), 6e-5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cosine), cmocka_unit_test(warmup), cmocka_unit_test(other_styles)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
