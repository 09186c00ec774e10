/* exp and log of one element type (the file is built once for each): errors against the C library in a wider type, special values, equal
 * bits in vector bodies and scalar tails.                                                                                          */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "cpu/lanes.h"

#ifdef REAL_F32
typedef double wide;
static wide wide_exp(wide x) { return exp(x); }
static wide wide_log(wide x) { return log(x); }
#else
typedef long double wide;
static wide wide_exp(wide x) { return expl(x); }
static wide wide_log(wide x) { return logl(x); }
#endif

/* Error in units of the last place of the exact value. */
static double error_ulp(real got, wide want) {
  real r = REAL_ABS((real)want);
  wide ulp = r < REAL_MIN ? (wide)REAL_MIN * (wide)REAL_EPS : (wide)(real_from_bits(real_bits(r) + 1) - r);
  wide d = ((wide)got - want) / ulp;
  return (double)(d < 0 ? -d : d);
}

static double draw(uint64_t i, double lo, double hi) { return lo + (hi - lo) * rng_uniform((RngKey){3, 1, RNG_TEST}, i); }

static void exp_is_accurate(void **state) {
  (void)state;
  double worst = 0, low = 0, least = REAL_IS_F64 ? -745 : -103, most = REAL_IS_F64 ? 709.7 : 88.7;
  for (uint64_t i = 0; i < 100000; i++) {
    real x = (real)(i % 2 ? draw(i, least, most) : draw(i, -3, 3));
    wide want = wide_exp((wide)x);
    double e = error_ulp(real_exp(x), want);
    worst = e > worst ? e : worst;
    if (x > REAL_EXP_TINY && x < 1) {
      e = error_ulp(real_exp_low(x), want);
      low = e > low ? e : low;
    }
  }
  assert_true(worst < 1.1);
  assert_true(low < 1.1);
}

static void log_is_accurate(void **state) {
  (void)state;
  double worst = 0;
  for (uint64_t i = 0; i < 100000; i++) {
    real x = (real)(i % 2 ? wide_exp((wide)draw(i, -80, 80)) : (wide)draw(i, 0.4, 2.5));
    double e = error_ulp(real_log(x), wide_log((wide)x));
    worst = e > worst ? e : worst;
  }
  real tiny = REAL_MIN * R(0.1), least = real_from_bits(1);
  assert_true(error_ulp(real_log(tiny), wide_log((wide)tiny)) < 1.0);
  assert_true(error_ulp(real_log(least), wide_log((wide)least)) < 1.0);
  assert_true(worst < 1.0);
}

static void special_values(void **state) {
  (void)state;
  const real nan = (real)__builtin_nan(""), inf = REAL_INF;
  assert_true(real_exp(-inf) == 0 && real_exp(inf) == inf && real_exp(0) == 1 && real_exp(nan) != real_exp(nan));
  assert_true(real_exp(R(1e30)) == inf && real_exp(R(-1e30)) == 0);
  assert_true(real_exp_low(-inf) == 0 && real_exp_low(0) == 1 && real_exp_low(R(-1e30)) == 0 && real_exp_low(nan) != real_exp_low(nan));
  assert_true(real_log(0) == -inf && real_log(-R(0.0)) == -inf && real_log(inf) == inf && real_log(1) == 0);
  assert_true(real_log(R(-1.0)) != real_log(R(-1.0)) && real_log(nan) != real_log(nan) && real_log(-inf) != real_log(-inf));
}

enum { N = 100 };
static __attribute__((noinline)) void exp_all(real *y, const real *x, int n) {
  for (int i = 0; i < n; i++) y[i] = real_exp(x[i]);
}
static __attribute__((noinline)) void low_all(real *y, const real *x, int n) {
  for (int i = 0; i < n; i++) y[i] = real_exp_low(x[i]);
}
static __attribute__((noinline)) void log_all(real *y, const real *x, int n) {
  for (int i = 0; i < n; i++) y[i] = real_log(x[i]);
}

/* A call of one element takes the scalar path. */
static void vector_and_scalar_bits_agree(void **state) {
  (void)state;
  void (*const all[])(real *, const real *, int) = {exp_all, low_all, log_all};
  real x[N], y[N], one;
  for (int i = 0; i < N; i++) x[i] = (real)draw((uint64_t)i, -90, 5);
  x[3] = -REAL_INF, x[5] = 0, x[7] = R(-103.0), x[11] = (real)__builtin_nan("");
  for (size_t k = 0; k < 3; k++) {
    if (k == 2)
      for (int i = 0; i < N; i++) x[i] = REAL_ABS(x[i]);
    all[k](y, x, N);
    for (int i = 0; i < N; i++) {
      all[k](&one, x + i, 1);
      if (one == one || y[i] == y[i]) assert_memory_equal(&one, &y[i], sizeof one);
    }
  }
}

/* The order of a row sum: lane i mod 32, halves added: 16, 8, 4, then (0 + 2) + (1 + 3). */
static void row_sums_have_the_stated_order(void **state) {
  (void)state;
  real x[N], y[N];
  for (int i = 0; i < N; i++) x[i] = (real)draw((uint64_t)i, -1, 1), y[i] = (real)draw((uint64_t)i + N, -1, 1);
  for (int n = 0; n < N; n++) {
    volatile real lane[LANES] = {0};
    for (int i = 0; i < n; i++) lane[i % LANES] = REAL_FMA(x[i], y[i], lane[i % LANES]);
    for (int w = LANES / 2; w; w /= 2)
      for (int i = 0; i < w; i++) lane[i] = lane[i] + lane[i + w];
    real want = lane[0], got = row_dot(x, y, n);
    assert_memory_equal(&want, &got, sizeof want);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp_is_accurate),
      cmocka_unit_test(log_is_accurate),
      cmocka_unit_test(special_values),
      cmocka_unit_test(vector_and_scalar_bits_agree),
      cmocka_unit_test(row_sums_have_the_stated_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
