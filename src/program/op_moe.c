/* Ops of a Mixture-of-Experts layer: routing, the exchange of counts and rows over the expert group, and the way back. */
#include <string.h>

#include "base/err.h"
#include "program/op_passes.h"

enum { ALIGN = 64 };
static size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static Shards uncut(int64_t width) { return (Shards){1, 0, 1, width, 1}; }

/* ---- route ------------------------------------------------------------------------------------------------------------------------ */
RouteOut op_route(Program *p, const char *name, ValId logits, const RouteArgs *args, double aux_coef, double z_coef) {
  Arena *a = p->arena;
  bool per_sequence = args->aux_per_sequence; /* counted with coefficient 0 too: the loss is reported */
  RouteOut r = {.idx = program_index(p, arena_printf(a, "%s.idx", name), ROWS_TOKEN, args->top_k),
                .weight = program_act(p, arena_printf(a, "%s.weight", name), ROWS_TOKEN, args->top_k, uncut(args->top_k)),
                .row_of = program_index(p, arena_printf(a, "%s.row_of", name), ROWS_TOKEN, args->top_k),
                .counts = program_index(p, arena_printf(a, "%s.counts", name), ROWS_WINDOW, args->n_expert)};
  p->val[r.weight].floor = true;
  value_types(p, r.weight, p->num.real, p->num.real);
  ValId out[5] = {r.idx, r.weight, r.row_of, r.counts};
  if (per_sequence) out[4] = program_index(p, arena_printf(a, "%s.seq_counts", name), ROWS_SEQUENCE, args->n_expert);
  Op *op = program_op(p, OP_ROUTE, name, &logits, 1, out, per_sequence ? 5 : 4);
  op->attr.route.args = *args;
  op->attr.route.args.seq_length = p->dims.seq_length;
  op->attr.route.stat = p->next_stat;
  op->attr.route.aux_coef = aux_coef;
  op->attr.route.z_coef = z_coef;
  p->next_stat += 2 + 2 * args->n_expert;
  return r;
}

/* Gradients are of the sum of token losses, so auxiliary terms, which are means, come in times N_valid. */
static RouteArgs route_args(const OpCall *c) {
  RouteArgs a = c->op->attr.route.args;
  a.n_token_global = c->env->n_token_global;
  a.aux_scale = c->op->attr.route.aux_coef * c->env->n_valid;
  if (a.aux_per_sequence) a.aux_scale /= (double)c->env->n_seq_global;
  a.replay = c->env->replay ? c->env->replay[c->op->layer] : NULL;
  a.z_scale = c->op->attr.route.z_coef * c->env->n_valid / (double)c->env->n_token_global;
  return a;
}
static StatSink route_sink(const OpCall *c) {
  return (StatSink){.word = c->env->stat + c->op->attr.route.stat, .shift = c->env->stat_shift, .fault = c->env->fault};
}
/* Sequences are dealt over CP and TP: counts of whole ones are summed over both. */
static void sum_sequence_counts(const OpCall *c) {
  int64_t n = c->mb->view[VIEW_OWN].n_seq * c->p->dims.n_expert;
  int32_t *counts = c->out[4];
  uint64_t *sum = c->work;
  c->env->k->sequence_counts(&c->env->kctx, counts, c->out[3], c->p->dims.n_expert, &c->mb->view[VIEW_OWN]);
  for (int64_t i = 0; i < n; i++) sum[i] = (uint64_t)counts[i];
  comm_allreduce_u64(c->env->world, AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP), sum, n);
  for (int64_t i = 0; i < n; i++) counts[i] = (int32_t)sum[i];
}
void route_fwd(const OpCall *c) {
  RouteArgs a = route_args(c);
  StatSink sink = route_sink(c);
  c->env->k->route_fwd(&c->env->kctx, c->out[0], c->out[1], c->out[2], c->out[3], c->in[0], &a, &c->mb->view[VIEW_OWN], &sink);
  if (c->op->n_out == 5) sum_sequence_counts(c);
}
void route_dx(const OpCall *c) {
  RouteArgs a = route_args(c);
  StatSink sink = route_sink(c);
  bool batch = !a.aux_per_sequence && c->op->attr.route.aux_coef != 0;
  c->env->k->route_bwd(&c->env->kctx, c->d_in[0], c->d_out[1], c->in[0], c->out[0], c->out[4], batch ? sink.word + 2 : NULL, &a,
                       &c->mb->view[VIEW_OWN], &sink);
}
void route_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD && c->op->n_out == 5)
    sketch_allreduce_u64(s, AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP), c->mb->view[VIEW_OWN].n_seq * c->p->dims.n_expert);
}
size_t route_work(const OpWorkArgs *w, Pass pass) {
  return pass == PASS_FWD && w->op->n_out == 5 ? (size_t)(w->p->dims.n_seq * w->p->dims.n_expert) * sizeof(uint64_t) : 0;
}

/* ---- plan: the counts of one exchange ----------------------------------------------------------------------------------------------
 * Expert e lives on the ETP members of EP member share_owner(e); each of them gets every row. Places in the group: ep * n_etp + etp. */
enum { EXPERTS = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP) };
static int n_source(const Dims *d) { return d->n_ep * d->n_etp; }
int plan_experts_max(const Dims *d) { return (d->n_expert + d->n_ep - 1) / d->n_ep; }
static int64_t plan_block(const Dims *d) { return d->n_window_peer * (plan_experts_max(d) + 1); } /* int32s from one source */
int64_t plan_width(const Dims *d) { return n_source(d) * plan_block(d) + d->n_expert; }
const int32_t *plan_received(const Dims *d, const int32_t *plan, int source, int64_t window) {
  return plan + source * plan_block(d) + window * (plan_experts_max(d) + 1);
}
const int32_t *plan_sent(const Dims *d, const int32_t *plan) { return plan + n_source(d) * plan_block(d); }

ValId op_exchange_counts(Program *p, const char *name, ValId counts) {
  ValId plan = program_index(p, name, ROWS_ONE, plan_width(&p->dims));
  program_op(p, OP_EXCHANGE_COUNTS, name, &counts, 1, &plan, 1);
  return plan;
}
size_t exchange_counts_work(const OpWorkArgs *w, Pass pass) {
  (void)pass;
  return (size_t)n_source(&w->p->dims) * (size_t)plan_block(&w->p->dims) * sizeof(int32_t);
}
void exchange_counts_fwd(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int most = plan_experts_max(d);
  int64_t block = plan_block(d);
  const int32_t *counts = c->in[0];
  int32_t *send = c->work, *plan = c->out[0];
  const TokenView *own = &c->mb->view[VIEW_OWN];
  if (block) memset(send, 0, (size_t)(n_source(d) * block) * sizeof *send); /* no windows anywhere: no workspace */
  for (int peer = 0; peer < n_source(d); peer++) {
    int ep = peer / d->n_etp, first = (int)share_begin(d->n_expert, d->n_ep, ep),
        n = (int)share_begin(d->n_expert, d->n_ep, ep + 1) - first;
    for (int w = 0; w < own->n_window; w++) {
      int32_t *row = send + peer * block + w * (most + 1);
      memcpy(row, counts + (int64_t)w * d->n_expert + first, (size_t)n * sizeof *row);
      row[most] = own->window_start[w + 1] - own->window_start[w];
    }
  }
  comm_alltoall(c->env->world, EXPERTS, send, plan, (size_t)block * sizeof *plan);
  int32_t *sent = plan + n_source(d) * block;
  memset(sent, 0, (size_t)d->n_expert * sizeof *sent);
  for (int w = 0; w < own->n_window; w++)
    for (int e = 0; e < d->n_expert; e++) sent[e] += counts[(int64_t)w * d->n_expert + e];
}
void exchange_counts_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD) sketch_alltoall(s, EXPERTS, (size_t)plan_block(&c->p->dims) * sizeof(int32_t));
}
int64_t exchange_counts_rows(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int64_t n = 0;
  for (int s = 0; s < n_source(d); s++)
    for (int64_t w = 0; w < d->n_window_peer; w++)
      for (int e = 0; e < d->n_expert_here; e++) n += plan_received(d, c->out[0], s, w)[e];
  return n;
}

/* ---- rows for the linear kernels --------------------------------------------------------------------------------------------------- */
static int64_t leaves_max(const Program *p, const Op *op) {
  const Dims *d = &p->dims;
  return op->attr.linear.grouped ? (int64_t)d->n_expert_here * n_source(d) * d->n_window_peer
                                 : d->n_seq * ((d->seq_length - 1) / d->window + 1);
}
size_t rows_work(const Program *p, const Op *op) {
  int64_t groups = op->attr.linear.grouped ? p->dims.n_expert_here : 1;
  return align_up((size_t)groups * sizeof(RowGroup)) + align_up((size_t)(leaves_max(p, op) + groups) * sizeof(RowLeaf));
}
KCtx work_after(const OpCall *c, size_t used) {
  KCtx k = c->env->kctx;
  k.work = (char *)c->work + used;
  return k;
}

static void rows_of_tokens(const OpCall *c, RowGroup *g, RowLeaf *leaf) {
  const TokenView *t = value_view(c->p, c->op->in[0], c->mb);
  *g = (RowGroup){.n_row = t->n_token, .n_leaf = t->n_window};
  for (int w = 0; w < t->n_window; w++) {
    int64_t n = t->window_start[w + 1] - t->window_start[w];
    leaf[w] = (RowLeaf){t->window_start[w], n, n};
  }
}
/* Rows of an expert lie by (source, window, token): a window's rows are contiguous. */
static void rows_of_experts(const OpCall *c, const int32_t *plan, RowGroup *g, RowLeaf *leaf) {
  const Dims *d = &c->p->dims;
  int64_t row = 0;
  int n_leaf = 0;
  for (int e = 0; e < d->n_expert_here; e++) {
    g[e] = (RowGroup){.expert = e, .row = row, .leaf = n_leaf};
    for (int s = 0; s < n_source(d); s++)
      for (int64_t w = 0; w < d->n_window_peer; w++) {
        const int32_t *got = plan_received(d, plan, s, w);
        if (!got[e]) continue;
        leaf[n_leaf++] = (RowLeaf){row, got[e], got[plan_experts_max(d)]};
        row += got[e];
      }
    g[e].n_row = row - g[e].row;
    g[e].n_leaf = n_leaf - g[e].leaf;
  }
}
/* Native mode: all rows of a group are one leaf. */
static void rows_merge_leaves(RowGroup *g, int n_group, RowLeaf *leaf) {
  for (int i = 0; i < n_group; i++) {
    leaf[i] = (RowLeaf){g[i].row, g[i].n_row, g[i].n_row};
    g[i].leaf = i;
    g[i].n_leaf = g[i].n_row > 0;
  }
}
Rows rows_build(const OpCall *c, const int32_t *plan, void *work) {
  bool grouped = c->op->attr.linear.grouped;
  int n_group = grouped ? c->p->dims.n_expert_here : 1;
  RowGroup *g = work;
  RowLeaf *leaf = (RowLeaf *)((char *)work + align_up((size_t)n_group * sizeof(RowGroup)));
  if (grouped)
    rows_of_experts(c, plan, g, leaf);
  else
    rows_of_tokens(c, g, leaf);
  if (!c->p->num.exact) rows_merge_leaves(g, n_group, leaf);
  return (Rows){.n_row = value_rows(c->p, c->op->in[0], c->mb, c->n_row),
                .n_group = n_group,
                .group = g,
                .leaf = leaf,
                .blocked = c->p->num.exact,
                .row_bound = grouped ? c->p->dims.n_row_expert : value_bound_rows(c->p, c->op->in[0])};
}

/* ---- moving rows --------------------------------------------------------------------------------------------------------------------- */
ValId op_permute(Program *p, const char *name, ValId x, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, p->val[x].width, p->val[x].cut);
  value_types(p, y, p->num.act, p->num.real);
  program_op(p, OP_PERMUTE, name, (ValId[]){x, row_of}, 2, &y, 1);
  return y;
}
void permute_fwd(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->in[0]].width);
}
void permute_dx(const OpCall *c) {
  c->env->k->wide->rows_combine(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                                c->p->val[c->op->in[0]].width);
}

ValId op_permute_weights(Program *p, const char *name, ValId weight, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, 1, uncut(1));
  value_types(p, y, p->num.real, p->num.real);
  program_op(p, OP_PERMUTE_WEIGHTS, name, (ValId[]){weight, row_of}, 2, &y, 1);
  return y;
}
void permute_weights_fwd(const OpCall *c) {
  c->env->k->slots_to_rows(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k);
}
void permute_weights_dx(const OpCall *c) {
  c->env->k->rows_to_slots(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k);
}

/* ---- dispatch and return -------------------------------------------------------------------------------------------------------------- */
void op_dispatch(Program *p, const char *name, ValId rows, ValId plan, int n_use, ValId *out) {
  int n_out = p->dims.n_etp == 1 ? 1 : n_use; /* whole gradients are added where they are made */
  for (int k = 0; k < n_out; k++) {
    out[k] = program_act(p, k ? arena_printf(p->arena, "%s.%d", name, k) : name, ROWS_EXPERT, p->val[rows].width, p->val[rows].cut);
    p->val[out[k]].rows_from = plan;
    value_types(p, out[k], p->val[rows].dtype, p->num.real);
    p->val[out[k]].alias_of = k ? out[0] : NO_VAL;
  }
  for (int k = n_out; k < n_use; k++) out[k] = out[0];
  program_op(p, OP_DISPATCH, name, (ValId[]){rows, plan}, 2, out, n_out);
}
ValId op_return(Program *p, const char *name, ValId rows, ValId plan) {
  int64_t width = p->val[rows].grad_width;
  ValId y = program_act(p, name, ROWS_ROUTE, width, uncut(width));
  program_op(p, OP_RETURN, name, (ValId[]){rows, plan}, 2, &y, 1);
  return y;
}

/* The fixed tree of a value that ETP cuts: the planes of an ETP member and their nodes. */
static int planes_of(const Dims *d, const Layout *l, int etp, TreeNode *node) {
  if (!l->partial) return node[0] = (TreeNode){0, 0}, 1;
  Shards s = shards_of(&l->blocks, d->n_etp, etp);
  return shard_roots(&s, node);
}
static int planes_received(const Dims *d, const Layout *l) {
  TreeNode node[TREE_ROOTS];
  int n = 0;
  for (int q = 0; q < d->n_etp; q++) n += planes_of(d, l, q, node);
  CHECK(n <= PLANES_MAX, "%d blocks over %d ranks leave %d partial sums, at most %d", l->blocks.n, d->n_etp, n, PLANES_MAX);
  return n;
}

/* Rows at home, by expert: a segment for every (expert, ETP member, plane); plane k of a member follows `stride` rows after the one before. */
static int home_segments(const Dims *d, const int32_t *plan, const Layout *l, int64_t stride, RowSeg *seg) {
  const int32_t *sent = plan_sent(d, plan);
  TreeNode node[TREE_ROOTS];
  int n = 0, plane = 0;
  for (int q = 0; q < d->n_etp; q++) {
    int m = l ? planes_of(d, l, q, node) : 1;
    for (int k = 0; k < m; k++) {
      int64_t row = l ? (plane + k) * stride : 0;
      for (int e = 0; e < d->n_expert; e++) {
        seg[n++] = (RowSeg){.peer = share_owner(d->n_expert, d->n_ep, e) * d->n_etp + q, .row = row, .n_row = sent[e]};
        row += sent[e];
      }
    }
    plane += m;
  }
  return n;
}
/* Rows at the experts, by (expert, source); for every plane. */
static int expert_segments(const Dims *d, const int32_t *plan, int n_plane, int64_t stride, RowSeg *seg) {
  int n = 0;
  for (int k = 0; k < n_plane; k++) {
    int64_t row = k * stride;
    for (int e = 0; e < d->n_expert_here; e++)
      for (int s = 0; s < n_source(d); s++) {
        int64_t got = 0;
        for (int64_t w = 0; w < d->n_window_peer; w++) got += plan_received(d, plan, s, w)[e];
        seg[n++] = (RowSeg){.peer = s, .row = row, .n_row = got};
        row += got;
      }
  }
  return n;
}

/* Segment arrays at the front of the workspace, then received planes. */
static size_t segments_work(const Dims *d, const Layout *l) {
  TreeNode node[TREE_ROOTS];
  size_t home = (size_t)(l ? planes_received(d, l) : d->n_etp) * (size_t)d->n_expert;
  size_t expert = (size_t)(l ? planes_of(d, l, d->etp_self, node) : 1) * (size_t)(d->n_expert_here * n_source(d));
  return align_up((home + expert + 1) * sizeof(RowSeg));
}
/* The two sides of an exchange: rows at home and rows at the experts. */
typedef struct Sides {
  RowSeg *home, *expert;
  int n_home, n_expert;
} Sides;

/* Every row to all ETP members of its expert's owner. */
static Sides sides_out(const OpCall *c, void *work) {
  const Dims *d = &c->p->dims;
  Sides x = {.home = work};
  x.n_home = home_segments(d, c->in[1], NULL, 0, x.home);
  x.expert = x.home + x.n_home;
  x.n_expert = expert_segments(d, c->in[1], 1, 0, x.expert);
  return x;
}
static void send_out(const OpCall *c, const void *home_rows, void *expert_rows, size_t row_bytes) {
  Sides x = sides_out(c, c->work);
  comm_exchange_rows(c->env->world, EXPERTS, home_rows, x.home, x.n_home, expert_rows, x.expert, x.n_expert, row_bytes);
}
/* The planes of all ETP members, back home. */
static Sides sides_back(const OpCall *c, const Layout *l, void *work) {
  const Dims *d = &c->p->dims;
  TreeNode node[TREE_ROOTS];
  Sides x = {.home = work};
  x.n_home = home_segments(d, c->in[1], l, c->mb->view[VIEW_OWN].n_token * d->top_k, x.home);
  x.expert = x.home + x.n_home;
  x.n_expert = expert_segments(d, c->in[1], planes_of(d, l, d->etp_self, node), c->n_row, x.expert);
  return x;
}
/* Rows back home: the planes of all ETP members, merged by the fixed tree into out [T k, width], which is of the type that `to` calls act. A value that is whole
 * on every member comes from the first. One plane in all is the result. */
static void bring_back(const OpCall *c, const Kernels *to, const Layout *l, const void *expert_rows, size_t row_bytes, void *out,
                       int64_t width, char *work) {
  const Dims *d = &c->p->dims;
  bool whole = planes_received(d, l) == 1;
  char *planes = whole ? out : work + segments_work(d, l);
  int64_t slots = c->mb->view[VIEW_OWN].n_token * d->top_k;
  Sides x = sides_back(c, l, work);
  TreeNode node[PLANES_MAX];
  const void *plane[PLANES_MAX];
  int n = 0;
  comm_exchange_rows(c->env->world, EXPERTS, expert_rows, x.expert, x.n_expert, planes, x.home, x.n_home, row_bytes);
  if (whole) return;
  for (int q = 0; q < d->n_etp; q++) n += planes_of(d, l, q, node + n);
  for (int k = 0; k < n; k++) plane[k] = planes + (size_t)(k * slots) * row_bytes;
  to->tree_merge(&c->env->kctx, out, plane, node, l->partial ? n : 1, slots, width, width, width);
}
static size_t back_work(const Program *p, const Layout *l, int64_t width, size_t real) {
  int planes = planes_received(&p->dims, l);
  return segments_work(&p->dims, l) + (size_t)((planes == 1 ? 0 : planes) * p->dims.n_token[VIEW_OWN] * p->dims.top_k * width) * real;
}

void dispatch_fwd(const OpCall *c) { send_out(c, c->in[0], c->out[0], value_row_bytes(c->p, c->op->in[0], false)); }

/* Consumers one by one, the last first, as gather_dx does. */
void dispatch_dx(const OpCall *c) {
  int64_t width = c->p->val[c->op->in[0]].width, n = c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k * width;
  size_t sum = align_up((size_t)n * c->env->k->real_size);
  for (int k = c->op->n_out - 1; k >= 0; k--) {
    bool first = k == c->op->n_out - 1;
    void *to = first ? c->d_in[0] : c->work;
    bring_back(c, c->env->k->wide, &c->p->val[c->op->out[k]].grad_layout, c->d_out[k], value_row_bytes(c->p, c->op->in[0], true), to, width,
               (char *)c->work + sum);
    if (!first) c->env->k->wide->add(&c->env->kctx, c->d_in[0], c->d_in[0], to, n);
  }
}
static size_t returned_bytes(const OpCall *c) { return (size_t)c->p->val[c->op->out[0]].width * dtype_size(c->p->val[c->op->in[0]].dtype); }
void return_fwd(const OpCall *c) {
  bring_back(c, c->env->k, &c->p->val[c->op->in[0]].layout, c->in[0], returned_bytes(c), c->out[0], c->p->val[c->op->out[0]].width,
             c->work);
}
void return_dx(const OpCall *c) { send_out(c, c->d_out[0], c->d_in[0], value_row_bytes(c->p, c->op->out[0], true)); }

static void sketch_out(const OpCall *c, Sketch *s, size_t row_bytes) {
  Sides x = sides_out(c, c->work);
  sketch_exchange_rows(s, EXPERTS, x.home, x.n_home, x.expert, x.n_expert, row_bytes);
}
static void sketch_back(const OpCall *c, Sketch *s, const Layout *l, size_t row_bytes) {
  Sides x = sides_back(c, l, c->work);
  sketch_exchange_rows(s, EXPERTS, x.expert, x.n_expert, x.home, x.n_home, row_bytes);
}
void dispatch_traffic(const OpCall *c, Pass pass, Sketch *s) {
  size_t row_bytes = value_row_bytes(c->p, c->op->in[0], pass != PASS_FWD);
  if (pass == PASS_FWD) sketch_out(c, s, row_bytes);
  for (int k = c->op->n_out - 1; k >= 0 && pass == PASS_BWD_X; k--) sketch_back(c, s, &c->p->val[c->op->out[k]].grad_layout, row_bytes);
}
void return_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD) sketch_back(c, s, &c->p->val[c->op->in[0]].layout, returned_bytes(c));
  if (pass == PASS_BWD_X) sketch_out(c, s, value_row_bytes(c->p, c->op->out[0], true));
}

size_t dispatch_work(const OpWorkArgs *w, Pass pass) {
  if (pass == PASS_FWD) return segments_work(&w->p->dims, NULL);
  int64_t width = w->p->val[w->op->in[0]].width;
  size_t most = 0, sum = align_up((size_t)(w->p->dims.n_token[VIEW_OWN] * w->p->dims.top_k * width) * w->k->real_size);
  for (int k = 0; k < w->op->n_out; k++) {
    size_t n = back_work(w->p, &w->p->val[w->op->out[k]].grad_layout, width, w->k->real_size);
    most = n > most ? n : most;
  }
  return sum + most;
}
size_t return_work(const OpWorkArgs *w, Pass pass) {
  if (pass != PASS_FWD) return segments_work(&w->p->dims, NULL);
  return back_work(w->p, &w->p->val[w->op->in[0]].layout, w->p->val[w->op->out[0]].width, w->k->real_size);
}

ValId op_combine(Program *p, const char *name, ValId rows, ValId row_of) {
  ValId y = program_act(p, name, ROWS_TOKEN, p->val[rows].width, p->val[rows].cut);
  program_op(p, OP_COMBINE, name, (ValId[]){rows, row_of}, 2, &y, 1);
  return y;
}
void combine_fwd(const OpCall *c) {
  c->env->k->rows_combine(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->out[0]].width);
}
void combine_dx(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->out[0]].width);
}
