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

/* Elements by type: GEMM_F32, GEMM_F64, GEMM_BF16. What is made of BF16 elements is float. */
static inline size_t type_size(GemmType t) { return gemm_in_size(t); }
static inline GemmType sum_type(GemmType t) { return t == GEMM_F64 ? GEMM_F64 : GEMM_F32; }
static inline const Kernels *kernels_of(GemmType t) {
  return t == GEMM_F64 ? &kernels_cpu_f64 : t == GEMM_F32 ? &kernels_cpu_f32 : &kernels_cpu_bf16;
}
/* The nearest BF16, ties to even, by the definition: finite numbers in BF16's normal range, whose spacing is 2^-7 of their power of two. */
static inline double round_bf16(double x) {
  int e;
  if (x == 0) return x;
  frexp(x, &e);
  return ldexp(nearbyint(ldexp(x, 8 - e)), e - 8);
}
static inline double get(GemmType t, const void *p, int64_t i) {
  if (t == GEMM_F64) return ((const double *)p)[i];
  if (t == GEMM_F32) return (double)((const float *)p)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return (double)f;
}
static inline void put(GemmType t, void *p, int64_t i, double x) {
  float f = (float)(t == GEMM_BF16 && isfinite(x) ? round_bf16(x) : x);
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (t == GEMM_F64) ((double *)p)[i] = x;
  else if (t == GEMM_F32) ((float *)p)[i] = f;
  else ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}
static inline double fused(GemmType t, double a, double b, double c) {
  return t == GEMM_F64 ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
}
static inline double sum2(GemmType t, double a, double b) { return t == GEMM_F64 ? a + b : (double)((float)a + (float)b); }

static inline void fill_random(GemmType t, void *p, int64_t n, uint64_t stream) {
  RngKey key = { .seed = 5, .stream = stream, .purpose = RNG_TEST };
  for (int64_t i = 0; i < n; i++) put(t, p, i, rng_uniform(key, (uint64_t)i) * 2 - 1);
}

static inline Buffer random_buffer(Arena *a, GemmType t, int64_t n, uint64_t stream) {
  Buffer b = buffer_new(a, (size_t)n * type_size(t));
  fill_random(t, b.p, n, stream);
  return b;
}

static inline Gemm *open_gemm(const char *provider, int threads) {
  char why[256] = "";
  Gemm *g = gemm_open(provider, threads, why, sizeof why);
  if (!g) fail_msg("%s", why);
  return g;
}
#endif
