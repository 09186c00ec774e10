/* Causal attention backward by blocks (Dao et al. 2022), whole or in two halves that give the same bits. dk, dv of a key block: over
 * the query heads of the group, for each over the query blocks, all ascending; so they are complete per query head before the heads
 * are merged. dq of a query adds up over ascending key blocks.
 *   all at once: a task is one (sequence, key head) and goes over its key blocks in ascending order
 *   dk, dv:      a task is one (key head, key block)
 *   dq:          a task is one (query head, query block) */
#include "attention.h"
#include "lanes.h"
#include "tree.h"
#include <omp.h>

typedef struct BwdThread {
  real *kt, *vt;     /* [D][B] */
  real *k, *q, *d_o; /* [B][Dp] */
  real *p, *ds;      /* [B][B], query by key */
  real *dk, *dv;     /* [levels][B][Dp], partial sums of the tree over heads */
} BwdThread;

typedef struct BwdArgs {
  real *dq, *dk;
  void *dv; /* as AttnArgs.dv_real says */
  const act *d_o, *q, *k, *v;
  const real *lse, *delta;
  const AttnArgs *a;
  const TokenView *qv, *kv;
  int64_t heads, first_head, kv_heads, first_kv_head, n_query, n_key;
  int n_plane;
  int64_t plane; /* elements of one plane of dk, dv */
  AttnBlock *query, *key;
  real *packed; /* dq alone: keys, values transposed [kv head][key block][2][D][B] */
} BwdArgs;

static int64_t bwd_group(const AttnArgs *a) { return a->q.units / a->kv.units; }

static int64_t bwd_levels(const AttnArgs *a) {
  int64_t n = 2;
  for (int64_t group = bwd_group(a); group > 1; group /= 2) n++;
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

size_t FN(attention_bwd_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv, AttnPass pass) {
  int64_t queries = pass == ATTN_BWD_Q ? attn_block_bound(qv) : attn_whole_bound(a, qv);
  int64_t keys = pass == ATTN_BWD_K ? attn_block_bound(kv) : attn_whole_bound(a, kv);
  size_t packed = pass == ATTN_BWD_Q ? (size_t)(2 * shard_total(&a->kv) * keys * B) : 0;
  return attn_block_bytes(queries) + attn_block_bytes(keys) + (packed + (size_t)c->threads * bwd_thread_size(a)) * sizeof(real);
}

/* Returns where the threads' areas begin. */
static real *bwd_open(BwdArgs *x, void *work, AttnPass pass) {
  x->query = work;
  x->n_query = attn_blocks(x->query, x->qv);
  x->key = (AttnBlock *)((char *)work + attn_block_bytes(x->n_query));
  x->n_key = attn_blocks(x->key, x->kv);
  attn_meet(x->query, x->n_query, x->qv, x->key, x->n_key, x->kv);
  attn_meet(x->key, x->n_key, x->kv, x->query, x->n_query, x->qv);
  x->packed = (real *)((char *)x->key + attn_block_bytes(x->n_key));
  return x->packed + (pass == ATTN_BWD_Q ? 2 * x->kv_heads * x->n_key * x->a->head_dim * B : 0);
}

/* Probabilities and dS of one row from scores and dP; keys that are not seen get 0. constant: the query sees one key in all, whose
 * probability is always 1; dS is then exactly 0, not what is left of dP - delta, which Adam would take for a direction. */
static inline void bwd_row(real *restrict p, real *restrict ds, AttnSeen s, real scale, real lse, real delta, bool constant) {
  for (int j = 0; j < B; j++) {
    bool seen = j >= s.lo && j < s.hi;
    real e = real_exp_low(p[j] * scale - lse), d = e * (ds[j] - delta) * scale;
    p[j] = seen ? e : R(0.0);
    ds[j] = seen && !constant ? d : R(0.0);
  }
}

/* w->p and w->ds of a pair of blocks; queries and d_o are packed. */
static void bwd_scores(const BwdArgs *x, BwdThread *w, const AttnBlock *qb, const AttnBlock *kb, int64_t local) {
  const AttnArgs *a = x->a;
  int64_t D = a->head_dim, Dp = attn_pad(D);
  for (int64_t r = attn_tile_begin(qb); r < attn_row_end(qb); r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position);
    for (int64_t j = 0; j < B && j < end; j += TILE_N) {
      attn_tile(TILE_SET, w->p + r * B + j, B, NULL, w->q + r * Dp, Dp, 1, w->kt + j, B, 0, D);
      attn_tile(TILE_SET, w->ds + r * B + j, B, NULL, w->d_o + r * Dp, Dp, 1, w->vt + j, B, 0, D);
    }
    for (int64_t i = r; i < r + TILE_M; i++) {
      if (!attn_has_row(qb, i)) continue;
      int64_t p = qb->position + i, first = attn_first_seen(x->qv, qb, i, a->window), at = (qb->token + i - qb->row) * x->heads + local;
      bwd_row(w->p + i * B, w->ds + i * B, attn_seen(first, p, kb), (real)a->scale, x->lse[at], x->delta[at], first == p);
    }
  }
}

/* dk += dS^T q, dv += P^T dO over the rows of a query block, for the keys of a block (rows before a tile's first key see none of it). */
static void bwd_keys(BwdThread *w, real *dk, real *dv, const AttnBlock *qb, const AttnBlock *kb, int64_t Dp) {
  for (int64_t i = attn_tile_begin(kb); i < attn_row_end(kb); i += TILE_M) {
    int64_t from = kb->position + i - qb->position;
    if (from < qb->row) from = qb->row;
    for (int64_t d = 0; d < Dp; d += TILE_N) {
      attn_tile(TILE_ADD, dk + i * Dp + d, Dp, NULL, w->ds + i, 1, B, w->q + d, Dp, from, attn_row_end(qb));
      attn_tile(TILE_ADD, dv + i * Dp + d, Dp, NULL, w->p + i, 1, B, w->d_o + d, Dp, from, attn_row_end(qb));
    }
  }
}

/* dq += dS k, in place where it lies; at the edges through a copy. dq: the block's first token. */
static void bwd_queries(BwdThread *w, real *dq, int64_t stride, const AttnBlock *qb, const AttnBlock *kb, int64_t D) {
  int64_t Dp = attn_pad(D);
  for (int64_t r = attn_tile_begin(qb); r < attn_row_end(qb); r += TILE_M) {
    int64_t end = attn_hi(qb->position + r + TILE_M - 1, kb->position);
    int64_t from = r < qb->row ? qb->row - r : 0, to = attn_row_end(qb) - r < TILE_M ? attn_row_end(qb) - r : TILE_M;
    for (int64_t d = 0; d < D; d += TILE_N) {
      real *c = dq + (r + from - qb->row) * stride + d;
      if (to - from == TILE_M && D - d >= TILE_N) {
        attn_tile(TILE_ADD, c, stride, NULL, w->ds + r * B, B, 1, w->k + d, Dp, 0, end);
        continue;
      }
      real edge[TILE_M * TILE_N] = {0};
      size_t bytes = (size_t)(D - d < TILE_N ? D - d : TILE_N) * sizeof(real);
      for (int64_t i = from; i < to; i++) memcpy(edge + i * TILE_N, c + (i - from) * stride, bytes);
      attn_tile(TILE_ADD, edge, TILE_N, NULL, w->ds + r * B, B, 1, w->k + d, Dp, 0, end);
      for (int64_t i = from; i < to; i++) memcpy(c + (i - from) * stride, edge + i * TILE_N, bytes);
    }
  }
}

static void bwd_pack_queries(const BwdArgs *x, BwdThread *w, const AttnBlock *qb, AttnHead h) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D), at = h.at + qb->token * h.stride;
  attn_pack(w->q, Dp, x->q + at, h.stride, qb, D);
  attn_pack(w->d_o, Dp, x->d_o + at, h.stride, qb, D);
}

static void bwd_zero_queries(const BwdArgs *x, AttnHead h, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) memset(x->dq + h.at + t * h.stride, 0, (size_t)x->a->head_dim * sizeof(real));
}

/* One query head against one key block: its dk, dv to the given buffers, its dq added up where it is asked for. */
static void bwd_head(const BwdArgs *x, BwdThread *w, real *dk, real *dv, int64_t head, const AttnBlock *kb) {
  int64_t D = x->a->head_dim, Dp = attn_pad(D);
  AttnHead h = attn_head(&x->a->q, head, x->qv->n_token);
  memset(dk, 0, (size_t)(B * Dp) * sizeof(real));
  memset(dv, 0, (size_t)(B * Dp) * sizeof(real));
  for (int64_t query = attn_from(x->query, kb->first, kb->end, kb->position); query < kb->end; query++) {
    const AttnBlock *qb = &x->query[query];
    if (attn_first_key_block(x->qv, qb, x->a->window) > kb->position) break;
    bwd_pack_queries(x, w, qb, h);
    bwd_scores(x, w, qb, kb, head - x->first_head);
    bwd_keys(w, dk, dv, qb, kb, Dp);
    if (x->dq) bwd_queries(w, x->dq + h.at + qb->token * h.stride, h.stride, qb, kb, D);
  }
}

static void bwd_merge(real *restrict left, const real *restrict right, int64_t n) {
  for (int64_t i = 0; i < n; i++) left[i] += right[i];
}

/* The two topmost partials of a block's dk, dv become one. */
static void bwd_merge_top(BwdThread *w, int64_t top, int64_t n) {
  bwd_merge(w->dk + (top - 2) * n, w->dk + (top - 1) * n, n);
  bwd_merge(w->dv + (top - 2) * n, w->dv + (top - 1) * n, n);
}

/* dk, dv of a key block, to the bottom of the stack: a leaf per query head begin .. end-1 (numbers in the group), merged as in tree.h. */
static void bwd_root(const BwdArgs *x, BwdThread *w, int64_t before, int64_t begin, int64_t end, const AttnBlock *kb) {
  int64_t n = B * attn_pad(x->a->head_dim), top = 0, leaf[TREE_DEPTH];
  for (int64_t head = begin; head < end; head++) {
    for (; top > 1 && tree_meets_before(leaf[top - 2], leaf[top - 1], head); top--) bwd_merge_top(w, top, n);
    bwd_head(x, w, w->dk + top * n, w->dv + top * n, before + head, kb);
    leaf[top++] = head;
  }
  for (; top > 1; top--) bwd_merge_top(w, top, n);
}

static void bwd_store(real *out, AttnHead h, const real *rows, const AttnBlock *b, int64_t D) {
  out += h.at + b->token * h.stride;
  for (int64_t r = b->row; r < attn_row_end(b); r++, out += h.stride)
    if (rows)
      memcpy(out, rows + r * attn_pad(D), (size_t)D * sizeof(real));
    else
      memset(out, 0, (size_t)D * sizeof(real));
}

static void bwd_store_act(act *out, AttnHead h, const real *rows, const AttnBlock *b, int64_t D) {
  out += h.at + b->token * h.stride;
  for (int64_t r = b->row; r < attn_row_end(b); r++, out += h.stride)
    if (rows)
      act_narrow(out, rows + r * attn_pad(D), D);
    else
      memset(out, 0, (size_t)D * sizeof(act));
}

/* All planes of a key block: a root each, then zeros. */
static void bwd_key_block(const BwdArgs *x, BwdThread *w, int64_t kv, const AttnBlock *kb) {
  int64_t D = x->a->head_dim, before = kv * bwd_group(x->a);
  AttnHead h = attn_head(&x->a->kv, kv, x->kv->n_token);
  int64_t at = h.at + kb->token * h.stride;
  attn_pack_transposed(w->kt, x->k + at, h.stride, kb, D);
  attn_pack_transposed(w->vt, x->v + at, h.stride, kb, D);
  attn_pack(w->k, attn_pad(D), x->k + at, h.stride, kb, D);
  TreeNode root[TREE_ROOTS];
  int n_root = attention_roots(x->a, kv, root);
  for (int i = 0; i < x->n_plane; i++) {
    if (i < n_root) {
      int64_t begin = (int64_t)root[i].index << root[i].level, end = begin + ((int64_t)1 << root[i].level);
      bwd_root(x, w, before, begin, end < bwd_group(x->a) ? end : bwd_group(x->a), kb);
    }
    bwd_store(x->dk + i * x->plane, h, i < n_root ? w->dk : NULL, kb, D);
    if (x->a->dv_real || x->a->part)
      bwd_store((real *)x->dv + i * x->plane, h, i < n_root ? w->dv : NULL, kb, D);
    else
      bwd_store_act((act *)x->dv + i * x->plane, h, i < n_root ? w->dv : NULL, kb, D);
  }
}

/* All at once: one sequence, one key head. */
static void bwd_sequence_task(const BwdArgs *x, BwdThread *w, int64_t seq, int64_t kv) {
  int64_t begin = kv * bwd_group(x->a), end = begin + bwd_group(x->a), last = x->first_head + x->heads, key = 0;
  for (int64_t head = begin > x->first_head ? begin : x->first_head; head < end && head < last; head++)
    if (!x->a->part) bwd_zero_queries(x, attn_head(&x->a->q, head, x->qv->n_token), x->qv->seq_start[seq], x->qv->seq_start[seq + 1]);
  while (key < x->n_key && x->key[key].token < x->kv->seq_start[seq]) key++;
  for (; key < x->n_key && x->key[key].token < x->kv->seq_start[seq + 1]; key++) bwd_key_block(x, w, kv, &x->key[key]);
}

/* dq alone: one query head, one query block. */
static void bwd_query_task(const BwdArgs *x, BwdThread *w, int64_t head, const AttnBlock *qb) {
  int64_t D = x->a->head_dim, kv = head / bwd_group(x->a), area = D * B;
  AttnHead hq = attn_head(&x->a->q, head, x->qv->n_token), hk = attn_head(&x->a->kv, kv, x->kv->n_token);
  BwdThread t = *w;
  bwd_pack_queries(x, &t, qb, hq);
  bwd_zero_queries(x, hq, qb->token, qb->token + qb->n_row);
  for (int64_t j = attn_from(x->key, qb->first, qb->end, attn_first_key_block(x->qv, qb, x->a->window)); j < qb->end; j++) {
    const AttnBlock *kb = &x->key[j];
    if (kb->position > qb->position) break;
    t.kt = x->packed + ((kv - x->first_kv_head) * x->n_key + j) * 2 * area;
    t.vt = t.kt + area;
    attn_pack(t.k, attn_pad(D), x->k + hk.at + kb->token * hk.stride, hk.stride, kb, D);
    bwd_scores(x, &t, qb, kb, head - x->first_head);
    bwd_queries(&t, x->dq + hq.at + qb->token * hq.stride, hq.stride, qb, kb, D);
  }
}

static void bwd_pack_task(const BwdArgs *x, int64_t task) {
  int64_t D = x->a->head_dim;
  const AttnBlock *b = &x->key[task % x->n_key];
  AttnHead h = attn_head(&x->a->kv, x->first_kv_head + task / x->n_key, x->kv->n_token);
  real *out = x->packed + task * 2 * D * B;
  attn_pack_transposed(out, x->k + h.at + b->token * h.stride, h.stride, b, D);
  attn_pack_transposed(out + D * B, x->v + h.at + b->token * h.stride, h.stride, b, D);
}

void FN(attention_delta)(const KCtx *c, void *delta, const void *d_o, const void *o, const AttnArgs *a, const TokenView *qv) {
  int64_t D = a->head_dim, heads = shard_total(&a->q) / D, first = shard_begin(&a->q, a->q.first) / D;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < qv->n_token; t++)
    for (int64_t i = 0; i < heads; i++) {
      AttnHead h = attn_head(&a->q, first + i, qv->n_token);
      ((real *)delta)[t * heads + i] = act_dot((const act *)d_o + h.at + t * h.stride, (const act *)o + h.at + t * h.stride, D);
    }
}

void FN(attention_bwd)(const KCtx *c, void *dq, void *dk, void *dv, const void *d_o, const void *lse, const void *delta, const void *q,
                       const void *k, const void *v, const AttnArgs *a, const TokenView *qv, const TokenView *kv) {
  AttnPass pass = !dk ? ATTN_BWD_Q : dq ? ATTN_BWD : ATTN_BWD_K;
  BwdArgs x = {.dq = dq, .dk = dk, .dv = dv, .d_o = d_o, .lse = lse, .delta = delta, .q = q, .k = k, .v = v, .a = a, .qv = qv, .kv = kv};
  x.heads = shard_total(&a->q) / a->head_dim, x.first_head = shard_begin(&a->q, a->q.first) / a->head_dim;
  x.kv_heads = shard_total(&a->kv) / a->head_dim, x.first_kv_head = shard_begin(&a->kv, a->kv.first) / a->head_dim;
  x.n_plane = attention_planes(a), x.plane = kv->n_token * shard_total(&a->kv);
  real *areas = bwd_open(&x, c->work, pass);
  int64_t n_seq = pass == ATTN_BWD ? kv->n_seq : 0, n_key = pass == ATTN_BWD_K ? x.n_key : 0;
  int64_t n_pack = pass == ATTN_BWD_Q ? x.n_key : 0, n_query = pass == ATTN_BWD_Q ? x.n_query : 0;
#pragma omp parallel num_threads(c->threads)
  {
    BwdThread w = bwd_thread(areas + (size_t)omp_get_thread_num() * bwd_thread_size(a), a);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < x.kv_heads * n_pack; i++) bwd_pack_task(&x, i);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < x.kv_heads * n_seq; i++) bwd_sequence_task(&x, &w, i % n_seq, x.first_kv_head + i / n_seq);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < x.kv_heads * n_key; i++) bwd_key_block(&x, &w, x.first_kv_head + i / n_key, &x.key[i % n_key]);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < x.heads * n_query; i++) bwd_query_task(&x, &w, x.first_head + i / n_query, &x.query[i % n_query]);
  }
}
