/* Causal attention backward by blocks (Dao et al. 2022). A task is one (sequence, key head): it goes over the key blocks, for each over the
 * query heads of the group, for each over the query blocks; all in ascending order. So dk, dv of a block are complete per query head before
 * the heads are merged, and dq of a query adds up over ascending key blocks.                                                       */
#include "attention.h"
#include "lanes.h"
#include <omp.h>

enum { BWD_LEVELS = 16 }; /* of the tree over the query heads of a group */

typedef struct BwdShared {
  AttnBlock *block;
  int64_t n_block;
  real *delta; /* [query head][T] <dO, O> */
} BwdShared;
typedef struct BwdThread {
  real *kt, *vt;     /* [D][B] */
  real *k, *q, *d_o; /* [B][Dp] */
  real *p, *ds;      /* [B][B], query by key */
  real *dk, *dv;     /* [levels][B][Dp], partial sums of the tree over heads */
} BwdThread;

static int64_t bwd_levels(const AttnArgs *a) {
  int64_t n = 2;
  for (int64_t group = a->q.units / a->kv.units; group > 1; group /= 2) n++;
  return n;
}

static size_t bwd_thread_size(const AttnArgs *a) {
  int64_t D = a->head_dim, Dp = attn_pad(D);
  return (size_t)(B * (2 * D + 3 * Dp + 2 * B + 2 * Dp * bwd_levels(a)));
}

static BwdThread bwd_thread(real *at, const AttnArgs *a) {
  int64_t D = a->head_dim, Dp = attn_pad(D);
  BwdThread t;
  t.kt = at, t.vt = t.kt + B * D, t.k = t.vt + B * D, t.q = t.k + B * Dp, t.d_o = t.q + B * Dp;
  t.p = t.d_o + B * Dp, t.ds = t.p + B * B, t.dk = t.ds + B * B, t.dv = t.dk + B * Dp * bwd_levels(a);
  return t;
}

static int64_t bwd_delta_size(const AttnArgs *a, int64_t T) { return (shard_total(&a->q) / a->head_dim * T + LANES - 1) / LANES * LANES; }

size_t FN(attention_bwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *bound) {
  size_t delta = (size_t)bwd_delta_size(a, bound->n_token);
  return (size_t)attn_block_bound(bound) * sizeof(AttnBlock) + (delta + (size_t)c->threads * bwd_thread_size(a)) * sizeof(real);
}

typedef struct BwdArgs {
  real *dq, *dk, *dv;
  const real *d_o, *o, *lse, *q, *k, *v;
  const AttnArgs *a;
  int64_t T, heads, first_head, first_kv_head;
} BwdArgs;

static void bwd_delta(const BwdArgs *x, real *delta, int64_t local, int64_t t) {
  AttnHead h = attn_head(&x->a->q, x->first_head + local, x->T);
  delta[local * x->T + t] = row_dot(x->d_o + h.at + t * h.stride, x->o + h.at + t * h.stride, x->a->head_dim);
}

/* Probabilities and dS of one row from scores and dP; keys outside [lo, hi) get 0. constant: the query sees one key in all, whose
 * probability is always 1; dS is then exactly 0, not what is left of dP - delta, which Adam would take for a direction.       */
static inline void bwd_row(real *restrict p, real *restrict ds, int64_t lo, int64_t hi, real scale, real lse, real delta, bool constant) {
  for (int j = 0; j < B; j++) {
    bool seen = j >= lo && j < hi;
    real e = real_exp_low(p[j] * scale - lse), d = e * (ds[j] - delta) * scale;
    p[j] = seen ? e : R(0.0);
    ds[j] = seen && !constant ? d : R(0.0);
  }
}

/* w->p and w->ds of a pair of blocks. */
static void bwd_scores(const BwdArgs *x, BwdThread *w, const real *delta, const AttnBlock *qb, const AttnBlock *kb, int64_t local) {
  const AttnArgs *a = x->a;
  int64_t D = a->head_dim, Dp = attn_pad(D);
  for (int64_t r = 0; r < qb->rows; r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position);
    for (int64_t j = 0; j < B && j < end; j += TILE_N) {
      attn_tile(TILE_SET, w->p + r * B + j, B, NULL, w->q + r * Dp, Dp, 1, w->kt + j, B, 0, D);
      attn_tile(TILE_SET, w->ds + r * B + j, B, NULL, w->d_o + r * Dp, Dp, 1, w->vt + j, B, 0, D);
    }
    for (int64_t i = r; i < r + TILE_M && i < qb->rows; i++) {
      int64_t p = qb->position + i, t = qb->token + i;
      bwd_row(w->p + i * B, w->ds + i * B, attn_lo(p, kb->position, a->window), attn_hi(p, kb->position), (real)a->scale,
              x->lse[t * x->heads + local], delta[local * x->T + t], p == 0 || a->window == 1);
    }
  }
}

/* dk += dS^T q, dv += P^T dO over the rows of a query block, for all keys of a block (rows before a tile's first key see none of it). */
static void bwd_keys(BwdThread *w, real *dk, real *dv, const AttnBlock *qb, const AttnBlock *kb, int64_t Dp) {
  for (int64_t i = 0; i < kb->rows; i += TILE_M) {
    int64_t from = kb->position + i - qb->position;
    if (from < 0) from = 0;
    for (int64_t d = 0; d < Dp; d += TILE_N) {
      attn_tile(TILE_ADD, dk + i * Dp + d, Dp, NULL, w->ds + i, 1, B, w->q + d, Dp, from, qb->rows);
      attn_tile(TILE_ADD, dv + i * Dp + d, Dp, NULL, w->p + i, 1, B, w->d_o + d, Dp, from, qb->rows);
    }
  }
}

/* dq += dS k, in place where it lies; at the edges through a copy. */
static void bwd_queries(BwdThread *w, real *dq, int64_t stride, const AttnBlock *qb, const AttnBlock *kb, int64_t D) {
  int64_t Dp = attn_pad(D);
  for (int64_t r = 0; r < qb->rows; r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position), rows = qb->rows - r;
    for (int64_t d = 0; d < D; d += TILE_N) {
      real *c = dq + r * stride + d;
      if (rows >= TILE_M && D - d >= TILE_N) {
        attn_tile(TILE_ADD, c, stride, NULL, w->ds + r * B, B, 1, w->k + d, Dp, 0, end);
        continue;
      }
      real edge[TILE_M * TILE_N] = {0};
      int64_t m = rows < TILE_M ? rows : TILE_M;
      size_t bytes = (size_t)(D - d < TILE_N ? D - d : TILE_N) * sizeof(real);
      for (int64_t i = 0; i < m; i++) memcpy(edge + i * TILE_N, c + i * stride, bytes);
      attn_tile(TILE_ADD, edge, TILE_N, NULL, w->ds + r * B, B, 1, w->k + d, Dp, 0, end);
      for (int64_t i = 0; i < m; i++) memcpy(c + i * stride, edge + i * TILE_N, bytes);
    }
  }
}

/* One query head against one key block: its dk, dv to the given buffers, its dq added up. */
static void bwd_head(const BwdArgs *x, const BwdShared *s, BwdThread *w, real *dk, real *dv, int64_t head, int64_t key) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D), local = head - x->first_head;
  AttnHead h = attn_head(&x->a->q, head, x->T);
  const AttnBlock *kb = &s->block[key];
  memset(dk, 0, (size_t)(B * Dp) * sizeof(real));
  memset(dv, 0, (size_t)(B * Dp) * sizeof(real));
  for (int64_t query = key; query < s->n_block && s->block[query].first == kb->first; query++) {
    if (attn_first_key_block(s->block, query, x->a->window) > key) break;
    const AttnBlock *qb = &s->block[query];
    int64_t at = h.at + qb->token * h.stride;
    attn_pack(w->q, Dp, x->q + at, h.stride, qb->rows, D);
    attn_pack(w->d_o, Dp, x->d_o + at, h.stride, qb->rows, D);
    bwd_scores(x, w, s->delta, qb, kb, local);
    bwd_keys(w, dk, dv, qb, kb, Dp);
    bwd_queries(w, x->dq + at, h.stride, qb, kb, D);
  }
}

static void bwd_merge(real *restrict left, const real *restrict right, int64_t n) {
  for (int64_t i = 0; i < n; i++) left[i] += right[i];
}

/* dk, dv of a key block: a leaf per query head, merged by the fixed tree over the heads' numbers in the group (a binary counter). */
static void bwd_key_block(const BwdArgs *x, const BwdShared *s, BwdThread *w, int64_t kv, int64_t begin, int64_t end, int64_t key) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D), n = B * Dp, group = x->a->q.units / x->a->kv.units;
  const AttnBlock *kb = &s->block[key];
  AttnHead h = attn_head(&x->a->kv, kv, x->T);
  int64_t at = h.at + kb->token * h.stride, index[BWD_LEVELS], top = 0;
  int level[BWD_LEVELS];
  attn_pack_transposed(w->kt, x->k + at, h.stride, kb->rows, D);
  attn_pack_transposed(w->vt, x->v + at, h.stride, kb->rows, D);
  attn_pack(w->k, Dp, x->k + at, h.stride, kb->rows, D);
  for (int64_t head = begin; head < end; head++) {
    bwd_head(x, s, w, w->dk + top * n, w->dv + top * n, head, key);
    level[top] = 0, index[top++] = head - kv * group;
    while (top > 1 && (index[top - 1] & 1) && level[top - 2] == level[top - 1] && index[top - 2] == index[top - 1] - 1) {
      top--;
      bwd_merge(w->dk + (top - 1) * n, w->dk + top * n, n);
      bwd_merge(w->dv + (top - 1) * n, w->dv + top * n, n);
      level[top - 1]++, index[top - 1] /= 2;
    }
  }
  for (; top > 1; top--) {
    bwd_merge(w->dk + (top - 2) * n, w->dk + (top - 1) * n, n);
    bwd_merge(w->dv + (top - 2) * n, w->dv + (top - 1) * n, n);
  }
  for (int64_t r = 0; r < kb->rows; r++) {
    memcpy(x->dk + at + r * h.stride, w->dk + r * Dp, (size_t)D * sizeof(real));
    memcpy(x->dv + at + r * h.stride, w->dv + r * Dp, (size_t)D * sizeof(real));
  }
}

static void bwd_task(const BwdArgs *x, const BwdShared *s, BwdThread *w, const TokenView *tv, int64_t seq, int64_t kv) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D), group = x->a->q.units / x->a->kv.units, key = 0;
  int64_t begin = kv * group, end = begin + group, last = x->first_head + x->heads;
  if (begin < x->first_head) begin = x->first_head;
  if (end > last) end = last;
  for (int64_t head = begin; head < end; head++) {
    AttnHead h = attn_head(&x->a->q, head, x->T);
    for (int64_t t = tv->seq_start[seq]; t < tv->seq_start[seq + 1]; t++) memset(x->dq + h.at + t * h.stride, 0, (size_t)D * sizeof(real));
  }
  if (begin >= end) { /* none of the group's query heads is here */
    memset(w->dk, 0, (size_t)(B * Dp) * sizeof(real));
    memset(w->dv, 0, (size_t)(B * Dp) * sizeof(real));
  }
  while (key < s->n_block && s->block[key].token < tv->seq_start[seq]) key++;
  for (; key < s->n_block && s->block[key].token < tv->seq_start[seq + 1]; key++) bwd_key_block(x, s, w, kv, begin, end, key);
}

void FN(attention_bwd)(const KCtx *c, void *dq, void *dk, void *dv, const void *d_o, const void *o, const void *lse, const void *q,
                       const void *k, const void *v, const AttnArgs *a, const TokenView *tv) {
  int64_t D = a->head_dim, heads = shard_total(&a->q) / D, kv_heads = shard_total(&a->kv) / D, T = tv->n_token;
  BwdArgs x = {dq, dk, dv, d_o, o, lse, q, k, v, a, T, heads, shard_begin(&a->q, a->q.first) / D, shard_begin(&a->kv, a->kv.first) / D};
  BwdShared s = {.block = c->work};
  s.n_block = attn_blocks(s.block, tv);
  s.delta = (real *)(s.block + attn_block_bound(tv));
  real *areas = s.delta + bwd_delta_size(a, T);
#pragma omp parallel num_threads(c->threads)
  {
    BwdThread w = bwd_thread(areas + (size_t)omp_get_thread_num() * bwd_thread_size(a), a);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * T; i++) bwd_delta(&x, s.delta, i / T, i % T);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < kv_heads * tv->n_seq; task++)
      bwd_task(&x, &s, &w, tv, task % tv->n_seq, x.first_kv_head + task / tv->n_seq);
  }
}
