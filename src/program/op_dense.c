/* Elementwise and row-wise ops: embedding, norm, rotary embedding, SwiGLU, residual add. */
#include "base/err.h"
#include "program/op_passes.h"

static const Shards *cut_of(const OpCall *c, ValId v) { return &c->p->val[v].cut; }
static int64_t width_of(const OpCall *c, ValId v) { return c->p->val[v].width; }
static int64_t rows_of(const OpCall *c, ValId v) { return value_rows(c->p, v, c->mb, c->n_row); }
static const TokenView *view_of(const OpCall *c, ValId v) { return value_view(c->p, v, c->mb); }

ValId op_embed(Program *p, const char *name, ValId tokens, ValId w) {
  int64_t H = program_param_of(p, w)->n_in;
  ValId x = program_act(p, name, ROWS_TP, H, shards_uncut(H));
  program_op(p, OP_EMBED, name, (ValId[]){tokens, w}, 2, &x, 1);
  if (p->dims.n_tp > 1) p->val[x].layout.partial = AXIS_BIT(AXIS_TP);
  return x;
}
void embed_fwd(const OpCall *c) {
  const Param *w = program_param_of(c->p, c->op->in[1]);
  c->env->k->embed_fwd(&c->env->kctx, c->out[0], &c->weight[1], &w->cut, w->n_in, c->in[0], rows_of(c, c->op->out[0]));
}
void embed_dw(const OpCall *c) {
  const Param *w = program_param_of(c->p, c->op->in[1]);
  c->env->k->embed_dw(&c->env->kctx, &c->accum[1], &w->cut, w->n_in, c->in[0], c->d_out[0], view_of(c, c->op->out[0]));
}

ValId op_rmsnorm(Program *p, const char *name, ValId x, ValId gain, double eps) {
  int64_t H = p->val[x].width;
  ValId out[2] = {program_act(p, name, p->val[x].rows, H, shards_uncut(H)),
                  program_act(p, arena_printf(p->arena, "%s.rstd", name), p->val[x].rows, 1, shards_uncut(1))};
  p->val[out[1]].floor = true;
  value_types(p, out[0], p->num.act, p->num.real);
  value_types(p, out[1], p->num.real, p->num.real);
  program_op(p, OP_RMSNORM, name, (ValId[]){x, gain}, 2, out, 2)->attr.norm.eps = eps;
  return out[0];
}
void rmsnorm_fwd(const OpCall *c) {
  int64_t H = width_of(c, c->op->in[0]);
  c->env->k->rmsnorm_fwd(&c->env->kctx, c->out[0], c->out[1], c->in[0], c->weight[1].data, rows_of(c, c->op->in[0]), H,
                         c->op->attr.norm.eps);
}
void rmsnorm_dx(const OpCall *c) {
  int64_t H = width_of(c, c->op->in[0]);
  c->env->k->rmsnorm_dx(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[0], c->out[1], c->weight[1].data, rows_of(c, c->op->in[0]), H);
}
void rmsnorm_dw(const OpCall *c) {
  c->env->k->rmsnorm_dw(&c->env->kctx, &c->accum[1], c->d_out[0], c->in[0], c->out[1], width_of(c, c->op->in[0]), view_of(c, c->op->in[0]));
}

ValId op_rope(Program *p, const char *name, ValId x, double theta, int64_t head_dim) {
  CHECK(p->val[x].cut.unit == head_dim, "%s: %s is not cut by heads", name, p->val[x].name);
  ValId y = program_act(p, name, p->val[x].rows, p->val[x].width, p->val[x].cut);
  value_types(p, x, p->num.real, p->num.act);
  value_types(p, y, p->num.act, p->num.real);
  program_op(p, OP_ROPE, name, &x, 1, &y, 1)->attr.rope.theta = theta;
  return y;
}
void rope_fwd(const OpCall *c) {
  c->env->k->rope(&c->env->kctx, c->out[0], c->in[0], cut_of(c, c->op->in[0]), c->op->attr.rope.theta, 1, view_of(c, c->op->in[0]));
}
void rope_dx(const OpCall *c) {
  c->env->k->rope(&c->env->kctx, c->d_in[0], c->d_out[0], cut_of(c, c->op->in[0]), c->op->attr.rope.theta, -1, view_of(c, c->op->in[0]));
}

ValId op_swiglu(Program *p, const char *name, ValId gate, ValId up, ValId row_weight) {
  ValId y = program_act(p, name, p->val[gate].rows, p->val[gate].width, p->val[gate].cut);
  p->val[y].rows_from = p->val[gate].rows_from;
  value_types(p, y, p->num.act, p->num.real);
  const Shards *cut = &p->val[gate].cut;
  TreeNode node[TREE_ROOTS];
  if (row_weight != NO_VAL) {
    p->val[row_weight].grad_layout = (Layout){.partial = p->dims.n_etp > 1 ? AXIS_BIT(AXIS_ETP) : 0, .n_block = cut->n, .blocks = *cut};
    p->val[row_weight].grad_width = shard_roots(cut, node);
  }
  program_op(p, OP_SWIGLU, name, (ValId[]){gate, up, row_weight}, 3, &y, 1);
  return y;
}
void swiglu_fwd(const OpCall *c) {
  c->env->k->swiglu_fwd(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->in[2], cut_of(c, c->op->in[0]), rows_of(c, c->op->in[0]));
}
void swiglu_dx(const OpCall *c) {
  c->env->k->swiglu_bwd(&c->env->kctx, c->d_in[0], c->d_in[1], c->d_in[2], c->d_out[0], c->in[0], c->in[1], c->in[2],
                        cut_of(c, c->op->in[0]), rows_of(c, c->op->in[0]));
}

ValId op_add(Program *p, const char *name, ValId a, ValId b) {
  CHECK(p->val[a].width == p->val[b].width && p->val[a].rows == p->val[b].rows, "%s adds %s and %s of other sizes", name, p->val[a].name,
        p->val[b].name);
  ValId y = program_act(p, name, p->val[a].rows, p->val[a].width, p->val[a].cut);
  program_op(p, OP_ADD, name, (ValId[]){a, b}, 2, &y, 1);
  return y;
}
void add_fwd(const OpCall *c) {
  c->env->k->add(&c->env->kctx, c->out[0], c->in[0], c->in[1], rows_of(c, c->op->out[0]) * width_of(c, c->op->out[0]));
}
