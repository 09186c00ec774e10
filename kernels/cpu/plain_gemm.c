/* The plain GEMM provider: blocks of A and B are packed into panels, a register block of MR x NR elements of C runs over them
 * (Goto & van de Geijn 2008). Edges are packed with zeros and go through the same register block.                        */
#include "gemm_provider.h"
#include "real.h"
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* Width of a vector, and rows of the register block: as many accumulators as the registers hold. */
#if defined(__AVX512F__)
enum { VEC_BYTES = 64, MR = 8 };
#elif defined(__AVX2__)
enum { VEC_BYTES = 32, MR = 6 };
#else
enum { VEC_BYTES = 16, MR = 4 };
#endif
enum { LANES = VEC_BYTES / (int)sizeof(real), NR = 2 * LANES, KC = 256, MC = 16 * MR, NC = 512 };
typedef real Vec __attribute__((vector_size(VEC_BYTES)));
typedef real VecU __attribute__((vector_size(VEC_BYTES), aligned(REAL_BITS / 8)));
typedef real_int Mask __attribute__((vector_size(VEC_BYTES)));
#ifdef REAL_BF16
typedef uint16_t Half __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));
static inline Vec vec_load(const act *p) { return (Vec)(__builtin_convertvector(*(const Half *)p, Mask) << 16); }
#else
static inline Vec vec_load(const act *p) { return *(const VecU *)p; }
#endif

static int at_most(int a, int b) { return a < b ? a : b; }
static int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

/* x b + c in every lane, one rounding. Compilers find the vector instruction in the loop on some days only, hence the builtins. */
#if defined(__AVX512F__) && defined(REAL_F32)
static inline Vec vec_fma(real x, Vec b, Vec c) { return _mm512_fmadd_ps(_mm512_set1_ps(x), b, c); }
#elif defined(__AVX512F__)
static inline Vec vec_fma(real x, Vec b, Vec c) { return _mm512_fmadd_pd(_mm512_set1_pd(x), b, c); }
#elif defined(__AVX2__) && defined(__FMA__) && defined(REAL_F32)
static inline Vec vec_fma(real x, Vec b, Vec c) { return _mm256_fmadd_ps(_mm256_set1_ps(x), b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
static inline Vec vec_fma(real x, Vec b, Vec c) { return _mm256_fmadd_pd(_mm256_set1_pd(x), b, c); }
#else
static inline Vec vec_fma(real x, Vec b, Vec c) {
  Vec r = c;
  for (int l = 0; l < LANES; l++) r[l] = REAL_FMA(x, b[l], c[l]);
  return r;
}
#endif

/* One stage of a butterfly transpose: exchanges the off-diagonal blocks of s x s elements. */
static inline __attribute__((always_inline)) void swap_blocks(Vec v[LANES], int s) {
  Mask lo, hi;
#pragma GCC unroll 16
  for (int l = 0; l < LANES; l++) {
    lo[l] = (l & s) ? LANES + l - s : l;
    hi[l] = (l & s) ? LANES + l : l + s;
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    if (i & s) continue;
    Vec a = v[i], b = v[i + s];
    v[i] = __builtin_shuffle(a, b, lo);
    v[i + s] = __builtin_shuffle(a, b, hi);
  }
}

/* out[k * ld_out + i] = in[i * ld_in + k], i, k < LANES */
static void transpose_block(real *out, int ld_out, const act *in, int ld_in) {
  Vec v[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) v[i] = vec_load(in + (int64_t)i * ld_in);
  if (LANES > 1) swap_blocks(v, 1);
  if (LANES > 2) swap_blocks(v, 2);
  if (LANES > 4) swap_blocks(v, 4);
  if (LANES > 8) swap_blocks(v, 8);
#pragma GCC unroll 16
  for (int k = 0; k < LANES; k++) *(VecU *)(out + (int64_t)k * ld_out) = v[k];
}

/* A panel holds `width` lines side by side: out[k * width + i] = line i, element k; lines n .. width-1 are zeros. */
static void pack_lines(real *out, int width, const act *in, int ld, int n, int depth) {
  int i0 = 0;
  for (; i0 + LANES <= n; i0 += LANES) {
    int k = 0;
    for (; k + LANES <= depth; k += LANES) transpose_block(out + (int64_t)k * width + i0, width, in + (int64_t)i0 * ld + k, ld);
    for (; k < depth; k++)
      for (int i = i0; i < i0 + LANES; i++) out[(int64_t)k * width + i] = act_load(in[(int64_t)i * ld + k]);
  }
  for (; i0 < width; i0++)
    for (int k = 0; k < depth; k++) out[(int64_t)k * width + i0] = i0 < n ? act_load(in[(int64_t)i0 * ld + k]) : 0;
}

/* The same where element k of all lines lies in one row: in[k * ld + i]. */
static void pack_rows(real *out, int width, const act *in, int ld, int n, int depth) {
  for (int k = 0; k < depth; k++, out += width, in += ld) {
    for (int i = 0; i < n; i++) out[i] = act_load(in[i]);
    for (int i = n; i < width; i++) out[i] = 0;
  }
}

/* Full panels have constant bounds, so that the copies become vector moves. */
static void pack(real *out, int width, const act *in, int ld, bool by_rows, int n, int depth) {
  for (int i = 0; i < n; i += width) {
    const act *p = in + (by_rows ? i : (int64_t)i * ld);
    int m = at_most(width, n - i);
    if (!by_rows)
      pack_lines(out, width, p, ld, m, depth);
    else if (m == NR && width == NR)
      pack_rows(out, NR, p, ld, NR, depth);
    else if (m == MR && width == MR)
      pack_rows(out, MR, p, ld, MR, depth);
    else
      pack_rows(out, width, p, ld, m, depth);
    out += (int64_t)width * depth;
  }
}

/* c [MR, NR] = (from_c ? c : 0) + a b over depth k */
static void register_block(int depth, const real *restrict a, const real *restrict b, real *restrict c, int ldc, bool from_c) {
  Vec v[MR][2];
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) v[i][0] = v[i][1] = (Vec){0};
  if (from_c) {
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) v[i][0] = *(const VecU *)(c + (int64_t)i * ldc), v[i][1] = *(const VecU *)(c + (int64_t)i * ldc + LANES);
  }
  for (int k = 0; k < depth; k++, a += MR, b += NR) {
    Vec b0 = *(const Vec *)b, b1 = *(const Vec *)(b + LANES);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) v[i][0] = vec_fma(a[i], b0, v[i][0]), v[i][1] = vec_fma(a[i], b1, v[i][1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) *(VecU *)(c + (int64_t)i * ldc) = v[i][0], *(VecU *)(c + (int64_t)i * ldc + LANES) = v[i][1];
}

static void edge_block(int depth, const real *a, const real *b, real *c, int ldc, bool from_c, int m, int n) {
  real t[MR * NR] __attribute__((aligned(VEC_BYTES))) = {0};
  for (int i = 0; i < m && from_c; i++)
    for (int j = 0; j < n; j++) t[i * NR + j] = c[(int64_t)i * ldc + j];
  register_block(depth, a, b, t, NR, from_c);
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) c[(int64_t)i * ldc + j] = t[i * NR + j];
}

static void panels(int m, int n, int depth, const real *a, const real *b, real *c, int ldc, bool from_c) {
  for (int j = 0; j < n; j += NR)
    for (int i = 0; i < m; i += MR) {
      const real *pa = a + (int64_t)i * depth, *pb = b + (int64_t)j * depth;
      real *pc = c + (int64_t)i * ldc + j;
      if (i + MR <= m && j + NR <= n)
        register_block(depth, pa, pb, pc, ldc, from_c);
      else
        edge_block(depth, pa, pb, pc, ldc, from_c, at_most(MR, m - i), at_most(NR, n - j));
    }
}

static size_t packed_a(const GemmShape *s) { return (size_t)round_up(at_most(s->M, MC), MR) * (size_t)at_most(s->K, KC) * sizeof(real); }
static size_t packed_b(const GemmShape *s) { return (size_t)round_up(at_most(s->N, NC), NR) * (size_t)at_most(s->K, KC) * sizeof(real); }

size_t FN(plain_gemm_scratch)(const GemmShape *s) { return packed_b(s) + packed_a(s); }

void FN(plain_gemm)(const GemmShape *s, const void *A, const void *B, void *C, void *scratch) {
  const act *a = A, *b = B;
  real *c = C, *pb = scratch, *pa = pb + packed_b(s) / sizeof(real);
  for (int k0 = 0; k0 < s->K; k0 += KC) {
    int kc = at_most(KC, s->K - k0);
    bool from_c = s->accumulate || k0 > 0;
    for (int j0 = 0; j0 < s->N; j0 += NC) {
      int nc = at_most(NC, s->N - j0);
      const act *b0 = s->trans_b ? b + (int64_t)j0 * s->ldb + k0 : b + (int64_t)k0 * s->ldb + j0;
      pack(pb, NR, b0, s->ldb, !s->trans_b, nc, kc);
      for (int i0 = 0; i0 < s->M; i0 += MC) {
        int mc = at_most(MC, s->M - i0);
        const act *a0 = s->trans_a ? a + (int64_t)k0 * s->lda + i0 : a + (int64_t)i0 * s->lda + k0;
        pack(pa, MR, a0, s->lda, s->trans_a, mc, kc);
        panels(mc, nc, kc, pa, pb, c + (int64_t)i0 * s->ldc + j0, s->ldc, from_c);
      }
    }
  }
}
