/* Key heads that query heads of several TP ranks read: fetched from their owner, gradients sent back to it as roots of the tree over the group's heads. */
#include "base/err.h"
#include "program/op_attention.h"

enum { TP = AXIS_BIT(AXIS_TP) };

Shards attention_needs(const Shards *q, const Shards *kv) {
  int64_t group = q->units / kv->units, lo = shard_begin(q, q->first) / q->unit, hi = shard_begin(q, q->first + q->count) / q->unit;
  Shards s = {.n = kv->n, .units = kv->units, .unit = kv->unit};
  if (lo == hi) return s;
  int64_t first = lo / group * kv->unit, last = ((hi - 1) / group + 1) * kv->unit;
  while (shard_begin(kv, s.first + 1) <= first) s.first++;
  while (shard_begin(kv, s.first + s.count) < last) s.count++;
  return s;
}

bool heads_are_shared(const Dims *d, const Shards *q_own, const Shards *kv_own) {
  bool any = false;
  for (int t = 0; t < d->n_tp; t++) {
    Shards theirs = shards_of(q_own, d->n_tp, t), have = shards_of(kv_own, d->n_tp, t), need = attention_needs(&theirs, kv_own);
    any |= need.count != have.count || (need.count && need.first != have.first);
  }
  return any;
}

/* The op as TP rank t sees it. */
static AttnArgs args_of(const OpCall *c, int t) {
  AttnArgs a = attention_args(c->op);
  a.q = shards_of(&c->op->attr.attention.q_own, c->p->dims.n_tp, t);
  a.kv = attention_needs(&a.q, &c->op->attr.attention.kv_own);
  return a;
}
static bool has_block(const Shards *s, int j) { return j >= s->first && j < s->first + s->count; }

int64_t heads_roots(const Program *p, const Op *op) {
  OpCall c = {.p = p, .op = op};
  int64_t planes = 0;
  for (int t = 0; t < p->dims.n_tp; t++) {
    AttnArgs a = args_of(&c, t);
    planes += attention_planes(&a);
  }
  return planes;
}

size_t heads_work(const Program *p, const Op *op) {
  AttnArgs a = attention_args(op);
  int64_t own = op->attr.attention.kv_own.count, need = a.kv.count;
  int64_t back = attention_planes(&a) * need + heads_roots(p, op) * own, out = p->dims.n_tp * own + need;
  return work_align((size_t)((back > out ? back : out) + 1) * sizeof(RowSeg));
}

/* Segments between the blocks that are needed here and their owners, plane by plane, block by block. */
static int need_segments(const OpCall *c, int planes, RowSeg *seg) {
  const Shards *need = &c->op->attr.attention.kv;
  int64_t rows = c->mb->view[VIEW_TP].n_token, plane = rows * shard_total(need);
  int n = 0;
  for (int t = 0; t < c->p->dims.n_tp; t++) {
    Shards theirs = shards_of(&c->op->attr.attention.kv_own, c->p->dims.n_tp, t);
    for (int r = 0; r < planes; r++)
      for (int j = need->first; j < need->first + need->count; j++)
        if (has_block(&theirs, j)) seg[n++] = (RowSeg){t, r * plane + rows * shard_local(need, j), rows * shard_width(need, j)};
  }
  return n;
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------------------------------- */
/* Segments of the blocks that are here, to each rank that needs them. */
static int owner_segments(const OpCall *c, RowSeg *seg) {
  const Shards *own = &c->op->attr.attention.kv_own;
  int64_t rows = c->mb->view[VIEW_TP].n_token;
  int n = 0;
  for (int t = 0; t < c->p->dims.n_tp; t++) {
    AttnArgs a = args_of(c, t);
    for (int j = own->first; j < own->first + own->count; j++)
      if (has_block(&a.kv, j)) seg[n++] = (RowSeg){t, rows * shard_local(own, j), rows * shard_width(own, j)};
  }
  return n;
}
void heads_fetch(const OpCall *c, RowSeg *seg, const void *own, void *need) {
  int n_send = owner_segments(c, seg), n_recv = need_segments(c, 1, seg + n_send);
  comm_exchange_rows(c->env->world, TP, own, seg, n_send, need, seg + n_send, n_recv, c->env->k->act_size);
}
void heads_fetch_traffic(const OpCall *c, RowSeg *seg, Sketch *s) {
  int n_send = owner_segments(c, seg), n_recv = need_segments(c, 1, seg + n_send);
  sketch_exchange_rows(s, TP, seg, n_send, seg + n_send, n_recv, c->env->k->act_size);
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------------------------ */
typedef struct RootSource {
  AttnArgs args;
  int first; /* of its planes in the received ones */
} RootSource;

static int root_segments(const OpCall *c, RootSource *src, RowSeg *seg) {
  const Shards *own = &c->op->attr.attention.kv_own;
  int64_t rows = c->mb->view[VIEW_TP].n_token, plane = rows * shard_total(own);
  int n = 0, planes = 0;
  for (int t = 0; t < c->p->dims.n_tp; t++) {
    AttnArgs a = args_of(c, t);
    src[t] = (RootSource){a, planes};
    for (int r = 0; r < attention_planes(&a); r++, planes++)
      for (int j = a.kv.first; j < a.kv.first + a.kv.count; j++)
        if (has_block(own, j)) seg[n++] = (RowSeg){t, planes * plane + rows * shard_local(own, j), rows * shard_width(own, j)};
  }
  return n;
}
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
void heads_return(const OpCall *c, const Kernels *to, RowSeg *seg, const void *planes, void *roots, void *out) {
  AttnArgs a = attention_args(c->op);
  RootSource src[c->p->dims.n_tp];
  int n_send = need_segments(c, attention_planes(&a), seg), n_recv = root_segments(c, src, seg + n_send);
  comm_exchange_rows(c->env->world, TP, planes, seg, n_send, roots, seg + n_send, n_recv, c->env->k->real_size);
  merge_heads(c, to, src, roots, out);
}
void heads_return_traffic(const OpCall *c, RowSeg *seg, Sketch *s) {
  AttnArgs a = attention_args(c->op);
  RootSource src[c->p->dims.n_tp];
  int n_send = need_segments(c, attention_planes(&a), seg), n_recv = root_segments(c, src, seg + n_send);
  sketch_exchange_rows(s, TP, seg, n_send, seg + n_send, n_recv, c->env->k->real_size);
}
