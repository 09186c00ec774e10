/* The linear op: dense or grouped by expert, cut along its outputs (MAP) or its inputs (REDUCE). */
#include "base/err.h"
#include "program/op_passes.h"

static Shards planes(int n, int64_t width) { return (Shards){n ? n : 1, 0, n, n ? n : 1, width}; }

ValId op_linear(Program *p, const char *name, ValId x, ValId w, ValId plan) {
  const Param *par = program_param_of(p, w);
  bool out_cut = par->cut_dim == CUT_OUT;
  TreeNode node[TREE_ROOTS];
  int n_plane = shard_roots(&par->cut, node);
  bool expert = par->group == PGROUP_EXPERT;
  int members = par->group == PGROUP_TOKEN ? 1 : expert ? p->dims.n_etp : p->dims.n_tp; /* of the group, whoever has blocks */
  AxisSet partial = members == 1 ? 0 : AXIS_BIT(expert ? AXIS_ETP : AXIS_TP);
  Layout layout = {.partial = partial, .n_block = par->cut.n, .blocks = par->cut};
  int64_t width = out_cut ? shard_total(&par->cut) : n_plane * par->n_out, takes = out_cut ? par->n_in : shard_total(&par->cut);
  CHECK(p->val[x].width == takes, "%s: %s is %lld wide, the weight takes %lld", name, p->val[x].name, (long long)p->val[x].width,
        (long long)takes);
  ValId y = program_act(p, name, p->val[x].rows, width, out_cut ? par->cut : planes(n_plane, par->n_out));
  p->val[y].rows_from = p->val[x].rows_from;
  p->val[y].grad_width = out_cut ? width : par->n_out;
  bool wide = p->val[w].dtype == p->num.real, planes_travel = !out_cut && (par->group == PGROUP_EXPERT ? p->dims.n_etp : p->dims.n_tp) > 1;
  value_types(p, y, wide || planes_travel ? p->num.real : p->num.act, wide ? p->num.real : p->num.act);
  if (out_cut)
    p->val[x].grad_layout = layout, p->val[x].grad_width = n_plane * par->n_in;
  else
    p->val[y].layout = layout;
  Op *op = program_op(p, OP_LINEAR, name, (ValId[]){x, w, plan}, 3, &y, 1);
  op->attr.linear.grouped = plan != NO_VAL;
  op->attr.linear.wide = wide;
  return y;
}

/* ---- rows: in front of the workspace ----------------------------------------------------------------------------------------------------------- */
static int64_t leaves_max(const Program *p, const Op *op) {
  const Dims *d = &p->dims;
  return op->attr.linear.grouped ? (int64_t)d->n_expert_here * counts_sources(d) * d->n_window_peer
                                 : d->n_seq * ((d->seq_length - 1) / d->window + 1);
}
static size_t rows_work(const Program *p, const Op *op) {
  int64_t groups = op->attr.linear.grouped ? p->dims.n_expert_here : 1;
  return work_align((size_t)groups * sizeof(RowGroup)) + work_align((size_t)(leaves_max(p, op) + groups) * sizeof(RowLeaf));
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
    for (int s = 0; s < counts_sources(d); s++)
      for (int64_t w = 0; w < d->n_window_peer; w++) {
        const int32_t *got = counts_received(d, plan, s, w);
        if (!got[e]) continue;
        leaf[n_leaf++] = (RowLeaf){row, got[e], got[counts_experts(d)]};
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
static Rows rows_build(const OpCall *c, const int32_t *plan, void *work) {
  bool grouped = c->op->attr.linear.grouped;
  int n_group = grouped ? c->p->dims.n_expert_here : 1;
  RowGroup *g = work;
  RowLeaf *leaf = (RowLeaf *)((char *)work + work_align((size_t)n_group * sizeof(RowGroup)));
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

/* ---- passes ------------------------------------------------------------------------------------------------------------------------------------ */
/* y: real where the value that the product writes is. */
static LinArgs forward_args(const Program *p, const Op *op, const Weight *data) {
  const Param *w = program_param_of(p, op->in[1]);
  bool out_cut = w->cut_dim == CUT_OUT;
  return (LinArgs){.y_real = p->val[op->out[0]].dtype == p->num.real,
                   .mode = out_cut ? LIN_MAP : LIN_REDUCE,
                   .trans = true,
                   .n_fixed = out_cut ? w->n_in : w->n_out,
                   .cut = w->cut,
                   .w = *data};
}
static LinArgs backward_args(const Program *p, const Op *op, const Weight *data) {
  const Param *w = program_param_of(p, op->in[1]);
  bool out_cut = w->cut_dim == CUT_OUT;
  return (LinArgs){.y_real = p->val[op->in[0]].grad_dtype == p->num.real,
                   .mode = out_cut ? LIN_REDUCE : LIN_MAP,
                   .trans = false,
                   .n_fixed = out_cut ? w->n_in : w->n_out,
                   .cut = w->cut,
                   .w = *data};
}
static LinGrad grad_args(const Param *w, const Accum *acc) {
  bool out_cut = w->cut_dim == CUT_OUT;
  return (LinGrad){.cut_out = out_cut, .n_fixed = out_cut ? w->n_in : w->n_out, .cut = w->cut, .acc = *acc};
}

static const Kernels *table(const Kernels *k, const Op *op) { return op->attr.linear.wide ? k->wide : k; }

/* A product of reals whose x is stored as act widens it in front of its workspace. */
static bool widens(const Program *p, const Op *op) { return op->attr.linear.wide && p->val[op->in[0]].dtype != p->num.real; }
static size_t operand_work(const Program *p, const Op *op, Pass pass) {
  size_t bytes = (size_t)(value_bound_rows(p, op->in[0]) * p->val[op->in[0]].width) * dtype_size(p->num.real);
  return pass != PASS_BWD_X && widens(p, op) ? work_align(bytes) : 0;
}
static const void *operand(const OpCall *c, KCtx *k, Pass pass, const Rows *rows) {
  if (!widens(c->p, c->op)) return c->in[0];
  void *x = k->work;
  c->env->k->widen(k, x, c->in[0], rows->n_row * c->p->val[c->op->in[0]].width);
  k->work = (char *)x + operand_work(c->p, c->op, pass);
  return x;
}

void linear_fwd(const OpCall *c) {
  Rows rows = rows_build(c, c->in[2], c->work);
  LinArgs a = forward_args(c->p, c->op, &c->weight[1]);
  KCtx k = work_after(c, rows_work(c->p, c->op));
  const void *x = operand(c, &k, PASS_FWD, &rows);
  table(c->env->k, c->op)->linear(&k, c->out[0], x, &a, &rows);
}
void linear_dx(const OpCall *c) {
  Rows rows = rows_build(c, c->in[2], c->work);
  LinArgs a = backward_args(c->p, c->op, &c->weight[1]);
  KCtx k = work_after(c, rows_work(c->p, c->op));
  table(c->env->k, c->op)->linear(&k, c->d_in[0], c->d_out[0], &a, &rows);
}
void linear_dw(const OpCall *c) {
  Rows rows = rows_build(c, c->in[2], c->work);
  LinGrad g = grad_args(program_param_of(c->p, c->op->in[1]), &c->accum[1]);
  KCtx k = work_after(c, rows_work(c->p, c->op));
  const void *x = operand(c, &k, PASS_BWD_W, &rows);
  table(c->env->k, c->op)->linear_dw(&k, c->d_out[0], x, &g, &rows);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------------------- */
/* The largest Rows that the op can meet: sizes of workspaces. */
static Rows rows_bound(const OpWorkArgs *w) {
  bool grouped = w->op->attr.linear.grouped;
  int64_t n = grouped ? w->p->dims.n_row_expert : value_bound_rows(w->p, w->op->in[0]);
  return (Rows){.n_row = n, .n_group = grouped ? w->p->dims.n_expert_here : 1, .blocked = w->p->num.exact, .row_bound = n};
}
/* Most rows in one leaf: a window's (canonical; an expert meets a token once), or all. */
static int64_t leaf_bound(const OpWorkArgs *w) { return w->p->num.exact ? w->p->dims.window : rows_bound(w).n_row; }

size_t linear_work(const OpWorkArgs *w, Pass pass) {
  const Param *par = program_param_of(w->p, w->op->in[1]);
  Rows rows = rows_bound(w);
  const Kernels *k = table(w->k, w->op);
  LinArgs f = forward_args(w->p, w->op, &(Weight){.offset = par->offset}), b = backward_args(w->p, w->op, &(Weight){.offset = par->offset});
  LinGrad g = grad_args(par, &(Accum){.offset = par->offset, .exact = w->p->num.exact});
  size_t kernel = pass == PASS_FWD     ? k->linear_work(&w->kctx, &f, &rows)
                  : pass == PASS_BWD_X ? k->linear_work(&w->kctx, &b, &rows)
                                       : k->linear_dw_work(&w->kctx, &g, &rows, leaf_bound(w));
  return rows_work(w->p, w->op) + operand_work(w->p, w->op, pass) + kernel;
}

void linear_prepare(const OpWorkArgs *w) {
  const Param *par = program_param_of(w->p, w->op->in[1]);
  Rows rows = rows_bound(w);
  const Kernels *k = table(w->k, w->op);
  LinArgs f = forward_args(w->p, w->op, &(Weight){.offset = par->offset}), b = backward_args(w->p, w->op, &(Weight){.offset = par->offset});
  LinGrad g = grad_args(par, &(Accum){.offset = par->offset, .exact = w->p->num.exact});
  const Dims *d = &w->p->dims;
  int64_t size[2] = {d->window, d->seq_length % d->window};
  int n = size[1] ? 2 : 1;
  bool grouped = w->op->attr.linear.grouped;
  k->linear_prepare(&w->kctx, &f, &rows, size, n, grouped);
  k->linear_prepare(&w->kctx, &b, &rows, size, n, grouped);
  k->linear_dw_prepare(&w->kctx, &g, &rows, size, n, grouped, leaf_bound(w));
}

double linear_flops(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row) {
  (void)pass;
  const Param *w = program_param_of(p, op->in[1]);
  double elements = (double)(w->cut_dim == CUT_OUT ? w->n_in : w->n_out) * (double)shard_total(&w->cut);
  return 2.0 * elements * (double)value_rows(p, op->in[0], mb, n_row);
}
