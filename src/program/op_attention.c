/* The attention op. Where this rank's query heads read key heads of other TP ranks, or CP deals windows out, keys and values are fetched in the forward (outputs 2 and
 * 3); backward gathers queries over CP, so that every key's gradient is made by its owner, and sends the roots of groups of heads that TP cuts to their owner.  */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "program/op_passes.h"

enum { ALIGN = 64, CP = AXIS_BIT(AXIS_CP), TP = AXIS_BIT(AXIS_TP) };
static size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- who needs which key heads -------------------------------------------------------------------------------------------------------------------- */
static Shards needed_blocks(const Shards *q, const Shards *kv) {
  int64_t group = q->units / kv->units, lo = shard_begin(q, q->first) / q->unit, hi = shard_begin(q, q->first + q->count) / q->unit;
  Shards s = {.n = kv->n, .units = kv->units, .unit = kv->unit};
  if (lo == hi) return s;
  int64_t first = lo / group * kv->unit, last = ((hi - 1) / group + 1) * kv->unit;
  while (shard_begin(kv, s.first + 1) <= first) s.first++;
  while (shard_begin(kv, s.first + s.count) < last) s.count++;
  return s;
}
static bool same_blocks(const Shards *a, const Shards *b) { return a->count == b->count && (!a->count || a->first == b->first); }
static bool fetches(const Program *p, const Shards *q, const Shards *kv) {
  bool any = p->dims.n_cp > 1;
  for (int t = 0; t < p->dims.n_tp; t++) {
    Shards theirs = shards_of(q, p->dims.n_tp, t), have = shards_of(kv, p->dims.n_tp, t), need = needed_blocks(&theirs, kv);
    any |= !same_blocks(&need, &have);
  }
  return any;
}

ValId op_attention(Program *p, const char *name, ValId q, ValId k, ValId v, int64_t head_dim, int64_t window) {
  Arena *a = p->arena;
  Shards cut = p->val[q].cut, own = p->val[k].cut;
  int64_t heads = shard_total(&cut) / head_dim;
  bool fetch = fetches(p, &cut, &own);
  Shards need = fetch ? needed_blocks(&cut, &own) : own;
  ValId out[4] = {program_act(p, name, p->val[q].rows, p->val[q].width, cut),
                  program_act(p, arena_printf(a, "%s.lse", name), p->val[q].rows, heads, (Shards){1, 0, 1, heads, 1})};
  p->val[out[1]].floor = true;
  value_types(p, out[1], p->num.real, p->num.real);
  for (int i = 2; i < 4 && fetch; i++)
    out[i] = program_act(p, arena_printf(a, "%s.%s", name, i == 2 ? "k" : "v"), ROWS_SEQ, shard_total(&need), need);
  Op *op = program_op(p, OP_ATTENTION, name, (ValId[]){q, k, v}, 3, out, fetch ? 4 : 2);
  if (fetch) op->x_in = 1; /* keys and values are read where they were fetched to */
  op->attr.attention.q = cut, op->attr.attention.kv = need, op->attr.attention.kv_own = own;
  op->attr.attention.head_dim = head_dim;
  op->attr.attention.window = window;
  op->attr.attention.scale = 1.0 / sqrt((double)head_dim);
  return out[0];
}
static AttnArgs attention_args(const Op *op) {
  return (AttnArgs){.q = op->attr.attention.q,
                    .kv = op->attr.attention.kv,
                    .head_dim = op->attr.attention.head_dim,
                    .window = op->attr.attention.window,
                    .scale = op->attr.attention.scale,
                    .dv_real = op->n_out == 4};
}
static bool op_fetches(const Op *op) { return op->n_out == 4; }

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
  return needed_blocks(&q, &f->own);
}
/* Members of the group: over CP x TP a place is cp * n_tp + tp, over CP alone it is cp. */
static int fetch_place(const Fetch *f, int cp, int tp) { return f->by_need ? cp * f->c->p->dims.n_tp + tp : cp; }

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
  return align_up((sends + recvs + 2) * sizeof(RowSeg));
}
/* Segments are laid in `work`; then any number of values of this geometry can be sent. */
static Fetch fetch_open(const OpCall *c, const Shards *own, bool by_need, void *work) {
  const Dims *d = &c->p->dims;
  Fetch f = {.c = c, .axes = by_need ? CP | TP : CP, .own = *own, .q = c->op->attr.attention.q, .by_need = by_need};
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
void attention_fwd(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  const void *k = c->in[1], *v = c->in[2];
  if (op_fetches(c->op)) {
    Fetch f = fetch_open(c, &c->op->attr.attention.kv_own, true, c->work);
    fetch_run(&f, c->in[1], c->out[2], c->env->k->act_size);
    fetch_run(&f, c->in[2], c->out[3], c->env->k->act_size);
    k = c->out[2], v = c->out[3];
  }
  KCtx kc = work_after(c, 0);
  c->env->k->attention_fwd(&kc, c->out[0], c->out[1], c->in[0], k, v, &a, &c->mb->view[VIEW_TP], &c->mb->view[VIEW_SEQ]);
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------------------------- */
/* The workspace of a backward, piece by piece; sizes 0 where a piece is not needed. */
typedef struct Backward {
  char *delta, *seg, *q, *d_o, *lse, *delta_seq, *k, *v, *dk, *dv, *roots, *kernel;
  size_t bytes;
} Backward;

static size_t roots_received(const Program *p, const Op *op) {
  int64_t planes = 0;
  for (int t = 0; t < p->dims.n_tp; t++) {
    AttnArgs a = attention_args(op);
    a.q = shards_of(&a.q, p->dims.n_tp, t), a.kv = needed_blocks(&a.q, &op->attr.attention.kv_own);
    planes += attention_planes(&a);
  }
  return (size_t)planes;
}
static Backward backward_layout(const Program *p, const Op *op, const DealMb *mb, const Kernels *k, char *base) {
  size_t real = k->real_size, act = k->act_size;
  const Dims *d = &p->dims;
  AttnArgs a = attention_args(op);
  size_t tp = (size_t)d->n_token[VIEW_TP], seq = (size_t)d->n_token[VIEW_SEQ], heads = (size_t)(shard_total(&a.q) / a.head_dim);
  size_t q = (size_t)shard_total(&a.q), need = (size_t)shard_total(&a.kv), own = (size_t)shard_total(&op->attr.attention.kv_own);
  bool fetch = op_fetches(op), cp = d->n_cp > 1;
  Backward b = {0};
  size_t at = 0;
#define PIECE(member, n) b.member = base + at, at += align_up(n)
  PIECE(delta, tp * heads * real);
  PIECE(seg, fetch ? fetch_work(p, a.q.count > op->attr.attention.kv_own.count ? a.q.count : op->attr.attention.kv_own.count,
                                a.q.count > a.kv.count ? a.q.count : a.kv.count, mb->n_cp_segment) +
                         (size_t)(d->n_tp * (a.kv.count + 1) + d->n_tp) * 64 * sizeof(RowSeg)
                   : 0);
  PIECE(q, cp ? seq * q * act : 0);
  PIECE(d_o, cp ? seq * q * act : 0);
  PIECE(lse, cp ? seq * heads * real : 0);
  PIECE(delta_seq, cp ? seq * heads * real : 0);
  PIECE(k, cp ? tp * need * act : 0);
  PIECE(v, cp ? tp * need * act : 0);
  PIECE(dk, fetch ? tp * need * real * (size_t)attention_planes(&a) : 0);
  PIECE(dv, fetch ? tp * need * real * (size_t)attention_planes(&a) : 0);
  PIECE(roots, fetch ? tp * own * real * roots_received(p, op) : 0);
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

/* Roots of each key block to the TP rank that owns it: plane by plane, block by block. */
static int root_sends(const OpCall *c, const AttnArgs *a, RowSeg *seg) {
  const Dims *d = &c->p->dims;
  int64_t rows = c->mb->view[VIEW_TP].n_token, plane = rows * shard_total(&a->kv);
  int n = 0, planes = attention_planes(a);
  for (int t = 0; t < d->n_tp; t++) {
    Shards theirs = shards_of(&c->op->attr.attention.kv_own, d->n_tp, t);
    for (int r = 0; r < planes; r++)
      for (int j = a->kv.first; j < a->kv.first + a->kv.count; j++)
        if (j >= theirs.first && j < theirs.first + theirs.count)
          seg[n++] = (RowSeg){t, r * plane + rows * shard_local(&a->kv, j), rows * shard_width(&a->kv, j)};
  }
  return n;
}
typedef struct RootSource {
  AttnArgs args;
  int first; /* of its planes in the received ones */
} RootSource;

static int root_receives(const OpCall *c, RootSource *src, RowSeg *seg) {
  const Dims *d = &c->p->dims;
  const Shards *own = &c->op->attr.attention.kv_own;
  int64_t rows = c->mb->view[VIEW_TP].n_token, plane = rows * shard_total(own);
  int n = 0, planes = 0;
  for (int t = 0; t < d->n_tp; t++) {
    AttnArgs a = attention_args(c->op);
    a.q = shards_of(&a.q, d->n_tp, t), a.kv = needed_blocks(&a.q, own);
    src[t] = (RootSource){a, planes};
    for (int r = 0; r < attention_planes(&a); r++, planes++)
      for (int j = a.kv.first; j < a.kv.first + a.kv.count; j++)
        if (j >= own->first && j < own->first + own->count)
          seg[n++] = (RowSeg){t, planes * plane + rows * shard_local(own, j), rows * shard_width(own, j)};
  }
  return n;
}
/* out: of the type that `to` calls act */
static void merge_heads(const OpCall *c, const Kernels *to, const RootSource *src, const char *roots, char *out) {
  const Shards *own = &c->op->attr.attention.kv_own;
  int64_t D = c->op->attr.attention.head_dim, rows = c->mb->view[VIEW_TP].n_token, plane = rows * shard_total(own);
  size_t real = c->env->k->real_size;
  for (int j = own->first; j < own->first + own->count; j++)
    for (int64_t at = shard_begin(own, j); at < shard_begin(own, j + 1); at += D) {
      TreeNode node[PLANES_MAX];
      const void *value[PLANES_MAX];
      int n = 0;
      int64_t element = rows * shard_local(own, j) + at - shard_begin(own, j);
      for (int t = 0; t < c->p->dims.n_tp; t++) {
        int m = attention_roots(&src[t].args, at / D, node + n);
        for (int r = 0; r < m; r++, n++) value[n] = roots + (size_t)((src[t].first + r) * plane + element) * real;
      }
      to->tree_merge(&c->env->kctx, out + (size_t)element * to->act_size, value, node, n, rows, D, shard_width(own, j),
                     shard_width(own, j));
    }
}
static void return_roots(const OpCall *c, const Kernels *to, const AttnArgs *a, const Backward *b, const char *planes, void *out) {
  RootSource src[c->p->dims.n_tp];
  RowSeg *send = (RowSeg *)b->seg;
  int n_send = root_sends(c, a, send);
  RowSeg *recv = send + n_send;
  int n_recv = root_receives(c, src, recv);
  comm_exchange_rows(c->env->world, TP, planes, send, n_send, b->roots, recv, n_recv, c->env->k->real_size);
  merge_heads(c, to, src, b->roots, out);
}

void attention_dx(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  const Kernels *k = c->env->k;
  const TokenView *tp = &c->mb->view[VIEW_TP];
  Backward b = backward_layout(c->p, c->op, c->mb, k, c->work);
  KCtx kc = work_after(c, (size_t)(b.kernel - (char *)c->work));
  k->attention_delta(&kc, b.delta, c->d_out[0], c->out[0], &a, tp);
  if (!op_fetches(c->op)) {
    k->attention_bwd(&kc, c->d_in[0], c->d_in[1], c->d_in[2], c->d_out[0], c->out[1], b.delta, c->in[0], c->in[1], c->in[2], &a, tp, tp);
    return;
  }
  if (c->p->dims.n_cp > 1)
    gradients_over_cp(c, &a, &b, c->d_in[0]);
  else
    k->attention_bwd(&kc, c->d_in[0], b.dk, b.dv, c->d_out[0], c->out[1], b.delta, c->in[0], c->out[2], c->out[3], &a, tp, tp);
  return_roots(c, k->wide, &a, &b, b.dk, c->d_in[1]);
  return_roots(c, k, &a, &b, b.dv, c->d_in[2]);
}

static void fetch_sketch(const OpCall *c, const Shards *own, bool by_need, size_t element, Sketch *s) {
  Fetch f = fetch_open(c, own, by_need, c->work);
  for (int i = 0; i < 2; i++) sketch_exchange_rows(s, f.axes, f.send, f.n_send, f.recv, f.n_recv, element);
}
void attention_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (!op_fetches(c->op)) return;
  if (pass == PASS_FWD) {
    fetch_sketch(c, &c->op->attr.attention.kv_own, true, c->env->k->act_size, s);
    return;
  }
  AttnArgs a = attention_args(c->op);
  Shards heads = {1, 0, 1, shard_total(&a.q) / a.head_dim, 1};
  RootSource src[c->p->dims.n_tp];
  if (c->p->dims.n_cp > 1) fetch_sketch(c, &a.q, false, c->env->k->act_size, s), fetch_sketch(c, &heads, false, c->env->k->real_size, s);
  RowSeg *send = c->work;
  int n_send = root_sends(c, &a, send), n_recv = root_receives(c, src, send + n_send);
  for (int i = 0; i < 2; i++) sketch_exchange_rows(s, TP, send, n_send, send + n_send, n_recv, c->env->k->real_size);
}

size_t attention_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = attention_args(w->op);
  const TokenView *tp = &w->mb->view[VIEW_TP], *seq = &w->mb->view[VIEW_SEQ];
  const Shards *own = &w->op->attr.attention.kv_own;
  size_t seg = op_fetches(w->op) ? fetch_work(w->p, own->count, a.kv.count, w->mb->n_cp_segment) : 0;
  if (pass == PASS_FWD) {
    size_t n = w->k->attention_work(&w->kctx, &a, tp, seq, ATTN_FWD);
    return n > seg ? n : seg;
  }
  size_t before = backward_layout(w->p, w->op, w->mb, w->k, NULL).bytes;
  if (w->p->dims.n_cp == 1) return before + w->k->attention_work(&w->kctx, &a, tp, tp, ATTN_BWD);
  size_t q = w->k->attention_work(&w->kctx, &a, tp, seq, ATTN_BWD_Q), kv = w->k->attention_work(&w->kctx, &a, seq, tp, ATTN_BWD_K);
  return before + (q > kv ? q : kv);
}

/* Visible (query, key) pairs of own queries: causal and within the window; two products forward, four backward. */
double attention_flops(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row) {
  (void)p, (void)n_row;
  const TokenView *t = &mb->view[VIEW_TP];
  int64_t W = op->attr.attention.window;
  double visible = 0;
  for (int64_t i = 0; i < t->n_token; i++) visible += (double)(W && t->position[i] >= W ? W : t->position[i] + 1);
  double forward = 4.0 * (double)shard_total(&op->attr.attention.q) * visible;
  return pass == PASS_FWD ? forward : 2 * forward;
}
