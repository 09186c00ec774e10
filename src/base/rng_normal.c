/* Normal numbers by the block: Box-Muller with a logarithm and a cosine of its own, made of IEEE operations alone and compiled without contraction,
 * so that the bits of initial weights depend neither on the C library nor on how wide vectors are. */
#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "base/rng.h"

enum { BLOCK = 256 };

static double from_bits(uint64_t b) {
  double d;
  memcpy(&d, &b, sizeof d);
  return d;
}
static uint64_t to_bits(double d) {
  uint64_t b;
  memcpy(&b, &d, sizeof b);
  return b;
}

/* x <= 2^53, exactly: its halves in the low bits of 2^84 and 2^52. */
static double from_integer(uint64_t x) {
  return (from_bits((x >> 32) | 0x4530000000000000u) - 0x1.00000001p84) + from_bits((x & 0xffffffffu) | 0x4330000000000000u);
}

/* Of 0 < u <= 1, not subnormal: u = 2^e m, m from sqrt(1/2) to sqrt(2); ln m = 2 artanh((m - 1) / (m + 1)). */
static double logarithm(double u) {
  static const uint64_t ROOT = 0x3fe6a09e667f3bcdu; /* bits of sqrt(1/2) */
  uint64_t b = to_bits(u) - ROOT;
  double e = from_bits((((b >> 52) + 2048) & 4095) | 0x4330000000000000u) - (0x1p52 + 2048), m = from_bits((b & 0xfffffffffffffu) + ROOT);
  double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1;
  return e * M_LN2 + 2 * s * p;
}

/* cos(2 pi v), 0 <= v < 1: v = n / 4 + r, |r| <= 1/8; the cosine or sine of 2 pi r by its series, with the sign of the quarter. */
static double cosine_of_turns(double v) {
  static const double ROUND = 0x1.8p52; /* adding it leaves the nearest integer in the low bits */
  double shifted = 4 * v + ROUND, x = (v - 0.25 * (shifted - ROUND)) * (2 * M_PI), z = x * x;
  uint64_t n = to_bits(shifted);
  double c = 1.0 / 20922789888000, s = 1.0 / 355687428096000; /* 1/16!, 1/17! */
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = c * z + 1;
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = (s * z + 1) * x;
  uint64_t odd = 0 - (n & 1), negative = ((n + 1) & 2) << 62;
  return from_bits(((to_bits(c) & ~odd) | (to_bits(s) & odd)) ^ negative);
}

static void transform(const uint64_t *restrict u, const uint64_t *restrict v, int n, double *restrict out) {
  for (int i = 0; i < n; i++) {
    double r = -2 * logarithm(from_integer((u[i] >> 11) + 1) * 0x1p-53); /* of (0, 1]: finite */
    out[i] = sqrt(r) * cosine_of_turns(from_integer(v[i] >> 11) * 0x1p-53);
  }
}

void rng_normals(RngKey k, uint64_t first, int64_t n, double *out) {
  uint64_t key = rng_key(k), u[BLOCK], v[BLOCK];
  for (int64_t at = 0; at < n; at += BLOCK) {
    int m = n - at < BLOCK ? (int)(n - at) : BLOCK;
    for (int i = 0; i < m; i++) {
      uint64_t index = first + (uint64_t)at + (uint64_t)i;
      uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)k.stream, (uint32_t)(k.stream >> 32)};
      philox(c, (uint32_t)key, (uint32_t)(key >> 32));
      u[i] = c[0] | (uint64_t)c[1] << 32;
      v[i] = c[2] | (uint64_t)c[3] << 32;
    }
    transform(u, v, m, out + at);
  }
}
