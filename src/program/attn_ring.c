/* Attention by a ring over CP (Liu et al. 2023; Megatron-LM's p2p). A rank keeps its own windows' queries, keys and values; keys and values of the other ranks
 * pass by, one block after the other, while the rank computes with the block at hand. Results of parts of the keys are joined by their log-sum-exps. In the backward
 * keys and values go round again, followed by the sums of their gradients, which every rank adds to and which come home in the end. Which block a rank meets first
 * differs from rank to rank, so sums are in another order on another layout: native mode alone. */
#include <string.h>

#include "comm/reduce.h"
#include "program/op_attention.h"

enum { CP = AXIS_BIT(AXIS_CP) };

static AttnArgs ring_args(const Op *op) {
  AttnArgs a = attention_args(op);
  a.part = true;
  return a;
}
static bool ring_shares_heads(const Program *p, const Op *op) {
  return heads_are_shared(&p->dims, &op->attr.attention.q_own, &op->attr.attention.kv_own);
}

static int ring_open(Program *p, const char *name, RowKind rows, OpAttr *attr, ValId *out) {
  attr->attention.q = attr->attention.q_own;
  attr->attention.kv = heads_are_shared(&p->dims, &attr->attention.q_own, &attr->attention.kv_own)
                           ? attention_needs(&attr->attention.q_own, &attr->attention.kv_own)
                           : attr->attention.kv_own;
  out[1] = attention_lse(p, name, rows, shard_total(&attr->attention.q) / attr->attention.head_dim);
  return 2;
}

/* ---- blocks: the tokens of a CP rank ----------------------------------------------------------------------------------------------------------------- */
static int64_t block_rows(const DealMb *mb, int cp) {
  int64_t n = 0;
  for (int s = 0; s < mb->n_cp_segment; s++) n += mb->cp_segment[s].cp == cp ? mb->cp_segment[s].n : 0;
  return n;
}
static int64_t block_most(const DealMb *mb, int n_cp) {
  int64_t most = 0;
  for (int cp = 0; cp < n_cp; cp++) {
    int64_t n = block_rows(mb, cp);
    most = n > most ? n : most;
  }
  return most;
}
static size_t block_view_bytes(const DealMb *mb, int64_t rows) {
  return work_align((size_t)(rows + mb->view[VIEW_SEQ].n_seq + 1) * sizeof(int32_t));
}
/* Where its tokens are in their sequences; windows are not told. */
static TokenView block_view(const DealMb *mb, int cp, int32_t *work) {
  const TokenView *whole = &mb->view[VIEW_SEQ];
  int32_t *start = work, *position = work + whole->n_seq + 1, n = 0;
  int seq = 0;
  start[0] = 0;
  for (int s = 0; s < mb->n_cp_segment; s++) {
    const CpSegment *g = &mb->cp_segment[s];
    if (g->cp != cp) continue;
    for (int64_t row = g->seq_row; row < g->seq_row + g->n; row++) {
      while (row >= whole->seq_start[seq + 1]) start[++seq] = n;
      position[n++] = whole->position[row];
    }
  }
  while (seq < whole->n_seq) start[++seq] = n;
  return (TokenView){.n_token = n, .n_seq = whole->n_seq, .n_window = mb->n_cp_segment, .seq_start = start, .position = position};
}

/* ---- workspaces ---------------------------------------------------------------------------------------------------------------------------------------- */
/* passing: two blocks of keys and values, one to compute with and send on, one that arrives. travel: likewise sums of gradients, dk then dv, beside `made`, what
 * this rank adds to them. */
typedef struct Places {
  RowSeg *seg;
  int32_t *view;
  char *own[2], *passing[2][2], *o, *o_part, *lse_part, *delta, *made, *travel[2], *roots, *kernel;
  size_t bytes;
} Places;
static Places places(const Program *p, const Op *op, const DealMb *mb, const Kernels *k, Pass pass, char *base) {
  AttnArgs a = ring_args(op);
  bool shares = ring_shares_heads(p, op), back = pass == PASS_BWD_X;
  size_t real = k->real_size, act = k->act_size, rows = (size_t)p->dims.n_token[VIEW_TP], most = (size_t)block_most(mb, p->dims.n_cp);
  size_t q = (size_t)shard_total(&a.q), kv = (size_t)shard_total(&a.kv), heads = q / (size_t)a.head_dim;
  size_t travels = back ? 2 * most * kv * (size_t)attention_planes(&a) * real : 0;
  Places w = {.seg = (RowSeg *)base};
  size_t at = shares ? heads_work(p, op) : 0;
  w.view = (int32_t *)(base + at), at += block_view_bytes(mb, (int64_t)most);
#define PLACE(member, n) w.member = base + at, at += work_align(n)
  for (int i = 0; i < 2; i++) {
    PLACE(own[i], shares ? rows * kv * act : 0);
    for (int x = 0; x < 2; x++) PLACE(passing[i][x], i + 2 <= p->dims.n_cp ? most * kv * act : 0);
    PLACE(travel[i], travels);
  }
  PLACE(o, !back && act != real ? rows * q * real : 0);
  PLACE(o_part, back ? 0 : rows * q * real);
  PLACE(lse_part, back ? 0 : rows * heads * real);
  PLACE(delta, back ? rows * heads * real : 0);
  PLACE(made, travels);
  PLACE(roots, back && shares ? rows * (size_t)(shard_total(&op->attr.attention.kv_own) * heads_roots(p, op)) * real : 0);
  PLACE(kernel, 0);
#undef PLACE
  w.bytes = at;
  return w;
}

/* ---- the way round --------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Ring {
  const OpCall *c;
  Places w;
  AttnArgs a;
  Pass pass;
  int n;
  const char *own[2]; /* keys, values */
} Ring;

static Ring ring_start(const OpCall *c, Pass pass) {
  Ring r = {.c = c, .w = places(c->p, c->op, c->mb, c->env->k, pass, c->work), .a = ring_args(c->op), .pass = pass, .n = c->p->dims.n_cp};
  bool shares = ring_shares_heads(c->p, c->op);
  for (int i = 0; i < 2; i++) r.own[i] = shares ? r.w.own[i] : c->in[1 + i];
  return r;
}
static void ring_fetch_heads(const Ring *r) {
  for (int i = 0; i < 2 && ring_shares_heads(r->c->p, r->c->op); i++) heads_fetch(r->c, r->w.seg, r->c->in[1 + i], r->w.own[i]);
}
/* The block that is here at a step; what is sent goes to the next rank. */
static int ring_block(const Ring *r, int step) { return (r->c->p->dims.cp_self + 2 * r->n - step) % r->n; }
static int64_t ring_elements(const Ring *r, int step) { return block_rows(r->c->mb, ring_block(r, step)) * shard_total(&r->a.kv); }
static const char *ring_keys(const Ring *r, int step, int what) { return step ? r->w.passing[(step - 1) % 2][what] : r->own[what]; }

/* What is under way while a step computes: keys and values of the next, gradients that the last one added to. */
enum { RING_HOPS = 3 };
static int ring_hops(const Ring *r, int step, Hop hop[RING_HOPS]) {
  size_t act = r->c->env->k->act_size, real = r->c->env->k->real_size;
  int n = 0;
  for (int i = 0; i < 2 && step + 1 < r->n; i++)
    hop[n++] = (Hop){.send = ring_keys(r, step, i),
                     .send_bytes = (size_t)ring_elements(r, step) * act,
                     .recv = r->w.passing[step % 2][i],
                     .recv_bytes = (size_t)ring_elements(r, step + 1) * act};
  size_t both = 2 * (size_t)attention_planes(&r->a) * real;
  if (r->pass == PASS_BWD_X && step > 0)
    hop[n++] = (Hop){.send = r->w.travel[(step - 1) % 2],
                     .send_bytes = (size_t)ring_elements(r, step - 1) * both,
                     .recv = r->w.travel[step % 2],
                     .recv_bytes = (size_t)ring_elements(r, step) * both};
  return n;
}
static bool ring_begin(const Ring *r, int step) {
  Hop hop[RING_HOPS];
  int n = ring_hops(r, step, hop);
  if (n) comm_ring_begin(r->c->env->world, CP, hop, n);
  return n > 0;
}
static void ring_end(const Ring *r, bool begun) {
  if (begun) comm_ring_end(r->c->env->world, CP);
}

/* ---- passes -------------------------------------------------------------------------------------------------------------------------------------------- */
static void ring_fwd(const OpCall *c) {
  const Kernels *k = c->env->k;
  const TokenView *own = &c->mb->view[VIEW_TP];
  Ring r = ring_start(c, PASS_FWD);
  char *o = k->act_size == k->real_size ? c->out[0] : r.w.o;
  KCtx kc = work_after(c, (size_t)(r.w.kernel - (char *)c->work));
  ring_fetch_heads(&r);
  for (int step = 0; step < r.n; step++) {
    TokenView keys = block_view(c->mb, ring_block(&r, step), r.w.view);
    bool begun = ring_begin(&r, step);
    k->attention_fwd(&kc, step ? r.w.o_part : o, step ? r.w.lse_part : c->out[1], c->in[0], ring_keys(&r, step, 0), ring_keys(&r, step, 1),
                     &r.a, own, &keys);
    if (step) k->attention_merge(&kc, o, c->out[1], r.w.o_part, r.w.lse_part, &r.a, own);
    ring_end(&r, begun);
  }
  if (o != c->out[0]) k->narrow(&c->env->kctx, c->out[0], o, own->n_token * shard_total(&r.a.q));
}

/* dq is added to; dk, dv of the block at hand. */
static void ring_gradients(const Ring *r, const KCtx *kc, int step) {
  const OpCall *c = r->c;
  int64_t n = ring_elements(r, step) * attention_planes(&r->a);
  TokenView keys = block_view(c->mb, ring_block(r, step), r->w.view);
  char *dk = step ? r->w.made : r->w.travel[0], *dv = dk + (size_t)n * c->env->k->real_size;
  c->env->k->attention_bwd(kc, c->d_in[0], dk, dv, c->d_out[0], c->out[1], r->w.delta, c->in[0], ring_keys(r, step, 0),
                           ring_keys(r, step, 1), &r->a, &c->mb->view[VIEW_TP], &keys);
}
static void ring_home(const Ring *r) {
  const OpCall *c = r->c;
  const Kernels *k = c->env->k;
  int64_t n = ring_elements(r, 0) * attention_planes(&r->a);
  char *dk = r->w.travel[r->n % 2], *dv = dk + (size_t)n * k->real_size;
  if (ring_shares_heads(c->p, c->op)) {
    heads_return(c, k->wide, r->w.seg, dk, r->w.roots, c->d_in[1]);
    heads_return(c, k, r->w.seg, dv, r->w.roots, c->d_in[2]);
  } else {
    k->wide->narrow(&c->env->kctx, c->d_in[1], dk, n);
    k->narrow(&c->env->kctx, c->d_in[2], dv, n);
  }
}
static void ring_dx(const OpCall *c) {
  const Kernels *k = c->env->k;
  const TokenView *own = &c->mb->view[VIEW_TP];
  Ring r = ring_start(c, PASS_BWD_X);
  KCtx kc = work_after(c, (size_t)(r.w.kernel - (char *)c->work));
  SumKind sum = k->real_size == sizeof(float) ? SUM_F32 : SUM_F64;
  ring_fetch_heads(&r);
  k->attention_delta(&kc, r.w.delta, c->d_out[0], c->out[0], &r.a, own);
  memset(c->d_in[0], 0, (size_t)(own->n_token * shard_total(&r.a.q)) * k->real_size);
  for (int step = 0; step <= r.n; step++) {
    bool begun = ring_begin(&r, step);
    if (step < r.n) ring_gradients(&r, &kc, step);
    ring_end(&r, begun);
    if (step > 0 && step < r.n) sum_into(sum, r.w.travel[step % 2], r.w.made, 2 * ring_elements(&r, step) * attention_planes(&r.a));
  }
  ring_home(&r);
}

static void ring_traffic(const OpCall *c, Pass pass, Sketch *s) {
  Ring r = ring_start(c, pass);
  bool shares = ring_shares_heads(c->p, c->op);
  for (int i = 0; i < 2 && shares; i++) heads_fetch_traffic(c, r.w.seg, s);
  for (int step = 0; step <= r.n; step++) {
    Hop hop[RING_HOPS];
    int n = ring_hops(&r, step, hop);
    if (n) sketch_ring(s, CP, hop, n);
  }
  for (int i = 0; i < 2 && shares && pass == PASS_BWD_X; i++) heads_return_traffic(c, r.w.seg, s);
}

static size_t ring_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = ring_args(w->op);
  const TokenView *own = &w->mb->view[VIEW_TP];
  TokenView keys = {.n_token = block_most(w->mb, w->p->dims.n_cp), .n_seq = own->n_seq, .n_window = w->mb->n_cp_segment};
  return places(w->p, w->op, w->mb, w->k, pass, NULL).bytes +
         w->k->attention_work(&w->kctx, &a, own, &keys, pass == PASS_FWD ? ATTN_FWD : ATTN_BWD);
}

const AttnExchange attn_ring = {
    .open = ring_open, .x_in = 7, .view = VIEW_TP, .fwd = ring_fwd, .dx = ring_dx, .work = ring_work, .traffic = ring_traffic};
