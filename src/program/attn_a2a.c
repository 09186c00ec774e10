/* Attention by all-to-all over CP (DeepSpeed-Ulysses, Jacobs et al. 2023). Windows of a TP rank's heads become whole sequences of some heads and come back: a key
 * head goes, with the query heads of its group wherever TP has them, to one CP rank of the TP rank that owns it. So every head is computed in one place, with the
 * bits of a single rank. Shares of heads may be uneven or empty. */
#include <string.h>

#include "program/op_attention.h"

/* ---- who has which heads: numbers [first, end) of query or key heads ------------------------------------------------------------------------------- */
typedef struct Heads {
  int64_t first, end;
} Heads;

static Heads owned_heads(const Shards *own, const Dims *d, int tp) {
  Shards s = shards_of(own, d->n_tp, tp);
  return (Heads){shard_begin(&s, s.first) / s.unit, shard_begin(&s, s.first + s.count) / s.unit};
}
/* Key heads that a place works on. */
static Heads dealt_keys(const OpAttr *attr, const Dims *d, int cp, int tp) {
  Heads own = owned_heads(&attr->attention.kv_own, d, tp);
  int64_t n = own.end - own.first;
  return (Heads){own.first + share_begin(n, d->n_cp, cp), own.first + share_begin(n, d->n_cp, cp + 1)};
}
static Heads meet(Heads a, Heads b) { return (Heads){a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end}; }

/* Heads one after the other: [head][rows][unit]. */
static Shards by_head(int64_t heads, Heads h, int64_t unit) {
  return (Shards){.n = (int)heads, .first = (int)h.first, .count = (int)(h.end - h.first), .units = heads, .unit = unit};
}

static int a2a_open(Program *p, const char *name, RowKind rows, OpAttr *attr, ValId *out) {
  (void)rows;
  static const char *const what[] = {"q", "k", "v"};
  int64_t heads = attr->attention.q_own.units, kv_heads = attr->attention.kv_own.units, D = attr->attention.head_dim;
  Heads kv = dealt_keys(attr, &p->dims, p->dims.cp_self, p->dims.tp_self);
  Heads q = {kv.first * (heads / kv_heads), kv.end * (heads / kv_heads)};
  attr->attention.q = by_head(heads, q, D), attr->attention.kv = by_head(kv_heads, kv, D);
  out[1] = attention_lse(p, name, ROWS_SEQ, q.end - q.first);
  for (int i = 0; i < 3; i++) {
    Shards s = i ? attr->attention.kv : attr->attention.q;
    out[2 + i] = program_act(p, arena_printf(p->arena, "%s.%s", name, what[i]), ROWS_SEQ, shard_total(&s), s);
  }
  return 5;
}

/* ---- the exchange of a value --------------------------------------------------------------------------------------------------------------------------- */
/* A value on its two sides, head after head: here windows of the heads of this TP rank, there whole sequences of the heads that are dealt to this place. */
typedef struct Turn {
  const OpCall *c;
  RowSeg *windows, *sequences; /* segments that go and come on each side */
  int n_windows, n_sequences;
} Turn;
typedef enum { SIDE_QUERY, SIDE_KEY } HeadSide;

static void turn_windows(Turn *t, const OpCall *c, int place, Heads own, Heads h) {
  const DealMb *mb = c->mb;
  for (int64_t i = h.first; i < h.end; i++)
    for (int s = 0; s < mb->n_cp_segment; s++) {
      const CpSegment *g = &mb->cp_segment[s];
      if (g->cp == c->p->dims.cp_self)
        t->windows[t->n_windows++] = (RowSeg){place, (i - own.first) * mb->view[VIEW_TP].n_token + g->tp_row, g->n};
    }
}
static void turn_sequences(Turn *t, const OpCall *c, int place, int cp, Heads mine, Heads h) {
  const DealMb *mb = c->mb;
  for (int64_t i = h.first; i < h.end; i++)
    for (int s = 0; s < mb->n_cp_segment; s++) {
      const CpSegment *g = &mb->cp_segment[s];
      if (g->cp == cp) t->sequences[t->n_sequences++] = (RowSeg){place, (i - mine.first) * mb->view[VIEW_SEQ].n_token + g->seq_row, g->n};
    }
}
static Turn turn_open(const OpCall *c, HeadSide side, RowSeg *seg) {
  const Dims *d = &c->p->dims;
  const OpAttr *attr = &c->op->attr;
  const Shards *axis = side == SIDE_QUERY ? &attr->attention.q_own : &attr->attention.kv_own;
  int64_t group = side == SIDE_QUERY ? axis->units / attr->attention.kv_own.units : 1;
  Heads own = owned_heads(axis, d, d->tp_self), kv = dealt_keys(attr, d, d->cp_self, d->tp_self), mine = {kv.first * group, kv.end * group};
  Turn t = {.c = c, .windows = seg, .sequences = seg + (own.end - own.first) * c->mb->n_cp_segment};
  for (int cp = 0; cp < d->n_cp; cp++)
    for (int tp = 0; tp < d->n_tp; tp++) {
      Heads dealt = dealt_keys(attr, d, cp, tp), theirs = {dealt.first * group, dealt.end * group};
      turn_windows(&t, c, attention_place(d, cp, tp), own, meet(own, theirs));
      turn_sequences(&t, c, attention_place(d, cp, tp), cp, mine, meet(mine, owned_heads(axis, d, tp)));
    }
  return t;
}
static size_t turn_bytes(const Op *op, int64_t n_segment) {
  const Shards *own = &op->attr.attention.q_own,
               *dealt = &op->attr.attention.q; /* key heads are no more than these, or have no query head here */
  int64_t kv = (shard_total(&op->attr.attention.kv_own) + shard_total(&op->attr.attention.kv)) / op->attr.attention.head_dim;
  int64_t q = (shard_total(own) + shard_total(dealt)) / op->attr.attention.head_dim;
  return work_align((size_t)((q > kv ? q : kv) * n_segment + 1) * sizeof(RowSeg));
}
static void to_sequences(const Turn *t, const void *from, void *to, size_t row) {
  comm_exchange_rows(t->c->env->world, ATTN_AXES, from, t->windows, t->n_windows, to, t->sequences, t->n_sequences, row);
}
static void to_windows(const Turn *t, const void *from, void *to, size_t row) {
  comm_exchange_rows(t->c->env->world, ATTN_AXES, from, t->sequences, t->n_sequences, to, t->windows, t->n_windows, row);
}

/* Rows of blocks of heads (shard-major) to the same head after head, or back. unit: bytes of a head in a row. */
static void copy_heads(char *dense, char *blocks, const Shards *s, int64_t rows, size_t unit, bool back) {
  for (int j = s->first; j < s->first + s->count; j++) {
    size_t heads = (size_t)(shard_width(s, j) / s->unit);
    char *block = blocks + (size_t)(shard_local(s, j) / s->unit * rows) * unit;
    for (size_t h = 0; h < heads; h++)
      for (int64_t r = 0; r < rows; r++, dense += unit) {
        char *at = block + ((size_t)r * heads + h) * unit;
        memcpy(back ? at : dense, back ? dense : at, unit);
      }
  }
}

/* ---- workspaces ------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Places {
  RowSeg *seg;
  char *stage, *o, *d_o, *delta, *delta_heads, *delta_rows, *dq, *dk, *dv, *kernel; /* from o on: whole sequences of dealt heads */
  size_t bytes;
} Places;
static Places places(const Program *p, const Op *op, const DealMb *mb, const Kernels *k, Pass pass, char *base) {
  size_t real = k->real_size, act = k->act_size, tp = (size_t)p->dims.n_token[VIEW_TP], seq = (size_t)p->dims.n_token[VIEW_SEQ];
  size_t D = (size_t)op->attr.attention.head_dim, q = (size_t)shard_total(&op->attr.attention.q),
         kv = (size_t)shard_total(&op->attr.attention.kv);
  size_t q_own = (size_t)shard_total(&op->attr.attention.q_own), kv_own = (size_t)shard_total(&op->attr.attention.kv_own);
  bool back = pass == PASS_BWD_X;
  Places w = {.seg = (RowSeg *)base};
  size_t at = turn_bytes(op, mb->n_cp_segment);
#define PLACE(member, n) w.member = base + at, at += work_align(n)
  PLACE(stage, tp * (q_own > kv_own ? q_own : kv_own) * (back ? real : act));
  PLACE(o, back ? 0 : seq * q * act);
  PLACE(d_o, back ? seq * q * act : 0);
  PLACE(delta, back ? tp * q_own / D * real : 0);
  PLACE(delta_heads, back ? seq * q / D * real : 0);
  PLACE(delta_rows, back ? seq * q / D * real : 0);
  PLACE(dq, back ? seq * q * real : 0);
  PLACE(dk, back ? seq * kv * real : 0);
  PLACE(dv, back ? seq * kv * act : 0);
  PLACE(kernel, 0);
#undef PLACE
  w.bytes = at;
  return w;
}
static Places places_of(const OpCall *c, Pass pass) { return places(c->p, c->op, c->mb, c->env->k, pass, c->work); }

/* ---- passes ------------------------------------------------------------------------------------------------------------------------------------------- */
/* own: the blocks in which the value lies here, in elements of `element` bytes. */
static void value_to_sequences(const OpCall *c, const Places *w, HeadSide side, const Shards *own, size_t element, const void *from,
                               void *to) {
  Turn t = turn_open(c, side, w->seg);
  size_t unit = (size_t)own->unit * element;
  copy_heads(w->stage, (char *)from, own, c->mb->view[VIEW_TP].n_token, unit, false);
  to_sequences(&t, w->stage, to, unit);
}
static void value_to_windows(const OpCall *c, const Places *w, HeadSide side, const Shards *own, size_t element, const void *from,
                             void *to) {
  Turn t = turn_open(c, side, w->seg);
  size_t unit = (size_t)own->unit * element;
  to_windows(&t, from, w->stage, unit);
  copy_heads(w->stage, to, own, c->mb->view[VIEW_TP].n_token, unit, true);
}

static void a2a_fwd(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  Places w = places_of(c, PASS_FWD);
  const Shards *q = &c->op->attr.attention.q_own, *kv = &c->op->attr.attention.kv_own;
  const TokenView *seq = &c->mb->view[VIEW_SEQ];
  size_t act = c->env->k->act_size;
  value_to_sequences(c, &w, SIDE_QUERY, q, act, c->in[0], c->out[2]);
  value_to_sequences(c, &w, SIDE_KEY, kv, act, c->in[1], c->out[3]);
  value_to_sequences(c, &w, SIDE_KEY, kv, act, c->in[2], c->out[4]);
  KCtx kc = work_after(c, (size_t)(w.kernel - (char *)c->work));
  c->env->k->attention_fwd(&kc, w.o, c->out[1], c->out[2], c->out[3], c->out[4], &a, seq, seq);
  value_to_windows(c, &w, SIDE_QUERY, q, act, w.o, c->out[0]);
}

/* <d_o, o> where both are, then to where the queries are: less to send than o. */
static void delta_to_sequences(const OpCall *c, const Places *w, const AttnArgs *a) {
  const Kernels *k = c->env->k;
  AttnArgs own = *a;
  own.q = c->op->attr.attention.q_own;
  Shards from = {1, 0, 1, shard_total(&own.q) / a->head_dim, 1}, to = {1, 0, 1, shard_total(&a->q) / a->head_dim, 1};
  k->attention_delta(&c->env->kctx, w->delta, c->d_out[0], c->out[0], &own, &c->mb->view[VIEW_TP]);
  value_to_sequences(c, w, SIDE_QUERY, &from, k->real_size, w->delta, w->delta_heads);
  copy_heads(w->delta_heads, w->delta_rows, &to, c->mb->view[VIEW_SEQ].n_token, k->real_size, true);
}
static void a2a_dx(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  Places w = places_of(c, PASS_BWD_X);
  const Shards *q = &c->op->attr.attention.q_own, *kv = &c->op->attr.attention.kv_own;
  const TokenView *seq = &c->mb->view[VIEW_SEQ];
  const Kernels *k = c->env->k;
  value_to_sequences(c, &w, SIDE_QUERY, q, k->act_size, c->d_out[0], w.d_o);
  delta_to_sequences(c, &w, &a);
  KCtx kc = work_after(c, (size_t)(w.kernel - (char *)c->work));
  k->attention_bwd(&kc, w.dq, w.dk, w.dv, w.d_o, c->out[1], w.delta_rows, c->out[2], c->out[3], c->out[4], &a, seq, seq);
  value_to_windows(c, &w, SIDE_QUERY, q, k->real_size, w.dq, c->d_in[0]);
  value_to_windows(c, &w, SIDE_KEY, kv, k->real_size, w.dk, c->d_in[1]);
  value_to_windows(c, &w, SIDE_KEY, kv, k->act_size, w.dv, c->d_in[2]);
}

static size_t a2a_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = attention_args(w->op);
  const TokenView *seq = &w->mb->view[VIEW_SEQ];
  return places(w->p, w->op, w->mb, w->k, pass, NULL).bytes +
         w->k->attention_work(&w->kctx, &a, seq, seq, pass == PASS_FWD ? ATTN_FWD : ATTN_BWD);
}

static void sketch_to_sequences(const OpCall *c, Sketch *s, HeadSide side, size_t row) {
  Turn t = turn_open(c, side, c->work);
  sketch_exchange_rows(s, ATTN_AXES, t.windows, t.n_windows, t.sequences, t.n_sequences, row);
}
static void sketch_to_windows(const OpCall *c, Sketch *s, HeadSide side, size_t row) {
  Turn t = turn_open(c, side, c->work);
  sketch_exchange_rows(s, ATTN_AXES, t.sequences, t.n_sequences, t.windows, t.n_windows, row);
}
static void a2a_traffic(const OpCall *c, Pass pass, Sketch *s) {
  size_t real = c->env->k->real_size, D = (size_t)c->op->attr.attention.head_dim, act = D * c->env->k->act_size;
  if (pass == PASS_FWD) {
    sketch_to_sequences(c, s, SIDE_QUERY, act);
    for (int i = 0; i < 2; i++) sketch_to_sequences(c, s, SIDE_KEY, act);
    sketch_to_windows(c, s, SIDE_QUERY, act);
    return;
  }
  sketch_to_sequences(c, s, SIDE_QUERY, act);
  sketch_to_sequences(c, s, SIDE_QUERY, real);
  sketch_to_windows(c, s, SIDE_QUERY, D * real);
  sketch_to_windows(c, s, SIDE_KEY, D * real);
  sketch_to_windows(c, s, SIDE_KEY, act);
}

const AttnExchange attn_alltoall = {
    .open = a2a_open, .view = VIEW_SEQ, .fwd = a2a_fwd, .dx = a2a_dx, .work = a2a_work, .traffic = a2a_traffic};
