/* Sequence parallelism: own tokens to the TP group's and back. Forward gathers rows; backward sums, for each consumer, the planes that its weight blocks on all TP
 * ranks left, by the fixed tree over blocks, and adds consumers, the last first: what a single rank does. The reduce op is the same the other way round. */
#include <string.h>

#include "base/err.h"
#include "program/op_passes.h"

enum { TP = AXIS_BIT(AXIS_TP) };

/* Rows of the TP view that member i owns, for every plane: what it is sent. */
static int plane_sends(const OpCall *c, int n_plane, RowSeg *seg) {
  const Dims *d = &c->p->dims;
  int64_t all = c->mb->view[VIEW_TP].n_token;
  int n = 0;
  for (int i = 0; i < d->n_tp; i++)
    for (int k = 0; k < n_plane; k++) seg[n++] = (RowSeg){i, k * all + c->mb->tp_row[i], c->mb->tp_row[i + 1] - c->mb->tp_row[i]};
  return n;
}

/* The two sides of an exchange of planes: `recv` are those of own tokens, by member; node: where each is in the tree. */
typedef struct Planes {
  RowSeg *recv, *send;
  int n_recv, n_send;
  TreeNode node[PLANES_MAX];
} Planes;
static Planes planes_open(const OpCall *c, const Shards *blocks, RowSeg *seg) {
  const Dims *d = &c->p->dims;
  int64_t own = c->mb->view[VIEW_OWN].n_token;
  Planes x = {.recv = seg, .send = seg + plane_bound(blocks, d->n_tp)};
  for (int i = 0; i < d->n_tp; i++) {
    Shards theirs = shards_of(blocks, d->n_tp, i);
    int m = shard_roots(&theirs, x.node + x.n_recv);
    for (int k = 0; k < m; k++, x.n_recv++) x.recv[x.n_recv] = (RowSeg){i, x.n_recv * own, own};
  }
  TreeNode mine[TREE_ROOTS];
  Shards local = shards_of(blocks, d->n_tp, d->tp_self);
  x.n_send = plane_sends(c, shard_roots(&local, mine), x.send);
  return x;
}

/* Exchanges planes and merges those of own tokens: out [T, width] = tree over blocks. `work`: received planes, then segments. */
static void merge_planes(const OpCall *c, const Kernels *to, const Shards *blocks, int64_t width, const void *planes, void *out,
                         void *work) {
  const Dims *d = &c->p->dims;
  int64_t own = c->mb->view[VIEW_OWN].n_token;
  size_t row_bytes = (size_t)width * c->env->k->real_size;
  Planes x = planes_open(
      c, blocks, (RowSeg *)((char *)work + work_align((size_t)plane_bound(blocks, d->n_tp) * (size_t)d->n_token[VIEW_OWN] * row_bytes)));
  const void *plane[PLANES_MAX];
  for (int k = 0; k < x.n_recv; k++) plane[k] = (const char *)work + (size_t)(k * own) * row_bytes;
  comm_exchange_rows(c->env->world, TP, planes, x.send, x.n_send, work, x.recv, x.n_recv, row_bytes);
  to->tree_merge(&c->env->kctx, out, plane, x.node, x.n_recv, own, width, width, width);
}

/* Own rows to everybody's place in the TP view. */
static void gather_rows(const OpCall *c, const void *own, void *all, size_t row /* bytes */) {
  const int64_t *bound = c->mb->tp_row;
  int self = c->p->dims.tp_self;
  memcpy((char *)all + (size_t)bound[self] * row, own, (size_t)(bound[self + 1] - bound[self]) * row);
  comm_allgather(c->env->world, TP, all, bound, row);
}

int plane_bound(const Shards *blocks, int n_member) {
  TreeNode node[TREE_ROOTS];
  int n = 0;
  for (int i = 0; i < n_member; i++) {
    Shards s = shards_of(blocks, n_member, i);
    n += shard_roots(&s, node);
  }
  CHECK(n <= PLANES_MAX, "%d blocks over %d ranks leave %d partial sums, at most %d", blocks->n, n_member, n, PLANES_MAX);
  return n;
}
static size_t merge_work(const Dims *d, const Shards *blocks, int64_t width, size_t real) {
  size_t planes = (size_t)plane_bound(blocks, d->n_tp), rows = (size_t)d->n_token[VIEW_OWN];
  TreeNode node[TREE_ROOTS];
  size_t sends = (size_t)(shard_roots(blocks, node) * d->n_tp);
  return work_align(planes * rows * (size_t)width * real) + work_align((planes + sends) * sizeof(RowSeg)) + rows * (size_t)width * real;
}

/* ---- gather ------------------------------------------------------------------------------------------------------------------------------------ */
void op_gather(Program *p, const char *name, ValId x, int n_use, ValId *out) {
  CHECK(n_use <= MAX_OUT, "%s: %d consumers", name, n_use);
  for (int k = 0; k < n_use; k++) out[k] = x;
  if (p->dims.n_tp == 1) return;
  for (int k = 0; k < n_use; k++) {
    out[k] = program_act(p, arena_printf(p->arena, "%s.%d", name, k), ROWS_TP, p->val[x].width, p->val[x].cut);
    value_types(p, out[k], p->val[x].dtype, p->num.real);
    if (k) p->val[out[k]].alias_of = out[0];
  }
  program_op(p, OP_GATHER, name, &x, 1, out, n_use);
}
void gather_fwd(const OpCall *c) { gather_rows(c, c->in[0], c->out[0], value_row_bytes(c->p, c->op->in[0], false)); }

void gather_dx(const OpCall *c) {
  int64_t width = c->p->val[c->op->in[0]].width, n = c->mb->view[VIEW_OWN].n_token * width;
  bool first = true;
  size_t sum = (size_t)n * c->env->k->real_size;
  for (int k = c->op->n_out - 1; k >= 0; k--) {
    const Layout *l = &c->p->val[c->op->out[k]].grad_layout;
    char *merged = first ? c->d_in[0] : c->work;
    merge_planes(c, c->env->k->wide, &l->blocks, width, c->d_out[k], merged, (char *)c->work + work_align(sum));
    if (!first) c->env->k->wide->add(&c->env->kctx, c->d_in[0], c->d_in[0], merged, n);
    first = false;
  }
}
static void sketch_planes(const OpCall *c, Sketch *s, const Shards *blocks, int64_t width) {
  Planes x = planes_open(c, blocks, c->work);
  sketch_exchange_rows(s, TP, x.send, x.n_send, x.recv, x.n_recv, (size_t)width * c->env->k->real_size);
}
void gather_traffic(const OpCall *c, Pass pass, Sketch *s) {
  int64_t width = c->p->val[c->op->in[0]].width;
  if (pass == PASS_FWD) sketch_allgather(s, TP, c->mb->tp_row, value_row_bytes(c->p, c->op->in[0], false));
  for (int k = c->op->n_out - 1; k >= 0 && pass == PASS_BWD_X; k--)
    sketch_planes(c, s, &c->p->val[c->op->out[k]].grad_layout.blocks, width);
}
size_t gather_work(const OpWorkArgs *w, Pass pass) {
  if (pass == PASS_FWD) return 0;
  size_t most = 0;
  for (int k = 0; k < w->op->n_out; k++) {
    size_t n = merge_work(&w->p->dims, &w->p->val[w->op->out[k]].grad_layout.blocks, w->p->val[w->op->in[0]].width, w->k->real_size);
    most = n > most ? n : most;
  }
  return most + WORK_ALIGN;
}

/* ---- reduce ------------------------------------------------------------------------------------------------------------------------------------ */
ValId op_reduce(Program *p, const char *name, ValId x) {
  if (p->dims.n_tp == 1) return x;
  int64_t width = p->val[x].grad_width;
  ValId y = program_act(p, name, ROWS_TOKEN, width, shards_uncut(width));
  program_op(p, OP_REDUCE, name, &x, 1, &y, 1)->attr.reduce.bits = p->op[p->val[x].def].kind == OP_EMBED;
  return y;
}

static void bits_segments(const OpCall *c, RowSeg *recv, RowSeg *send) {
  int64_t own = c->mb->view[VIEW_OWN].n_token;
  for (int i = 0; i < c->p->dims.n_tp; i++) {
    recv[i] = (RowSeg){i, i * own, own};
    send[i] = (RowSeg){i, c->mb->tp_row[i], c->mb->tp_row[i + 1] - c->mb->tp_row[i]};
  }
}
/* Exactly one rank holds each row, the others zero bits: an integer sum restores it, -0.0 and all. */
static void reduce_bits(const OpCall *c, int64_t width) {
  const Dims *d = &c->p->dims;
  int64_t own = c->mb->view[VIEW_OWN].n_token, n = own * width;
  size_t row = (size_t)width * c->env->k->act_size;
  RowSeg *recv = (RowSeg *)((char *)c->work + work_align((size_t)(d->n_tp * d->n_token[VIEW_OWN]) * row)), *send = recv + d->n_tp;
  bits_segments(c, recv, send);
  comm_exchange_rows(c->env->world, TP, c->in[0], send, d->n_tp, c->work, recv, d->n_tp, row);
  memset(c->out[0], 0, (size_t)own * row);
  for (int i = 0; i < d->n_tp; i++) c->env->k->bits_add(&c->env->kctx, c->out[0], (const char *)c->work + (size_t)(i * own) * row, n);
}
void reduce_fwd(const OpCall *c) {
  int64_t width = c->p->val[c->op->out[0]].width;
  if (c->op->attr.reduce.bits)
    reduce_bits(c, width);
  else
    merge_planes(c, c->env->k, &c->p->val[c->op->in[0]].layout.blocks, width, c->in[0], c->out[0], c->work);
}
void reduce_dx(const OpCall *c) { gather_rows(c, c->d_out[0], c->d_in[0], value_row_bytes(c->p, c->op->out[0], true)); }
void reduce_traffic(const OpCall *c, Pass pass, Sketch *s) {
  int64_t width = c->p->val[c->op->out[0]].width;
  int n_tp = c->p->dims.n_tp;
  size_t row = (size_t)width * c->env->k->act_size;
  RowSeg *recv = c->work, *send = recv + n_tp;
  if (pass == PASS_BWD_X)
    sketch_allgather(s, TP, c->mb->tp_row, value_row_bytes(c->p, c->op->out[0], true));
  else if (!c->op->attr.reduce.bits)
    sketch_planes(c, s, &c->p->val[c->op->in[0]].layout.blocks, width);
  else {
    bits_segments(c, recv, send);
    sketch_exchange_rows(s, TP, send, n_tp, recv, n_tp, row);
  }
}
size_t reduce_work(const OpWorkArgs *w, Pass pass) {
  if (pass != PASS_FWD) return 0;
  const Dims *d = &w->p->dims;
  int64_t width = w->p->val[w->op->out[0]].width;
  size_t bits = work_align((size_t)(d->n_tp * d->n_token[VIEW_OWN] * width) * w->k->act_size) + 2 * (size_t)d->n_tp * sizeof(RowSeg);
  return w->op->attr.reduce.bits ? bits : merge_work(d, &w->p->val[w->op->in[0]].layout.blocks, width, w->k->real_size);
}
