/* Attention by all-gather over CP, and of key heads that are on other TP ranks. Keys and values are fetched in the forward (outputs 2 and 3); the backward gathers
 * queries over CP, so that every key's gradient is made by its owner, and sends the roots of groups of heads that TP cuts to their owner. */
#include <string.h>

#include "base/err.h"
#include "program/op_attention.h"

enum { CP = AXIS_BIT(AXIS_CP) };

/* dv goes on its way to the keys' owner before it is rounded. */
static AttnArgs allgather_args(const Op *op) {
  AttnArgs a = attention_args(op);
  a.dv_real = true;
  return a;
}

static int allgather_open(Program *p, const char *name, RowKind rows, OpAttr *attr, ValId *out) {
  Shards need = attention_needs(&attr->attention.q_own, &attr->attention.kv_own);
  attr->attention.q = attr->attention.q_own, attr->attention.kv = need;
  out[1] = attention_lse(p, name, rows, shard_total(&attr->attention.q) / attr->attention.head_dim);
  for (int i = 2; i < 4; i++)
    out[i] = program_act(p, arena_printf(p->arena, "%s.%s", name, i == 2 ? "k" : "v"), ROWS_SEQ, shard_total(&need), need);
  return 4;
}

/* ---- fetching: blocks of rows of the TP view to rows of whole sequences ------------------------------------------------------------------------------- */
typedef struct Fetch {
  const OpCall *c;
  AxisSet axes;
  Shards own, q;
  bool by_need;
  RowSeg *send, *recv;
  int n_send, n_recv;
} Fetch;

static Shards fetch_need(const Fetch *f, int tp) {
  const Dims *d = &f->c->p->dims;
  if (!f->by_need) return f->own;
  Shards q = shards_of(&f->q, d->n_tp, tp);
  return attention_needs(&q, &f->own);
}
/* Members of the group: over CP x TP a place is cp * n_tp + tp, over CP alone it is cp. */
static int fetch_place(const Fetch *f, int cp, int tp) { return f->by_need ? attention_place(&f->c->p->dims, cp, tp) : cp; }

static void fetch_plan_send(Fetch *f, int cp, int tp) {
  const DealMb *mb = f->c->mb;
  Shards need = fetch_need(f, tp);
  int64_t rows = mb->view[VIEW_TP].n_token;
  for (int j = f->own.first; j < f->own.first + f->own.count; j++) {
    if (j < need.first || j >= need.first + need.count) continue;
    int64_t width = shard_width(&f->own, j), base = rows * shard_local(&f->own, j);
    for (int s = 0; s < mb->n_cp_segment; s++) {
      const CpSegment *g = &mb->cp_segment[s];
      if (g->cp == f->c->p->dims.cp_self) f->send[f->n_send++] = (RowSeg){fetch_place(f, cp, tp), base + g->tp_row * width, g->n * width};
    }
  }
}
static void fetch_plan_recv(Fetch *f, int cp, int tp) {
  const DealMb *mb = f->c->mb;
  const Dims *d = &f->c->p->dims;
  Shards have = f->by_need ? shards_of(&f->own, d->n_tp, tp) : f->own, need = fetch_need(f, d->tp_self);
  int64_t rows = mb->view[VIEW_SEQ].n_token;
  for (int j = have.first; j < have.first + have.count; j++) {
    if (j < need.first || j >= need.first + need.count) continue;
    int64_t width = shard_width(&need, j), base = rows * shard_local(&need, j);
    for (int s = 0; s < mb->n_cp_segment; s++) {
      const CpSegment *g = &mb->cp_segment[s];
      if (g->cp == cp) f->recv[f->n_recv++] = (RowSeg){fetch_place(f, cp, tp), base + g->seq_row * width, g->n * width};
    }
  }
}
static size_t fetch_work(const Program *p, int64_t own_blocks, int64_t need_blocks, int64_t n_segment) {
  size_t sends = (size_t)(p->dims.n_cp * p->dims.n_tp * own_blocks * n_segment), recvs = (size_t)(p->dims.n_cp * need_blocks * n_segment);
  return work_align((sends + recvs + 2) * sizeof(RowSeg));
}
/* Segments are laid in `work`; then any number of values of this geometry can be sent. */
static Fetch fetch_open(const OpCall *c, const Shards *own, bool by_need, void *work) {
  const Dims *d = &c->p->dims;
  Fetch f = {.c = c, .axes = by_need ? ATTN_AXES : CP, .own = *own, .q = c->op->attr.attention.q_own, .by_need = by_need};
  f.send = work;
  f.recv = f.send + (size_t)d->n_cp * (size_t)d->n_tp * (size_t)own->count * (size_t)c->mb->n_cp_segment;
  for (int cp = 0; cp < d->n_cp; cp++)
    for (int tp = 0; tp < (by_need ? d->n_tp : 1); tp++) fetch_plan_send(&f, cp, tp), fetch_plan_recv(&f, cp, tp);
  return f;
}
static void fetch_run(const Fetch *f, const void *from, void *to, size_t element) {
  comm_exchange_rows(f->c->env->world, f->axes, from, f->send, f->n_send, to, f->recv, f->n_recv, element);
}

/* ---- forward -------------------------------------------------------------------------------------------------------------------------------------------- */
static void allgather_fwd(const OpCall *c) {
  AttnArgs a = allgather_args(c->op);
  Fetch f = fetch_open(c, &c->op->attr.attention.kv_own, true, c->work);
  fetch_run(&f, c->in[1], c->out[2], c->env->k->act_size);
  fetch_run(&f, c->in[2], c->out[3], c->env->k->act_size);
  KCtx kc = work_after(c, 0);
  c->env->k->attention_fwd(&kc, c->out[0], c->out[1], c->in[0], c->out[2], c->out[3], &a, &c->mb->view[VIEW_TP], &c->mb->view[VIEW_SEQ]);
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------------------------- */
/* The workspace of a backward, piece by piece; sizes 0 where a piece is not needed. */
typedef struct Backward {
  char *delta, *seg, *q, *d_o, *lse, *delta_seq, *k, *v, *dk, *dv, *roots, *kernel;
  size_t bytes;
} Backward;

static Backward backward_layout(const Program *p, const Op *op, const DealMb *mb, const Kernels *k, char *base) {
  size_t real = k->real_size, act = k->act_size;
  const Dims *d = &p->dims;
  AttnArgs a = allgather_args(op);
  size_t tp = (size_t)d->n_token[VIEW_TP], seq = (size_t)d->n_token[VIEW_SEQ], heads = (size_t)(shard_total(&a.q) / a.head_dim);
  size_t q = (size_t)shard_total(&a.q), need = (size_t)shard_total(&a.kv), own = (size_t)shard_total(&op->attr.attention.kv_own);
  bool cp = d->n_cp > 1;
  Backward b = {0};
  size_t at = 0;
#define PIECE(member, n) b.member = base + at, at += work_align(n)
  PIECE(delta, tp * heads * real);
  PIECE(seg, fetch_work(p, a.q.count > op->attr.attention.kv_own.count ? a.q.count : op->attr.attention.kv_own.count,
                        a.q.count > a.kv.count ? a.q.count : a.kv.count, mb->n_cp_segment) +
                 heads_work(p, op));
  PIECE(q, cp ? seq * q * act : 0);
  PIECE(d_o, cp ? seq * q * act : 0);
  PIECE(lse, cp ? seq * heads * real : 0);
  PIECE(delta_seq, cp ? seq * heads * real : 0);
  PIECE(k, cp ? tp * need * act : 0);
  PIECE(v, cp ? tp * need * act : 0);
  PIECE(dk, tp * need * real * (size_t)attention_planes(&a));
  PIECE(dv, tp * need * real * (size_t)attention_planes(&a));
  PIECE(roots, tp * own * real * (size_t)heads_roots(p, op));
  PIECE(kernel, 0);
#undef PIECE
  b.bytes = at;
  return b;
}

/* Rows of whole sequences that are this rank's TP view, block by block. */
static void take_own_rows(const OpCall *c, const Shards *blocks, const char *seq, char *tp) {
  const DealMb *mb = c->mb;
  size_t act = c->env->k->act_size;
  for (int j = blocks->first; j < blocks->first + blocks->count; j++) {
    size_t row = (size_t)shard_width(blocks, j) * act, at = (size_t)shard_local(blocks, j) * act;
    for (int s = 0; s < mb->n_cp_segment; s++) {
      const CpSegment *g = &mb->cp_segment[s];
      if (g->cp == c->p->dims.cp_self)
        memcpy(tp + at * (size_t)mb->view[VIEW_TP].n_token + (size_t)g->tp_row * row,
               seq + at * (size_t)mb->view[VIEW_SEQ].n_token + (size_t)g->seq_row * row, (size_t)g->n * row);
    }
  }
}

static void gradients_over_cp(const OpCall *c, const AttnArgs *a, const Backward *b, void *d_q) {
  const Kernels *k = c->env->k;
  const TokenView *tp = &c->mb->view[VIEW_TP], *seq = &c->mb->view[VIEW_SEQ];
  Shards heads = {1, 0, 1, shard_total(&a->q) / a->head_dim, 1};
  KCtx kc = work_after(c, (size_t)(b->kernel - (char *)c->work));
  k->attention_bwd(&kc, d_q, NULL, NULL, c->d_out[0], c->out[1], b->delta, c->in[0], c->out[2], c->out[3], a, tp, seq);
  Fetch f = fetch_open(c, &a->q, false, b->seg);
  fetch_run(&f, c->in[0], b->q, k->act_size);
  fetch_run(&f, c->d_out[0], b->d_o, k->act_size);
  f = fetch_open(c, &heads, false, b->seg);
  fetch_run(&f, c->out[1], b->lse, k->real_size);
  fetch_run(&f, b->delta, b->delta_seq, k->real_size);
  take_own_rows(c, &a->kv, c->out[2], b->k);
  take_own_rows(c, &a->kv, c->out[3], b->v);
  k->attention_bwd(&kc, NULL, b->dk, b->dv, b->d_o, b->lse, b->delta_seq, b->q, b->k, b->v, a, seq, tp);
}

static void allgather_dx(const OpCall *c) {
  AttnArgs a = allgather_args(c->op);
  const Kernels *k = c->env->k;
  const TokenView *tp = &c->mb->view[VIEW_TP];
  Backward b = backward_layout(c->p, c->op, c->mb, k, c->work);
  KCtx kc = work_after(c, (size_t)(b.kernel - (char *)c->work));
  k->attention_delta(&kc, b.delta, c->d_out[0], c->out[0], &a, tp);
  if (c->p->dims.n_cp > 1)
    gradients_over_cp(c, &a, &b, c->d_in[0]);
  else
    k->attention_bwd(&kc, c->d_in[0], b.dk, b.dv, c->d_out[0], c->out[1], b.delta, c->in[0], c->out[2], c->out[3], &a, tp, tp);
  heads_return(c, k->wide, (RowSeg *)b.seg, b.dk, b.roots, c->d_in[1]);
  heads_return(c, k, (RowSeg *)b.seg, b.dv, b.roots, c->d_in[2]);
}

static void fetch_sketch(const OpCall *c, const Shards *own, bool by_need, size_t element, Sketch *s) {
  Fetch f = fetch_open(c, own, by_need, c->work);
  for (int i = 0; i < 2; i++) sketch_exchange_rows(s, f.axes, f.send, f.n_send, f.recv, f.n_recv, element);
}
static void allgather_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD) {
    fetch_sketch(c, &c->op->attr.attention.kv_own, true, c->env->k->act_size, s);
    return;
  }
  AttnArgs a = allgather_args(c->op);
  Shards heads = {1, 0, 1, shard_total(&a.q) / a.head_dim, 1};
  if (c->p->dims.n_cp > 1) fetch_sketch(c, &a.q, false, c->env->k->act_size, s), fetch_sketch(c, &heads, false, c->env->k->real_size, s);
  for (int i = 0; i < 2; i++) heads_return_traffic(c, c->work, s);
}

static size_t allgather_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = allgather_args(w->op);
  const TokenView *tp = &w->mb->view[VIEW_TP], *seq = &w->mb->view[VIEW_SEQ];
  const Shards *own = &w->op->attr.attention.kv_own;
  size_t seg = fetch_work(w->p, own->count, a.kv.count, w->mb->n_cp_segment);
  if (pass == PASS_FWD) {
    size_t n = w->k->attention_work(&w->kctx, &a, tp, seq, ATTN_FWD);
    return n > seg ? n : seg;
  }
  size_t before = backward_layout(w->p, w->op, w->mb, w->k, NULL).bytes;
  if (w->p->dims.n_cp == 1) return before + w->k->attention_work(&w->kctx, &a, tp, tp, ATTN_BWD);
  size_t q = w->k->attention_work(&w->kctx, &a, tp, seq, ATTN_BWD_Q), kv = w->k->attention_work(&w->kctx, &a, seq, tp, ATTN_BWD_K);
  return before + (q > kv ? q : kv);
}

const AttnExchange attn_gather = {.open = allgather_open,
                                  .x_in = 1,
                                  .view = VIEW_TP,
                                  .fwd = allgather_fwd,
                                  .dx = allgather_dx,
                                  .work = allgather_work,
                                  .traffic = allgather_traffic};
