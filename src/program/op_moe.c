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
  RouteOut r = {.idx = program_index(p, arena_printf(a, "%s.idx", name), ROWS_TOKEN, args->top_k),
                .weight = program_act(p, arena_printf(a, "%s.weight", name), ROWS_TOKEN, args->top_k, uncut(args->top_k)),
                .row_of = program_index(p, arena_printf(a, "%s.row_of", name), ROWS_TOKEN, args->top_k),
                .counts = program_index(p, arena_printf(a, "%s.counts", name), ROWS_WINDOW, args->n_expert)};
  p->val[r.weight].floor = true;
  ValId out[4] = {r.idx, r.weight, r.row_of, r.counts};
  Op *op = program_op(p, OP_ROUTE, name, &logits, 1, out, 4);
  op->attr.route.args = *args;
  op->attr.route.stat = p->n_stat;
  op->attr.route.aux_coef = aux_coef;
  op->attr.route.z_coef = z_coef;
  p->n_stat += 2 + 2 * args->n_expert;
  return r;
}

/* Gradients are of the sum of token losses, so auxiliary terms, which are means, come in times N_valid. */
static RouteArgs route_args(const OpCall *c) {
  RouteArgs a = c->op->attr.route.args;
  a.n_token_global = c->env->n_token_global;
  a.aux_scale = c->op->attr.route.aux_coef * c->env->n_valid;
  if (a.aux_per_sequence) a.aux_scale /= (double)c->env->n_seq_global;
  a.z_scale = c->op->attr.route.z_coef * c->env->n_valid / (double)c->env->n_token_global;
  return a;
}
void route_fwd(const OpCall *c) {
  RouteArgs a = route_args(c);
  StatSink sink = {.word = c->env->stat + c->op->attr.route.stat, .shift = c->env->stat_shift, .fault = c->env->fault};
  c->env->k->route_fwd(&c->env->kctx, c->out[0], c->out[1], c->out[2], c->out[3], c->in[0], &a, c->tokens, &sink);
}
void route_dx(const OpCall *c) {
  RouteArgs a = route_args(c);
  const uint64_t *batch = a.aux_per_sequence ? NULL : c->env->stat + c->op->attr.route.stat + 2;
  c->env->k->route_bwd(&c->env->kctx, c->d_in[0], c->d_out[1], c->in[0], c->out[0], c->out[3], batch, &a, c->tokens);
}

/* ---- plan: the counts of one exchange --------------------------------------------------------------------------------------------- */
int plan_experts_max(const Dims *d) { return (d->n_expert + d->n_ep - 1) / d->n_ep; }
static int64_t plan_block(const Dims *d) { return d->n_window * (plan_experts_max(d) + 1); }    /* int32s from one source */
int64_t plan_width(const Dims *d) { return d->n_ep * plan_block(d) + d->n_expert; }
const int32_t *plan_received(const Dims *d, const int32_t *plan, int source, int64_t window) {
  return plan + source * plan_block(d) + window * (plan_experts_max(d) + 1);
}
const int32_t *plan_sent(const Dims *d, const int32_t *plan) { return plan + d->n_ep * plan_block(d); }

ValId op_exchange_counts(Program *p, const char *name, ValId counts) {
  ValId plan = program_index(p, name, ROWS_ONE, plan_width(&p->dims));
  program_op(p, OP_EXCHANGE_COUNTS, name, &counts, 1, &plan, 1);
  return plan;
}
size_t exchange_counts_work(const OpWorkArgs *w, Pass pass) {
  (void)pass;
  return (size_t)w->p->dims.n_ep * (size_t)plan_block(&w->p->dims) * sizeof(int32_t);
}
void exchange_counts_fwd(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int most = plan_experts_max(d);
  int64_t block = plan_block(d);
  const int32_t *counts = c->in[0];
  int32_t *send = c->work, *plan = c->out[0];
  memset(send, 0, (size_t)(d->n_ep * block) * sizeof *send);
  for (int peer = 0; peer < d->n_ep; peer++) {
    int first = (int)share_begin(d->n_expert, d->n_ep, peer), n = (int)share_begin(d->n_expert, d->n_ep, peer + 1) - first;
    for (int w = 0; w < c->tokens->n_window; w++) {
      int32_t *row = send + peer * block + w * (most + 1);
      memcpy(row, counts + (int64_t)w * d->n_expert + first, (size_t)n * sizeof *row);
      row[most] = c->tokens->window_start[w + 1] - c->tokens->window_start[w];
    }
  }
  comm_alltoall(c->env->world, AXIS_BIT(AXIS_EP), send, plan, (size_t)block * sizeof *plan);
  int32_t *sent = plan + d->n_ep * block;
  memset(sent, 0, (size_t)d->n_expert * sizeof *sent);
  for (int w = 0; w < c->tokens->n_window; w++)
    for (int e = 0; e < d->n_expert; e++) sent[e] += counts[(int64_t)w * d->n_expert + e];
}
int64_t exchange_counts_rows(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int64_t n = 0;
  for (int s = 0; s < d->n_ep; s++)
    for (int64_t w = 0; w < d->n_window; w++)
      for (int e = 0; e < d->n_expert_here; e++) n += plan_received(d, c->out[0], s, w)[e];
  return n;
}

/* ---- rows for the linear kernels --------------------------------------------------------------------------------------------------- */
static int64_t leaves_max(const Program *p, const Op *op) {
  const Dims *d = &p->dims;
  return op->attr.linear.grouped ? (int64_t)d->n_expert_here * d->n_ep * d->n_window : d->n_window;
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
  const TokenView *t = c->tokens;
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
    for (int s = 0; s < d->n_ep; s++)
      for (int64_t w = 0; w < d->n_window; w++) {
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
  if (grouped) rows_of_experts(c, plan, g, leaf);
  else rows_of_tokens(c, g, leaf);
  if (!c->p->num.exact) rows_merge_leaves(g, n_group, leaf);
  return (Rows){.n_row = grouped ? c->n_row : c->tokens->n_token, .n_group = n_group, .group = g, .leaf = leaf, .blocked = c->p->num.exact,
                .row_bound = grouped ? c->p->dims.n_row_expert : c->p->dims.n_token};
}

/* ---- moving rows --------------------------------------------------------------------------------------------------------------------- */
ValId op_permute(Program *p, const char *name, ValId x, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, p->val[x].width, p->val[x].cut);
  program_op(p, OP_PERMUTE, name, (ValId[]){x, row_of}, 2, &y, 1);
  return y;
}
void permute_fwd(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->tokens->n_token, c->p->dims.top_k, c->p->val[c->op->in[0]].width);
}
void permute_dx(const OpCall *c) {
  c->env->k->rows_combine(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->tokens->n_token, c->p->dims.top_k, c->p->val[c->op->in[0]].width);
}

ValId op_permute_weights(Program *p, const char *name, ValId weight, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, 1, uncut(1));
  program_op(p, OP_PERMUTE_WEIGHTS, name, (ValId[]){weight, row_of}, 2, &y, 1);
  return y;
}
void permute_weights_fwd(const OpCall *c) {
  c->env->k->slots_to_rows(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->tokens->n_token * c->p->dims.top_k);
}
void permute_weights_dx(const OpCall *c) {
  c->env->k->rows_to_slots(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->tokens->n_token * c->p->dims.top_k);
}

static ValId exchange_op(Program *p, const char *name, ValId rows, ValId plan, bool forward) {
  ValId y = program_act(p, name, forward ? ROWS_EXPERT : ROWS_ROUTE, p->val[rows].width, p->val[rows].cut);
  p->val[y].rows_from = forward ? plan : NO_VAL;
  Op *op = program_op(p, OP_EXCHANGE_ROWS, name, (ValId[]){rows, plan}, 2, &y, 1);
  op->attr.exchange.forward = forward;
  op->attr.exchange.row_bytes = value_row_bytes(p, rows);
  return y;
}
ValId op_dispatch_rows(Program *p, const char *name, ValId rows, ValId plan) { return exchange_op(p, name, rows, plan, true); }
ValId op_return_rows(Program *p, const char *name, ValId rows, ValId plan) { return exchange_op(p, name, rows, plan, false); }

size_t exchange_rows_work(const OpWorkArgs *w, Pass pass) {
  (void)pass;
  const Dims *d = &w->p->dims;
  return align_up((size_t)d->n_expert * sizeof(RowSeg)) + (size_t)(d->n_expert_here * d->n_ep) * sizeof(RowSeg);
}
/* Segments at home: my rows for each expert, which lie by expert. */
static int home_segments(const Dims *d, const int32_t *plan, RowSeg *seg) {
  const int32_t *sent = plan_sent(d, plan);
  int64_t row = 0;
  for (int e = 0; e < d->n_expert; e++) {
    seg[e] = (RowSeg){.peer = share_owner(d->n_expert, d->n_ep, e), .row = row, .n_row = sent[e]};
    row += sent[e];
  }
  return d->n_expert;
}
/* Segments at the experts: rows lie by (expert, source). */
static int expert_segments(const Dims *d, const int32_t *plan, RowSeg *seg) {
  int64_t row = 0;
  int n = 0;
  for (int e = 0; e < d->n_expert_here; e++)
    for (int s = 0; s < d->n_ep; s++) {
      int64_t got = 0;
      for (int64_t w = 0; w < d->n_window; w++) got += plan_received(d, plan, s, w)[e];
      seg[n++] = (RowSeg){.peer = s, .row = row, .n_row = got};
      row += got;
    }
  return n;
}
static void exchange(const OpCall *c, bool to_experts, const void *from, void *to) {
  const Dims *d = &c->p->dims;
  RowSeg *home = c->work, *expert = (RowSeg *)((char *)c->work + align_up((size_t)d->n_expert * sizeof(RowSeg)));
  int n_home = home_segments(d, c->in[1], home), n_expert = expert_segments(d, c->in[1], expert);
  AxisSet axes = AXIS_BIT(AXIS_EP);
  size_t bytes = c->op->attr.exchange.row_bytes;
  if (to_experts) comm_exchange_rows(c->env->world, axes, from, home, n_home, to, expert, n_expert, bytes);
  else comm_exchange_rows(c->env->world, axes, from, expert, n_expert, to, home, n_home, bytes);
}
void exchange_rows_fwd(const OpCall *c) { exchange(c, c->op->attr.exchange.forward, c->in[0], c->out[0]); }
void exchange_rows_dx(const OpCall *c) { exchange(c, !c->op->attr.exchange.forward, c->d_out[0], c->d_in[0]); }

ValId op_combine(Program *p, const char *name, ValId rows, ValId row_of) {
  ValId y = program_act(p, name, ROWS_TOKEN, p->val[rows].width, p->val[rows].cut);
  program_op(p, OP_COMBINE, name, (ValId[]){rows, row_of}, 2, &y, 1);
  return y;
}
void combine_fwd(const OpCall *c) {
  c->env->k->rows_combine(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->tokens->n_token, c->p->dims.top_k, c->p->val[c->op->out[0]].width);
}
void combine_dx(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->tokens->n_token, c->p->dims.top_k, c->p->val[c->op->out[0]].width);
}
