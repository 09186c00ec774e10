/* The element types of a kernel file: `real` is what is computed in and what sums are kept in, `act` what activations, weights of products and
 * the gradients that enter products are stored in (kernel.h says which argument is which). Every file of this folder but gemm*.c is compiled
 * three times, with REAL_F32, REAL_F64 (act is real) or REAL_BF16 (act is BF16, real is float) defined by the build; FN(name) gives the copies
 * different names. act_load and act_store are the only places where values are rounded to act. Not for files outside this folder.        */
#ifndef ETALON_REAL_H
#define ETALON_REAL_H
#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel.h"

#if defined(REAL_F32) + defined(REAL_F64) + defined(REAL_BF16) != 1
#error "define exactly one of REAL_F32, REAL_F64 and REAL_BF16"
#endif
#ifdef REAL_BF16
#define REAL_F32                        /* computes in float */
#endif

#ifdef REAL_F32
typedef float    real;
typedef int32_t  real_int;              /* integers as wide as a real: bits, masks, vector lanes */
typedef uint32_t real_uint;
#define R(x) x##f                       /* literals: R(0.5) */
#define REAL_IS_F64 false
#define REAL_BITS 32
#define REAL_MANTISSA 23                /* stored bits of the fraction */
#define REAL_BIAS 127                   /* of the exponent */
#define REAL_LANES 16                   /* of a 512-bit vector */
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN                /* smallest normal number */
#define REAL_EPS FLT_EPSILON
#define REAL_FMA(a, b, c) __builtin_fmaf((a), (b), (c))   /* a b + c with one rounding */
#define REAL_SQRT(x) __builtin_sqrtf(x)
#define REAL_ABS(x) __builtin_fabsf(x)
#else
typedef double   real;
typedef int64_t  real_int;
typedef uint64_t real_uint;
#define R(x) x
#define REAL_IS_F64 true
#define REAL_BITS 64
#define REAL_MANTISSA 52
#define REAL_BIAS 1023
#define REAL_LANES 8
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#define REAL_EPS DBL_EPSILON
#define REAL_FMA(a, b, c) __builtin_fma((a), (b), (c))
#define REAL_SQRT(x) __builtin_sqrt(x)
#define REAL_ABS(x) __builtin_fabs(x)
#endif

_Static_assert(sizeof(real) == sizeof(real_int) && sizeof(real) * 8 == REAL_BITS, "width of real");

#if defined(REAL_BF16)
typedef uint16_t act, act_uint;
#define FN(name) name##_bf16
#define REAL_NAME "bf16"
#define ACT_IS_REAL false
#define ACT_GEMM GEMM_BF16
#elif defined(REAL_F32)
typedef real      act;
typedef real_uint act_uint;
#define FN(name) name##_f32
#define REAL_NAME "f32"
#define ACT_IS_REAL true
#define ACT_GEMM GEMM_F32
#else
typedef real      act;
typedef real_uint act_uint;
#define FN(name) name##_f64
#define REAL_NAME "f64"
#define ACT_IS_REAL true
#define ACT_GEMM GEMM_F64
#endif

static inline real_uint real_bits(real x) { union { real r; real_uint u; } v = { .r = x }; return v.u; }
static inline real      real_from_bits(real_uint u) { union { real_uint u; real r; } v = { .u = u }; return v.r; }

#ifdef REAL_BF16
static inline real act_load(act x) { return real_from_bits((real_uint)x << 16); }
/* To the nearest, ties to even; beyond the range to infinity; NaN stays NaN. Integer arithmetic, so that denormal numbers are kept and every
 * compiler gives the same bits.                                                                                                       */
static inline act act_store(real x) {
  real_uint u = real_bits(x), nearest = u + 0x7fffu + (u >> 16 & 1u), quiet = u | 0x400000u;
  return (act)(((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest) >> 16);
}
#else
static inline real act_load(act x) { return x; }
static inline act  act_store(real x) { return x; }
#endif

/* Rows from one type to the other. */
static inline void act_widen(real *restrict out, const act *restrict x, int64_t n) { for (int64_t i = 0; i < n; i++) out[i] = act_load(x[i]); }
static inline void act_narrow(act *restrict out, const real *restrict x, int64_t n) { for (int64_t i = 0; i < n; i++) out[i] = act_store(x[i]); }
#endif
