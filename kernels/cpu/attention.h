/* What attention's forward and backward share: blocks of positions, packed copies, and one register-blocked product on tiles. */
#ifndef ETALON_ATTENTION_H
#define ETALON_ATTENTION_H
#include <string.h>
#include "cpu_kernels.h"

/* A tile is 16 registers of 512 bits. Rows of 32 elements: gcc takes loops of up to 16 apart before it vectorises, and then does not. */
enum { B = ATTN_BLOCK, TILE_M = REAL_IS_F64 ? 4 : 8, TILE_N = 32 };

/* Bytes of workspace of each direction; of `bound` only n_token and n_seq are read. */
size_t FN(attention_fwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *bound);
size_t FN(attention_bwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *bound);

static inline int64_t attn_pad(int64_t D) { return (D + TILE_N - 1) / TILE_N * TILE_N; }

/* One block of positions of one sequence: up to ATTN_BLOCK tokens from `token`. */
typedef struct AttnBlock { int64_t token, rows, position; int64_t first; /* number of the block that begins the sequence */ } AttnBlock;

/* Most blocks there can be, an even number: what follows them in the workspace stays on a cache line. */
static inline int64_t attn_block_bound(const TokenView *tv) { return (tv->n_token / B + tv->n_seq + 1) / 2 * 2; }
_Static_assert(2 * sizeof(AttnBlock) % 64 == 0, "alignment of the workspace");

static inline int64_t attn_blocks(AttnBlock *b, const TokenView *tv) {
  int64_t n = 0;
  for (int s = 0; s < tv->n_seq; s++) {
    int64_t first = n, end = tv->seq_start[s + 1];
    for (int64_t t = tv->seq_start[s]; t < end; t += B)
      b[n++] = (AttnBlock){.token = t, .rows = end - t < B ? end - t : B, .position = tv->position[t], .first = first};
  }
  return n;
}

/* Keys that a query at position p sees among those of a block that begins at position p0: [lo, hi). */
static inline int64_t attn_lo(int64_t p, int64_t p0, int64_t window) {
  int64_t lo = window ? p - window + 1 - p0 : 0;
  return lo < 0 ? 0 : lo > B ? B : lo;
}
static inline int64_t attn_hi(int64_t p, int64_t p0) {
  int64_t hi = p - p0 + 1;
  return hi < 0 ? 0 : hi > B ? B : hi;
}
/* First key block of a query block: the block that holds the first key of its first row. */
static inline int64_t attn_first_key_block(const AttnBlock *b, int64_t query, int64_t window) {
  int64_t back = window ? (window - 1 + B - 1) / B : query;
  return query - back < b[query].first ? b[query].first : query - back;
}

/* Where a head lies in a shard-major value: element of token 0, and elements from token to token. */
typedef struct AttnHead { int64_t at, stride; } AttnHead;
static inline AttnHead attn_head(const Shards *s, int64_t head, int64_t T) {
  int i = shard_find(s, head * s->unit);
  return (AttnHead){shard_local(s, i) * T + head * s->unit - shard_begin(s, i), shard_width(s, i)};
}

/* Rows of a block into a dense, zero-padded [ATTN_BLOCK][width]. */
static inline void attn_pack(real *restrict out, int64_t width, const real *restrict x, int64_t stride, int64_t rows, int64_t D) {
  for (int64_t r = 0; r < rows; r++) {
    memcpy(out + r * width, x + r * stride, (size_t)D * sizeof(real));
    memset(out + r * width + D, 0, (size_t)(width - D) * sizeof(real));
  }
  memset(out + rows * width, 0, (size_t)((B - rows) * width) * sizeof(real));
}

/* The same, transposed: [D][ATTN_BLOCK]. */
static inline void attn_pack_transposed(real *restrict out, const real *restrict x, int64_t stride, int64_t rows, int64_t D) {
  enum { STEP = 16 };
  for (int64_t d = 0; d < D; d += STEP) {
    int64_t n = D - d < STEP ? D - d : STEP;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < n; i++) out[(d + i) * B + r] = x[r * stride + d + i];
    for (int64_t i = 0; i < n; i++) memset(out + (d + i) * B + rows, 0, (size_t)(B - rows) * sizeof(real));
  }
}

/* c[TILE_M][TILE_N] = keep[i] c + sum over k0 <= k < k1 of a[i, k] b[k, :], in ascending k; a element (i, k) at a[i * ai + k * ak].
 * Every element has its own chain of fused multiply-adds, so it depends on its row of a and its column of b alone.      */
typedef enum { TILE_SET, TILE_ADD, TILE_RESCALE } TileMode;
static inline __attribute__((always_inline)) void attn_tile(TileMode mode, real *restrict c, int64_t ldc, const real *restrict keep,
                                                            const real *restrict a, int64_t ai, int64_t ak, const real *restrict b,
                                                            int64_t ldb, int64_t k0, int64_t k1) {
  real acc[TILE_M][TILE_N];
  for (int i = 0; i < TILE_M; i++)
    for (int j = 0; j < TILE_N; j++) acc[i][j] = mode == TILE_SET ? R(0.0) : mode == TILE_ADD ? c[i * ldc + j] : c[i * ldc + j] * keep[i];
  for (int64_t k = k0; k < k1; k++)
    for (int i = 0; i < TILE_M; i++)
      for (int j = 0; j < TILE_N; j++) acc[i][j] = REAL_FMA(a[i * ai + k * ak], b[k * ldb + j], acc[i][j]);
  for (int i = 0; i < TILE_M; i++)
    for (int j = 0; j < TILE_N; j++) c[i * ldc + j] = acc[i][j];
}
#endif
