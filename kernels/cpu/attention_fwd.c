/* Causal attention forward by blocks with a running (max, sum) (Dao et al. 2022). A task is one (query head, query block) and owns what it
 * writes. */
#include "attention.h"
#include "lanes.h"
#include <omp.h>

/* Workspace: the blocks, all keys transposed (once, for all query heads of a group), then one area per thread. */
typedef struct FwdShared {
  AttnBlock *block;
  int64_t n_block;
  real *keys; /* [kv head][block][D][B] */
} FwdShared;
typedef struct FwdThread {
  real *q, *v, *o; /* [B][Dp] */
  real *sum;       /* [B][LANES] running sums of exponentials, by lane of the key */
  real *max;       /* [B] running */
  real *p, *keep;  /* [TILE_M][B], [TILE_M] */
} FwdThread;

static size_t fwd_thread_size(int64_t D) { return (size_t)(B * (3 * attn_pad(D) + LANES + 1) + TILE_M * (B + 2)); }

size_t FN(attention_fwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *bound) {
  int64_t blocks = attn_block_bound(bound), kv_heads = shard_total(&a->kv) / a->kv.unit;
  size_t keys = (size_t)(kv_heads * blocks * a->head_dim * B);
  return (size_t)blocks * sizeof(AttnBlock) + (keys + (size_t)c->threads * fwd_thread_size(a->head_dim)) * sizeof(real);
}

static FwdShared fwd_shared(const KCtx *c, const TokenView *tv) {
  FwdShared s = {.block = c->work};
  s.n_block = attn_blocks(s.block, tv);
  s.keys = (real *)(s.block + attn_block_bound(tv));
  return s;
}

static FwdThread fwd_thread(real *at, int64_t D) {
  int64_t Dp = attn_pad(D);
  FwdThread t;
  t.q = at, t.v = t.q + B * Dp, t.o = t.v + B * Dp, t.sum = t.o + B * Dp;
  t.p = t.sum + B * LANES, t.max = t.p + TILE_M * B, t.keep = t.max + B;
  return t;
}

static void fwd_pack_keys(const FwdShared *s, const real *k, const AttnArgs *a, int64_t T, int64_t task) {
  int64_t D = a->head_dim, head = shard_begin(&a->kv, a->kv.first) / D + task / s->n_block;
  const AttnBlock *b = &s->block[task % s->n_block];
  AttnHead h = attn_head(&a->kv, head, T);
  attn_pack_transposed(s->keys + task * D * B, k + h.at + b->token * h.stride, h.stride, b->rows, D);
}

/* Scores of one row, scaled, -inf where the query does not look; returns the largest. */
static inline real fwd_row_mask(real *restrict p, int64_t lo, int64_t hi, real scale) {
  if (lo == 0 && hi == B)
    for (int j = 0; j < B; j++) p[j] *= scale;
  else
    for (int j = 0; j < B; j++) p[j] = j >= lo && j < hi ? p[j] * scale : -REAL_INF;
  real v[LANES];
  for (int l = 0; l < LANES; l++) v[l] = p[l + LANES] > p[l] ? p[l + LANES] : p[l];
  return lanes_max(v);
}

/* Scores of a tile to exponentials. keep: what the rows' earlier sums must be multiplied by. A row that has seen no key yet stays at 0. */
static inline void fwd_tile_softmax(FwdThread *w, int64_t r, const AttnBlock *qb, const AttnBlock *kb, const AttnArgs *a) {
  real *max = w->max + r, top[TILE_M], shift[TILE_M];
  for (int64_t i = 0; i < TILE_M; i++) {
    int64_t p = qb->position + r + i;
    top[i] = fwd_row_mask(w->p + i * B, attn_lo(p, kb->position, a->window), attn_hi(p, kb->position), (real)a->scale);
  }
  for (int i = 0; i < TILE_M; i++) {
    top[i] = top[i] > max[i] ? top[i] : max[i];
    shift[i] = top[i] == -REAL_INF ? R(0.0) : top[i];
    w->keep[i] = real_exp_low(max[i] - shift[i]);
    max[i] = top[i];
  }
  for (int i = 0; i < TILE_M; i++) {
    real *restrict p = w->p + i * B, *restrict sum = w->sum + (r + i) * LANES, keep = w->keep[i];
    for (int j = 0; j < B; j++) p[j] = real_exp_low(p[j] - shift[i]);
    for (int l = 0; l < LANES; l++) sum[l] = REAL_FMA(sum[l], keep, p[l] + p[l + LANES]);
  }
}

/* All rows of a query block against one key block. On the diagonal, keys above a tile's last row are left out. */
static void fwd_key_block(FwdThread *w, const real *keys, const AttnBlock *qb, const AttnBlock *kb, const AttnArgs *a) {
  int64_t D = a->head_dim, Dp = attn_pad(D);
  for (int64_t r = 0; r < qb->rows; r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position);
    for (int64_t j = 0; j < B; j += TILE_N)
      if (j < end) attn_tile(TILE_SET, w->p + j, B, NULL, w->q + r * Dp, Dp, 1, keys + j, B, 0, D);
    fwd_tile_softmax(w, r, qb, kb, a);
    for (int64_t d = 0; d < Dp; d += TILE_N) attn_tile(TILE_RESCALE, w->o + r * Dp + d, Dp, w->keep, w->p, B, 1, w->v + d, Dp, 0, end);
  }
}

static void fwd_finish(FwdThread *w, real *o, int64_t stride, real *lse, int64_t heads, const AttnBlock *qb, int64_t D) {
  int64_t Dp = attn_pad(D);
  for (int64_t r = 0; r < qb->rows; r++) {
    real sum = lanes_sum(w->sum + r * LANES);
    for (int64_t d = 0; d < D; d++) o[r * stride + d] = w->o[r * Dp + d] / sum;
    lse[r * heads] = w->max[r] + real_log(sum);
  }
}

typedef struct FwdArgs {
  real *o, *lse;
  const real *q, *k, *v;
  const AttnArgs *a;
  int64_t T, heads;
} FwdArgs;

static void fwd_task(const FwdArgs *x, const FwdShared *s, FwdThread *w, int64_t task) {
  const AttnArgs *a = x->a;
  int64_t D = a->head_dim, Dp = attn_pad(D), local = task / s->n_block, query = task % s->n_block;
  int64_t head = shard_begin(&a->q, a->q.first) / D + local, kv = head / (a->q.units / a->kv.units);
  int64_t kv_local = kv - shard_begin(&a->kv, a->kv.first) / D;
  const AttnBlock *qb = &s->block[query];
  AttnHead hq = attn_head(&a->q, head, x->T), hk = attn_head(&a->kv, kv, x->T);
  attn_pack(w->q, Dp, x->q + hq.at + qb->token * hq.stride, hq.stride, qb->rows, D);
  memset(w->o, 0, (size_t)(B * Dp) * sizeof(real));
  memset(w->sum, 0, (size_t)(B * LANES) * sizeof(real));
  for (int64_t r = 0; r < B; r++) w->max[r] = -REAL_INF;
  for (int64_t j = attn_first_key_block(s->block, query, a->window); j <= query; j++) {
    const AttnBlock *kb = &s->block[j];
    attn_pack(w->v, Dp, x->v + hk.at + kb->token * hk.stride, hk.stride, kb->rows, D);
    fwd_key_block(w, s->keys + (kv_local * s->n_block + j) * D * B, qb, kb, a);
  }
  fwd_finish(w, x->o + hq.at + qb->token * hq.stride, hq.stride, x->lse + qb->token * x->heads + local, x->heads, qb, D);
}

size_t FN(attention_work)(const KCtx *c, const AttnArgs *a, const TokenView *bound, bool backward) {
  return backward ? FN(attention_bwd_work)(c, a, bound) : FN(attention_fwd_work)(c, a, bound);
}

void FN(attention_fwd)(const KCtx *c, void *o, void *lse, const void *q, const void *k, const void *v, const AttnArgs *a,
                       const TokenView *tv) {
  int64_t D = a->head_dim, heads = shard_total(&a->q) / D, kv_heads = shard_total(&a->kv) / D;
  FwdShared s = fwd_shared(c, tv);
  FwdArgs x = {o, lse, q, k, v, a, tv->n_token, heads};
  real *areas = s.keys + kv_heads * s.n_block * D * B;
#pragma omp parallel num_threads(c->threads)
  {
    FwdThread w = fwd_thread(areas + (size_t)omp_get_thread_num() * fwd_thread_size(D), D);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < kv_heads * s.n_block; task++) fwd_pack_keys(&s, k, a, x.T, task);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * s.n_block; task++) fwd_task(&x, &s, &w, task);
  }
}
