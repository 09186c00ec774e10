/* The element type of a kernel file. Every file of this folder but gemm*.c is compiled twice, with REAL_F32 or REAL_F64 defined by the
 * build; FN(name) gives the two copies different names. Not for files outside this folder.                                          */
#ifndef ETALON_REAL_H
#define ETALON_REAL_H
#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel.h"

#if defined(REAL_F32) == defined(REAL_F64)
#error "define exactly one of REAL_F32 and REAL_F64"
#endif

#ifdef REAL_F32
typedef float    real;
typedef int32_t  real_int;              /* integers as wide as a real: bits, masks, vector lanes */
typedef uint32_t real_uint;
#define FN(name) name##_f32
#define R(x) x##f                       /* literals: R(0.5) */
#define REAL_IS_F64 false
#define REAL_NAME "f32"
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
#define FN(name) name##_f64
#define R(x) x
#define REAL_IS_F64 true
#define REAL_NAME "f64"
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

static inline real_uint real_bits(real x) { union { real r; real_uint u; } v = { .r = x }; return v.u; }
static inline real      real_from_bits(real_uint u) { union { real_uint u; real r; } v = { .u = u }; return v.r; }
#endif
