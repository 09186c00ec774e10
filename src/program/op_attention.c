/* The attention op: what all ways of exchange share, and the choice between them. */
#include "program/op_attention.h"

#include <math.h>

/* ---- all local: one rank on CP, and no query head reads a key head of another TP rank ------------------------------------------------------------- */
static int local_open(Program *p, const char *name, RowKind rows, OpAttr *attr, ValId *out) {
  attr->attention.q = attr->attention.q_own, attr->attention.kv = attr->attention.kv_own;
  out[1] = attention_lse(p, name, rows, shard_total(&attr->attention.q) / attr->attention.head_dim);
  return 2;
}
static void local_fwd(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  const TokenView *tp = &c->mb->view[VIEW_TP];
  KCtx kc = work_after(c, 0);
  c->env->k->attention_fwd(&kc, c->out[0], c->out[1], c->in[0], c->in[1], c->in[2], &a, tp, tp);
}
static size_t local_delta(const OpWorkArgs *w) {
  int64_t heads = shard_total(&w->op->attr.attention.q) / w->op->attr.attention.head_dim;
  return work_align((size_t)(w->p->dims.n_token[VIEW_TP] * heads) * w->k->real_size);
}
static void local_dx(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  const Kernels *k = c->env->k;
  const TokenView *tp = &c->mb->view[VIEW_TP];
  void *delta = c->work;
  KCtx kc = work_after(c, local_delta(&(OpWorkArgs){.p = c->p, .op = c->op, .k = k}));
  k->attention_delta(&kc, delta, c->d_out[0], c->out[0], &a, tp);
  k->attention_bwd(&kc, c->d_in[0], c->d_in[1], c->d_in[2], c->d_out[0], c->out[1], delta, c->in[0], c->in[1], c->in[2], &a, tp, tp);
}
static size_t local_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = attention_args(w->op);
  const TokenView *tp = &w->mb->view[VIEW_TP];
  if (pass == PASS_FWD) return w->k->attention_work(&w->kctx, &a, tp, tp, ATTN_FWD);
  return local_delta(w) + w->k->attention_work(&w->kctx, &a, tp, tp, ATTN_BWD);
}
static const AttnExchange attn_local = {
    .open = local_open, .x_in = 7, .view = VIEW_TP, .fwd = local_fwd, .dx = local_dx, .work = local_work};

/* ---- the choice ------------------------------------------------------------------------------------------------------------------------------------- */
typedef enum { EXCHANGE_LOCAL, EXCHANGE_GATHER, EXCHANGE_ALLTOALL, EXCHANGE_RING, N_EXCHANGE } ExchangeKind;
static const AttnExchange *const exchange_table[N_EXCHANGE] = {
    [EXCHANGE_LOCAL] = &attn_local, [EXCHANGE_GATHER] = &attn_gather, [EXCHANGE_ALLTOALL] = &attn_alltoall, [EXCHANGE_RING] = &attn_ring};
static const AttnExchange *exchange_of(const Op *op) { return exchange_table[op->attr.attention.exchange]; }

static ExchangeKind exchange_choose(const Dims *d, CpComm comm, const Shards *q, const Shards *kv) {
  static const ExchangeKind over_cp[N_CP_COMM] = {
      [CP_ALLGATHER] = EXCHANGE_GATHER, [CP_ALLTOALL] = EXCHANGE_ALLTOALL, [CP_RING] = EXCHANGE_RING};
  if (d->n_cp > 1) return over_cp[comm];
  return heads_are_shared(d, q, kv) ? EXCHANGE_GATHER : EXCHANGE_LOCAL;
}

ValId attention_lse(Program *p, const char *name, RowKind rows, int64_t heads) {
  ValId v = program_act(p, arena_printf(p->arena, "%s.lse", name), rows, heads, (Shards){1, 0, 1, heads, 1});
  p->val[v].floor = true;
  value_types(p, v, p->num.real, p->num.real);
  return v;
}

ValId op_attention(Program *p, const char *name, ValId q, ValId k, ValId v, int64_t head_dim, int64_t window, CpComm comm) {
  RowKind rows = p->val[q].rows;
  OpAttr attr = {.attention = {.q_own = p->val[q].cut, .kv_own = p->val[k].cut, .head_dim = head_dim, .window = window}};
  attr.attention.scale = 1.0 / sqrt((double)head_dim);
  attr.attention.exchange = exchange_choose(&p->dims, comm, &attr.attention.q_own, &attr.attention.kv_own);
  const AttnExchange *x = exchange_table[attr.attention.exchange];
  ValId out[MAX_OUT] = {program_act(p, name, rows, p->val[q].width, p->val[q].cut)};
  int n_out = x->open(p, name, rows, &attr, out);
  Op *op = program_op(p, OP_ATTENTION, name, (ValId[]){q, k, v}, 3, out, n_out);
  op->x_in = x->x_in;
  op->attr = attr;
  return out[0];
}

AttnArgs attention_args(const Op *op) {
  return (AttnArgs){.q = op->attr.attention.q,
                    .kv = op->attr.attention.kv,
                    .head_dim = op->attr.attention.head_dim,
                    .window = op->attr.attention.window,
                    .scale = op->attr.attention.scale};
}

void attention_fwd(const OpCall *c) { exchange_of(c->op)->fwd(c); }
void attention_dx(const OpCall *c) { exchange_of(c->op)->dx(c); }
size_t attention_work(const OpWorkArgs *w, Pass pass) { return exchange_of(w->op)->work(w, pass); }
void attention_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (exchange_of(c->op)->traffic) exchange_of(c->op)->traffic(c, pass, s);
}

/* Visible (query, key) pairs of this rank's queries: causal and within the window; two products forward, four backward. */
double attention_flops(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row) {
  (void)p, (void)n_row;
  const TokenView *t = &mb->view[exchange_of(op)->view];
  int64_t W = op->attr.attention.window;
  double visible = 0;
  for (int64_t i = 0; i < t->n_token; i++) visible += (double)(W && t->position[i] >= W ? W : t->position[i] + 1);
  double forward = 4.0 * (double)shard_total(&op->attr.attention.q) * visible;
  return pass == PASS_FWD ? forward : 2 * forward;
}
