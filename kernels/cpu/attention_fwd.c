/* Causal attention forward by blocks with a running (max, sum) (Dao et al. 2022). A task is one (query head, query block) and owns what it
 * writes. */
#include "attention.h"
#include "lanes.h"
#include <omp.h>

/* Workspace: the blocks of queries and keys, all keys transposed (once, for all query heads of a group), then one area per thread. */
typedef struct FwdArgs {
  void *o; /* as AttnArgs.part says */
  real *lse;
  const act *q, *k, *v;
  const AttnArgs *a;
  const TokenView *qv, *kv;
  int64_t heads, n_query, n_key;
  AttnBlock *query, *key;
  real *keys; /* [kv head][key block][D][B] */
} FwdArgs;
typedef struct FwdThread {
  real *q, *v, *o; /* [B][Dp] */
  real *sum;       /* [B][LANES] running sums of exponentials, by lane of the key */
  real *max;       /* [B] running */
  real *p, *keep;  /* [TILE_M][B], [TILE_M] */
} FwdThread;

static size_t fwd_thread_size(int64_t D) { return (size_t)(B * (3 * attn_pad(D) + LANES + 1) + TILE_M * (B + 2)); }

size_t FN(attention_fwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv) {
  int64_t blocks = attn_whole_bound(a, kv), kv_heads = shard_total(&a->kv) / a->kv.unit;
  size_t keys = (size_t)(kv_heads * blocks * a->head_dim * B);
  return attn_block_bytes(attn_block_bound(qv)) + attn_block_bytes(blocks) +
         (keys + (size_t)c->threads * fwd_thread_size(a->head_dim)) * sizeof(real);
}

static void fwd_open(FwdArgs *x, void *work) {
  x->query = work;
  x->n_query = attn_blocks(x->query, x->qv);
  x->key = (AttnBlock *)((char *)work + attn_block_bytes(x->n_query));
  x->n_key = attn_blocks(x->key, x->kv);
  attn_meet(x->query, x->n_query, x->qv, x->key, x->n_key, x->kv);
  x->keys = (real *)((char *)x->key + attn_block_bytes(x->n_key));
}

static FwdThread fwd_thread(real *at, int64_t D) {
  int64_t Dp = attn_pad(D);
  FwdThread t;
  t.q = at, t.v = t.q + B * Dp, t.o = t.v + B * Dp, t.sum = t.o + B * Dp;
  t.p = t.sum + B * LANES, t.max = t.p + TILE_M * B, t.keep = t.max + B;
  return t;
}

static void fwd_pack_keys(const FwdArgs *x, int64_t task) {
  int64_t D = x->a->head_dim, head = shard_begin(&x->a->kv, x->a->kv.first) / D + task / x->n_key;
  const AttnBlock *b = &x->key[task % x->n_key];
  AttnHead h = attn_head(&x->a->kv, head, x->kv->n_token);
  attn_pack_transposed(x->keys + task * D * B, x->k + h.at + b->token * h.stride, h.stride, b, D);
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
static inline void fwd_tile_softmax(const FwdArgs *x, FwdThread *w, int64_t r, const AttnBlock *qb, const AttnBlock *kb) {
  const AttnArgs *a = x->a;
  real *max = w->max + r, top[TILE_M], shift[TILE_M];
  for (int64_t i = 0; i < TILE_M; i++) {
    AttnSeen s = attn_seen(attn_first_seen(x->qv, qb, r + i, a->window), qb->position + r + i, kb);
    top[i] = fwd_row_mask(w->p + i * B, s.lo, s.hi, (real)a->scale);
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
static void fwd_key_block(const FwdArgs *x, FwdThread *w, const real *keys, const AttnBlock *qb, const AttnBlock *kb) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D);
  for (int64_t r = attn_tile_begin(qb); r < attn_row_end(qb); r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position);
    for (int64_t j = 0; j < B; j += TILE_N)
      if (j < end) attn_tile(TILE_SET, w->p + j, B, NULL, w->q + r * Dp, Dp, 1, keys + j, B, 0, D);
    fwd_tile_softmax(x, w, r, qb, kb);
    for (int64_t d = 0; d < Dp; d += TILE_N) attn_tile(TILE_RESCALE, w->o + r * Dp + d, Dp, w->keep, w->p, B, 1, w->v + d, Dp, 0, end);
  }
}

static void fwd_finish(FwdThread *w, act *o, int64_t stride, real *lse, int64_t heads, const AttnBlock *qb, int64_t D) {
  int64_t Dp = attn_pad(D);
  for (int64_t r = qb->row; r < attn_row_end(qb); r++, o += stride, lse += heads) {
    real sum = lanes_sum(w->sum + r * LANES);
    for (int64_t d = 0; d < D; d++) o[d] = act_store(w->o[r * Dp + d] / sum);
    *lse = w->max[r] + real_log(sum);
  }
}
/* The same of a part of the keys: not rounded, and a row may have seen none. */
static void fwd_finish_part(FwdThread *w, real *o, int64_t stride, real *lse, int64_t heads, const AttnBlock *qb, int64_t D) {
  int64_t Dp = attn_pad(D);
  for (int64_t r = qb->row; r < attn_row_end(qb); r++, o += stride, lse += heads) {
    real sum = lanes_sum(w->sum + r * LANES);
    bool none = w->max[r] == -REAL_INF;
    for (int64_t d = 0; d < D; d++) o[d] = none ? R(0.0) : w->o[r * Dp + d] / sum;
    *lse = none ? -REAL_INF : w->max[r] + real_log(sum);
  }
}

static void fwd_task(const FwdArgs *x, FwdThread *w, int64_t task) {
  const AttnArgs *a = x->a;
  int64_t D = a->head_dim, Dp = attn_pad(D), local = task / x->n_query;
  int64_t head = shard_begin(&a->q, a->q.first) / D + local, kv = head / (a->q.units / a->kv.units);
  int64_t kv_local = kv - shard_begin(&a->kv, a->kv.first) / D;
  const AttnBlock *qb = &x->query[task % x->n_query];
  AttnHead hq = attn_head(&a->q, head, x->qv->n_token), hk = attn_head(&a->kv, kv, x->kv->n_token);
  attn_pack(w->q, Dp, x->q + hq.at + qb->token * hq.stride, hq.stride, qb, D);
  memset(w->o, 0, (size_t)(B * Dp) * sizeof(real));
  memset(w->sum, 0, (size_t)(B * LANES) * sizeof(real));
  for (int64_t r = 0; r < B; r++) w->max[r] = -REAL_INF;
  for (int64_t j = attn_from(x->key, qb->first, qb->end, attn_first_key_block(x->qv, qb, a->window)); j < qb->end; j++) {
    const AttnBlock *kb = &x->key[j];
    if (kb->position > qb->position) break;
    attn_pack(w->v, Dp, x->v + hk.at + kb->token * hk.stride, hk.stride, kb, D);
    fwd_key_block(x, w, x->keys + (kv_local * x->n_key + j) * D * B, qb, kb);
  }
  int64_t at = hq.at + qb->token * hq.stride;
  real *lse = x->lse + qb->token * x->heads + local;
  if (a->part)
    fwd_finish_part(w, (real *)x->o + at, hq.stride, lse, x->heads, qb, D);
  else
    fwd_finish(w, (act *)x->o + at, hq.stride, lse, x->heads, qb, D);
}

size_t FN(attention_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv, AttnPass pass) {
  return pass == ATTN_FWD ? FN(attention_fwd_work)(c, a, qv, kv) : FN(attention_bwd_work)(c, a, qv, kv, pass);
}

void FN(attention_fwd)(const KCtx *c, void *o, void *lse, const void *q, const void *k, const void *v, const AttnArgs *a,
                       const TokenView *qv, const TokenView *kv) {
  int64_t D = a->head_dim, heads = shard_total(&a->q) / D, kv_heads = shard_total(&a->kv) / D;
  FwdArgs x = {.o = o, .lse = lse, .q = q, .k = k, .v = v, .a = a, .qv = qv, .kv = kv, .heads = heads};
  fwd_open(&x, c->work);
  real *areas = x.keys + kv_heads * x.n_key * D * B;
#pragma omp parallel num_threads(c->threads)
  {
    FwdThread w = fwd_thread(areas + (size_t)omp_get_thread_num() * fwd_thread_size(D), D);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < kv_heads * x.n_key; task++) fwd_pack_keys(&x, task);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * x.n_query; task++) fwd_task(&x, &w, task);
  }
}
