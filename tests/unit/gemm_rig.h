/* Shared by the tests of products: buffers with sentinels around them, random values, element access by type. */
#ifndef ETALON_TEST_GEMM_RIG_H
#define ETALON_TEST_GEMM_RIG_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "gemm.h"
#include "kernel.h"

enum { SENTINEL = 0x5a, GUARD = 256 };
typedef struct Buffer { char *p; size_t n; } Buffer;   /* n bytes at p, GUARD sentinels before and after */

static inline Buffer buffer_new(Arena *a, size_t n) {
  char *p = arena_alloc(a, n + 2 * GUARD, 1);
  memset(p, SENTINEL, n + 2 * GUARD);
  return (Buffer){ p + GUARD, n };
}

static inline void buffer_check(const Buffer *b) {
  for (int i = 1; i <= GUARD; i++) {
    assert_int_equal(b->p[-i], SENTINEL);
    assert_int_equal(b->p[b->n + (size_t)i - 1], SENTINEL);
  }
}

static inline size_t type_size(bool f64) { return f64 ? sizeof(double) : sizeof(float); }
static inline double get(bool f64, const void *p, int64_t i) { return f64 ? ((const double *)p)[i] : (double)((const float *)p)[i]; }
static inline void put(bool f64, void *p, int64_t i, double x) {
  if (f64) ((double *)p)[i] = x;
  else ((float *)p)[i] = (float)x;
}
static inline double fused(bool f64, double a, double b, double c) {
  return f64 ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
}
static inline double sum2(bool f64, double a, double b) { return f64 ? a + b : (double)((float)a + (float)b); }

static inline void fill_random(bool f64, void *p, int64_t n, uint64_t stream) {
  RngKey key = { .seed = 5, .stream = stream, .purpose = RNG_TEST };
  for (int64_t i = 0; i < n; i++) put(f64, p, i, rng_uniform(key, (uint64_t)i) * 2 - 1);
}

static inline Buffer random_buffer(Arena *a, bool f64, int64_t n, uint64_t stream) {
  Buffer b = buffer_new(a, (size_t)n * type_size(f64));
  fill_random(f64, b.p, n, stream);
  return b;
}

static inline Gemm *open_gemm(const char *provider, int threads) {
  char why[256] = "";
  Gemm *g = gemm_open(provider, threads, why, sizeof why);
  if (!g) fail_msg("%s", why);
  return g;
}
#endif
