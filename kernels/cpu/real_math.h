/* exp and log of the element type. Straight-line code with explicit fused multiply-adds: a loop over it vectorises, and vector bodies and
 * scalar tails give equal bits. Errors below 1.1 ulp (measured by the tests). NaN propagates, exp(-inf) = 0, log(0) = -inf.            */
#ifndef ETALON_REAL_MATH_H
#define ETALON_REAL_MATH_H
#include "real.h"

#define REAL_INF ((real)__builtin_inf())

/* exp(r) = 1 + r + r^2 q(r) on |r| <= ln(2)/2; q is a Chebyshev fit (float) or the Taylor series (double). */
static inline real real_exp_poly(real r) {
#ifdef REAL_F32
  real q = R(0.0013926278334110975);
  q = REAL_FMA(q, r, R(0.008363255299627781));
  q = REAL_FMA(q, r, R(0.04166655242443085));
  q = REAL_FMA(q, r, R(0.16666576266288757));
#else
  real q = R(1.0) / R(6227020800.0);
  q = REAL_FMA(q, r, R(1.0) / R(479001600.0));
  q = REAL_FMA(q, r, R(1.0) / R(39916800.0));
  q = REAL_FMA(q, r, R(1.0) / R(3628800.0));
  q = REAL_FMA(q, r, R(1.0) / R(362880.0));
  q = REAL_FMA(q, r, R(1.0) / R(40320.0));
  q = REAL_FMA(q, r, R(1.0) / R(5040.0));
  q = REAL_FMA(q, r, R(1.0) / R(720.0));
  q = REAL_FMA(q, r, R(1.0) / R(120.0));
  q = REAL_FMA(q, r, R(1.0) / R(24.0));
  q = REAL_FMA(q, r, R(1.0) / R(6.0));
#endif
  q = REAL_FMA(q, r, R(0.5));
  return R(1.0) + REAL_FMA(q, r * r, r);
}

#ifdef REAL_F32
#define REAL_LN2_HI R(0.693145751953125)            /* 16 bits: n * hi is exact */
#define REAL_LN2_LO R(1.42860682030941723212e-6)
#define REAL_EXP_MAX R(89.0)                        /* above: inf; below -REAL_EXP_MIN: 0 */
#define REAL_EXP_MIN R(104.5)
#define REAL_EXP_TINY R(-87.3)                      /* above log(REAL_MIN) */
#define REAL_ROUND R(12582912.0)                    /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
#else
#define REAL_LN2_HI R(0.693147180369123816490)
#define REAL_LN2_LO R(1.90821492927058770002e-10)
#define REAL_EXP_MAX R(710.0)
#define REAL_EXP_MIN R(746.0)
#define REAL_EXP_TINY R(-708.3)
#define REAL_ROUND R(6755399441055744.0)
#endif
#define REAL_LOG2E R(1.44269504088896340736)

static inline real real_exp(real x) {
  x = x > REAL_EXP_MAX ? REAL_EXP_MAX : x;
  x = x < -REAL_EXP_MIN ? -REAL_EXP_MIN : x;
  real z = REAL_FMA(x, REAL_LOG2E, REAL_ROUND);
  real n = z - REAL_ROUND;
  real r = REAL_FMA(-n, REAL_LN2_LO, REAL_FMA(-n, REAL_LN2_HI, x));
  real p = real_exp_poly(r);
  /* 2^n in two factors, so that results below the normal range round once */
  real_int i = (real_int)(real_bits(z) - real_bits(REAL_ROUND));
  real_int half = i >> 1;
  real a = real_from_bits((real_uint)(half + REAL_BIAS) << REAL_MANTISSA);
  real b = real_from_bits((real_uint)(i - half + REAL_BIAS) << REAL_MANTISSA);
  return p * a * b;
}

/* exp for x that is not far above 0 (softmax): cheaper, and results below the normal range are 0. */
static inline real real_exp_low(real x) {
  real z = REAL_FMA(x, REAL_LOG2E, REAL_ROUND);
  real n = z - REAL_ROUND;
  real r = REAL_FMA(-n, REAL_LN2_LO, REAL_FMA(-n, REAL_LN2_HI, x));
  real p = real_exp_poly(r) * real_from_bits((real_bits(z) << REAL_MANTISSA) + real_bits(R(1.0)));
  return x < REAL_EXP_TINY ? R(0.0) : p;
}

/* x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f):
 * log m = f - (f^2/2 - s (f^2/2 + R)), R = sum of 2 s^(2i) / (2i + 1), i >= 1. */
static inline real real_log(real x) {
  real scaled = x < REAL_MIN ? x * real_from_bits((real_uint)(REAL_MANTISSA + 1 + REAL_BIAS) << REAL_MANTISSA) : x;
  real_int shift = x < REAL_MIN ? REAL_MANTISSA + 1 : 0;
  real_uint root = real_bits(R(0.70710678118654752440));
  real_uint u = real_bits(scaled) - root;
  real_int k = (real_int)u >> REAL_MANTISSA;
  real m = real_from_bits((u & (((real_uint)1 << REAL_MANTISSA) - 1)) + root);
  real f = m - R(1.0), s = f / (R(2.0) + f), z = s * s, half = R(0.5) * f * f;
#ifdef REAL_F32
  real q = R(2.0) / R(11.0);
#else
  real q = R(2.0) / R(23.0);
  q = REAL_FMA(q, z, R(2.0) / R(21.0));
  q = REAL_FMA(q, z, R(2.0) / R(19.0));
  q = REAL_FMA(q, z, R(2.0) / R(17.0));
  q = REAL_FMA(q, z, R(2.0) / R(15.0));
  q = REAL_FMA(q, z, R(2.0) / R(13.0));
  q = REAL_FMA(q, z, R(2.0) / R(11.0));
#endif
  q = REAL_FMA(q, z, R(2.0) / R(9.0));
  q = REAL_FMA(q, z, R(2.0) / R(7.0));
  q = REAL_FMA(q, z, R(2.0) / R(5.0));
  q = REAL_FMA(q, z, R(2.0) / R(3.0));
  real n = (real)(k - shift);
  real y = REAL_FMA(n, REAL_LN2_HI, f - (half - REAL_FMA(s, half + q * z, n * REAL_LN2_LO)));
  y = x == REAL_INF ? x : y;
  y = x == R(0.0) ? -REAL_INF : y;
  return x < R(0.0) || x != x ? (real)__builtin_nan("") : y;
}
#endif
