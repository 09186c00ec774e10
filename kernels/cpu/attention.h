/* What attention's forward and backward share: blocks of positions, packed copies, and one register-blocked product on tiles. */
#ifndef ETALON_ATTENTION_H
#define ETALON_ATTENTION_H
#include <string.h>
#include "cpu_kernels.h"

/* A tile is 16 registers of 512 bits. Rows of 32 elements: gcc takes loops of up to 16 apart before it vectorises, and then does not. */
enum { B = ATTN_BLOCK, TILE_M = REAL_IS_F64 ? 4 : 8, TILE_N = 32 };

/* Bytes of workspace of each direction; of the bounds only n_token, n_seq and n_window are read. */
size_t FN(attention_fwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv);
size_t FN(attention_bwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv, AttnPass pass);

static inline int64_t attn_pad(int64_t D) { return (D + TILE_N - 1) / TILE_N * TILE_N; }

/* A run of adjacent positions inside an aligned block of ATTN_BLOCK positions of one sequence: rows row .. row + n_row - 1 of the
 * block are here, from `token` on. Rows that are not here are computed as zeros and never stored, so a row has the bits that it has in
 * a full block. */
typedef struct AttnBlock {
  int64_t token, row, n_row, position /* of row 0 of the aligned block */;
  int64_t first, end; /* blocks of the same sequence in the view of the other side */
} AttnBlock;

/* Most blocks of a view: a run has at most two incomplete ones, and a window is one run or a part of one. */
static inline int64_t attn_block_bound(const TokenView *v) {
  int64_t n = v->n_token / B + 2 * ((int64_t)v->n_window + v->n_seq);
  return n < v->n_token ? n : v->n_token;
}
/* The same of the side that is whole, unless parts meet. */
static inline int64_t attn_whole_bound(const AttnArgs *a, const TokenView *v) {
  return a->part ? attn_block_bound(v) : v->n_token / B + v->n_seq;
}
static inline size_t attn_block_bytes(int64_t n) { return ((size_t)n * sizeof(AttnBlock) + 63) / 64 * 64; }

static inline int64_t attn_blocks(AttnBlock *b, const TokenView *v) {
  int64_t n = 0;
  for (int s = 0; s < v->n_seq; s++)
    for (int64_t t = v->seq_start[s], end = v->seq_start[s + 1]; t < end; t += b[n++].n_row) {
      int64_t p = v->position[t], row = p % B, k = 1;
      while (t + k < end && row + k < B && v->position[t + k] == p + k) k++;
      b[n] = (AttnBlock){.token = t, .row = row, .n_row = k, .position = p - row};
    }
  return n;
}
/* Tells the n blocks of v where their sequences are among those of the other side. */
static inline void attn_meet(AttnBlock *b, int64_t n, const TokenView *v, const AttnBlock *other, int64_t n_other, const TokenView *ov) {
  int64_t i = 0, first = 0, end = 0;
  for (int s = 0; s < v->n_seq; s++, first = end) {
    while (end < n_other && other[end].token < ov->seq_start[s + 1]) end++;
    for (; i < n && b[i].token < v->seq_start[s + 1]; i++) b[i].first = first, b[i].end = end;
  }
}
/* The first of blocks [first, end) of one sequence that begins at this position or behind it; end: none. */
static inline int64_t attn_from(const AttnBlock *b, int64_t first, int64_t end, int64_t position) {
  while (first < end) {
    int64_t mid = first + (end - first) / 2;
    if (b[mid].position < position)
      first = mid + 1;
    else
      end = mid;
  }
  return first;
}
static inline int64_t attn_tile_begin(const AttnBlock *b) { return b->row / TILE_M * TILE_M; }
static inline int64_t attn_row_end(const AttnBlock *b) { return b->row + b->n_row; }
static inline bool attn_has_row(const AttnBlock *b, int64_t r) { return r >= b->row && r < b->row + b->n_row; }

/* First position that row r of a query block sees, not below 0; a row that is not here: that of a single document. */
static inline int64_t attn_first_seen(const TokenView *qv, const AttnBlock *qb, int64_t r, int64_t window) {
  int64_t doc = qv->doc_start && attn_has_row(qb, r) ? qv->doc_start[qb->token + r - qb->row] : 0;
  int64_t lo = window ? qb->position + r - window + 1 : 0;
  return lo > doc ? lo : doc;
}
/* Where the first key block that a query block sees begins: that of its first row. */
static inline int64_t attn_first_key_block(const TokenView *qv, const AttnBlock *qb, int64_t window) {
  return attn_first_seen(qv, qb, qb->row, window) / B * B;
}
/* Rows of an aligned key block that begins at position p0, up to position p: below attn_hi. */
static inline int64_t attn_clip(int64_t x) { return x < 0 ? 0 : x > B ? B : x; }
static inline int64_t attn_hi(int64_t p, int64_t p0) { return attn_clip(p - p0 + 1); }
/* Of those rows, the ones that are here and that a query at position p sees, from position `first` on: [lo, hi), empty where hi <= lo. */
typedef struct AttnSeen { int64_t lo, hi; } AttnSeen;
static inline AttnSeen attn_seen(int64_t first, int64_t p, const AttnBlock *kb) {
  int64_t lo = attn_clip(first - kb->position), hi = attn_hi(p, kb->position);
  return (AttnSeen){lo > kb->row ? lo : kb->row, hi < attn_row_end(kb) ? hi : attn_row_end(kb)};
}

/* Where a head lies in a shard-major value: element of token 0, and elements from token to token. */
typedef struct AttnHead { int64_t at, stride; } AttnHead;
static inline AttnHead attn_head(const Shards *s, int64_t head, int64_t T) {
  int i = shard_find(s, head * s->unit);
  return (AttnHead){shard_local(s, i) * T + head * s->unit - shard_begin(s, i), shard_width(s, i)};
}

/* Rows of a block into a dense, zero-padded [ATTN_BLOCK][width]; x: the block's first token. */
static inline void attn_pack(real *restrict out, int64_t width, const act *restrict x, int64_t stride, const AttnBlock *b, int64_t D) {
  memset(out, 0, (size_t)(b->row * width) * sizeof(real));
  for (int64_t r = b->row; r < attn_row_end(b); r++, x += stride) {
    act_widen(out + r * width, x, D);
    memset(out + r * width + D, 0, (size_t)(width - D) * sizeof(real));
  }
  memset(out + attn_row_end(b) * width, 0, (size_t)((B - attn_row_end(b)) * width) * sizeof(real));
}

/* The same, transposed: [D][ATTN_BLOCK]. */
static inline void attn_pack_transposed(real *restrict out, const act *restrict x, int64_t stride, const AttnBlock *b, int64_t D) {
  enum { STEP = 16 };
  int64_t rows = b->n_row;
  if (rows < B) memset(out, 0, (size_t)(D * B) * sizeof(real));
  for (int64_t d = 0; d < D; d += STEP) {
    int64_t n = D - d < STEP ? D - d : STEP;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < n; i++) out[(d + i) * B + b->row + r] = act_load(x[r * stride + d + i]);
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
#pragma omp simd
      for (int j = 0; j < TILE_N; j++) acc[i][j] = REAL_FMA(a[i * ai + k * ak], b[k * ldb + j], acc[i][j]);
  for (int i = 0; i < TILE_M; i++)
    for (int j = 0; j < TILE_N; j++) c[i * ldc + j] = acc[i][j];
}
#endif
