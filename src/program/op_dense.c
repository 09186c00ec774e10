/* Ops over tokens: embedding, norm, rotary embedding, attention, SwiGLU, residual add, cross-entropy. */
#include <math.h>

#include "base/err.h"
#include "program/op_passes.h"

static const Shards *cut_of(const OpCall *c, ValId v) { return &c->p->val[v].cut; }
static int64_t width_of(const OpCall *c, ValId v) { return c->p->val[v].width; }
static int64_t rows_of(const OpCall *c, ValId v) {
  const RowKind kind = c->p->val[v].rows;
  const int64_t n[N_ROWS] = {[ROWS_TOKEN] = c->tokens->n_token, [ROWS_ROUTE] = c->tokens->n_token * c->p->dims.top_k, [ROWS_EXPERT] = c->n_row,
                             [ROWS_WINDOW] = c->tokens->n_window, [ROWS_ONE] = 1};
  return n[kind];
}
static Shards uncut(int64_t width) { return (Shards){1, 0, 1, width, 1}; }

ValId op_embed(Program *p, const char *name, ValId tokens, ValId w) {
  int64_t H = program_param_of(p, w)->n_in;
  ValId x = program_act(p, name, ROWS_TOKEN, H, uncut(H));
  program_op(p, OP_EMBED, name, (ValId[]){tokens, w}, 2, &x, 1);
  const Shards *vocab = &program_param_of(p, w)->cut;
  if (vocab->count < vocab->n) p->val[x].layout.partial = AXIS_BIT(AXIS_TP);
  return x;
}
void embed_fwd(const OpCall *c) {
  const Param *w = program_param_of(c->p, c->op->in[1]);
  c->env->k->embed_fwd(&c->env->kctx, c->out[0], &c->weight[1], &w->cut, w->n_in, c->in[0], c->tokens->n_token);
}
void embed_dw(const OpCall *c) {
  const Param *w = program_param_of(c->p, c->op->in[1]);
  c->env->k->embed_dw(&c->env->kctx, &c->accum[1], &w->cut, w->n_in, c->in[0], c->d_out[0], c->tokens);
}

ValId op_rmsnorm(Program *p, const char *name, ValId x, ValId gain, double eps) {
  int64_t H = p->val[x].width;
  ValId out[2] = {program_act(p, name, ROWS_TOKEN, H, uncut(H)), program_act(p, arena_printf(p->arena, "%s.rstd", name), ROWS_TOKEN, 1, uncut(1))};
  p->val[out[1]].floor = true;
  program_op(p, OP_RMSNORM, name, (ValId[]){x, gain}, 2, out, 2)->attr.norm.eps = eps;
  return out[0];
}
void rmsnorm_fwd(const OpCall *c) {
  int64_t H = width_of(c, c->op->in[0]);
  c->env->k->rmsnorm_fwd(&c->env->kctx, c->out[0], c->out[1], c->in[0], c->weight[1].data, c->tokens->n_token, H, c->op->attr.norm.eps);
}
void rmsnorm_dx(const OpCall *c) {
  int64_t H = width_of(c, c->op->in[0]);
  c->env->k->rmsnorm_dx(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[0], c->out[1], c->weight[1].data, c->tokens->n_token, H);
}
void rmsnorm_dw(const OpCall *c) {
  c->env->k->rmsnorm_dw(&c->env->kctx, &c->accum[1], c->d_out[0], c->in[0], c->out[1], width_of(c, c->op->in[0]), c->tokens);
}

ValId op_rope(Program *p, const char *name, ValId x, double theta, int64_t head_dim) {
  CHECK(p->val[x].cut.unit == head_dim, "%s: %s is not cut by heads", name, p->val[x].name);
  ValId y = program_act(p, name, ROWS_TOKEN, p->val[x].width, p->val[x].cut);
  program_op(p, OP_ROPE, name, &x, 1, &y, 1)->attr.rope.theta = theta;
  return y;
}
void rope_fwd(const OpCall *c) {
  c->env->k->rope(&c->env->kctx, c->out[0], c->in[0], cut_of(c, c->op->in[0]), c->op->attr.rope.theta, 1, c->tokens);
}
void rope_dx(const OpCall *c) {
  c->env->k->rope(&c->env->kctx, c->d_in[0], c->d_out[0], cut_of(c, c->op->in[0]), c->op->attr.rope.theta, -1, c->tokens);
}

ValId op_attention(Program *p, const char *name, ValId q, ValId k, ValId v, int64_t head_dim, int64_t window) {
  Shards cut = p->val[q].cut;
  int64_t heads = shard_total(&cut) / head_dim;
  ValId out[2] = {program_act(p, name, ROWS_TOKEN, p->val[q].width, cut), program_act(p, arena_printf(p->arena, "%s.lse", name), ROWS_TOKEN, heads, uncut(heads))};
  p->val[out[1]].floor = true;
  Op *op = program_op(p, OP_ATTENTION, name, (ValId[]){q, k, v}, 3, out, 2);
  op->attr.attention.q = cut;
  op->attr.attention.kv = p->val[k].cut;
  op->attr.attention.head_dim = head_dim;
  op->attr.attention.window = window;
  op->attr.attention.scale = 1.0 / sqrt((double)head_dim);
  return out[0];
}
static AttnArgs attention_args(const Op *op) {
  return (AttnArgs){.q = op->attr.attention.q, .kv = op->attr.attention.kv, .head_dim = op->attr.attention.head_dim,
                    .window = op->attr.attention.window, .scale = op->attr.attention.scale};
}
void attention_fwd(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  KCtx k = work_after(c, 0);
  c->env->k->attention_fwd(&k, c->out[0], c->out[1], c->in[0], c->in[1], c->in[2], &a, c->tokens);
}
void attention_dx(const OpCall *c) {
  AttnArgs a = attention_args(c->op);
  KCtx k = work_after(c, 0);
  c->env->k->attention_bwd(&k, c->d_in[0], c->d_in[1], c->d_in[2], c->d_out[0], c->out[0], c->out[1], c->in[0], c->in[1], c->in[2], &a, c->tokens);
}
size_t attention_work(const OpWorkArgs *w, Pass pass) {
  AttnArgs a = attention_args(w->op);
  return w->k->attention_work(&w->kctx, &a, w->tokens, pass == PASS_BWD_X);
}
/* Visible (query, key) pairs: causal and within the window; two products forward, four backward. */
double attention_flops(const Program *p, const Op *op, Pass pass, int64_t n_token, int64_t n_row) {
  (void)n_row;
  int64_t S = p->dims.seq_length, W = op->attr.attention.window;
  double visible = W && W < S ? (double)W * (double)S - (double)W * (double)(W - 1) / 2 : (double)S * (double)(S + 1) / 2;
  double forward = 4.0 * (double)shard_total(&op->attr.attention.q) * visible * (double)n_token / (double)S;
  return pass == PASS_FWD ? forward : 2 * forward;
}

ValId op_swiglu(Program *p, const char *name, ValId gate, ValId up, ValId row_weight) {
  ValId y = program_act(p, name, p->val[gate].rows, p->val[gate].width, p->val[gate].cut);
  p->val[y].rows_from = p->val[gate].rows_from;
  program_op(p, OP_SWIGLU, name, (ValId[]){gate, up, row_weight}, 3, &y, 1);
  return y;
}
void swiglu_fwd(const OpCall *c) {
  c->env->k->swiglu_fwd(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->in[2], cut_of(c, c->op->in[0]), rows_of(c, c->op->in[0]));
}
void swiglu_dx(const OpCall *c) {
  c->env->k->swiglu_bwd(&c->env->kctx, c->d_in[0], c->d_in[1], c->d_in[2], c->d_out[0], c->in[0], c->in[1], c->in[2], cut_of(c, c->op->in[0]),
                        rows_of(c, c->op->in[0]));
}

ValId op_add(Program *p, const char *name, ValId a, ValId b) {
  CHECK(p->val[a].width == p->val[b].width && p->val[a].rows == p->val[b].rows, "%s adds %s and %s of other sizes", name, p->val[a].name, p->val[b].name);
  ValId y = program_act(p, name, p->val[a].rows, p->val[a].width, p->val[a].cut);
  program_op(p, OP_ADD, name, (ValId[]){a, b}, 2, &y, 1);
  return y;
}
void add_fwd(const OpCall *c) {
  c->env->k->add(&c->env->kctx, c->out[0], c->in[0], c->in[1], rows_of(c, c->op->out[0]) * width_of(c, c->op->out[0]));
}

ValId op_xent(Program *p, const char *name, ValId logits, ValId labels) {
  ValId out[2] = {program_act(p, name, ROWS_TOKEN, 1, uncut(1)), program_act(p, arena_printf(p->arena, "%s.lse", name), ROWS_TOKEN, 1, uncut(1))};
  p->val[out[1]].floor = true;
  program_op(p, OP_XENT, name, (ValId[]){logits, labels}, 2, out, 2);
  return out[0];
}
void xent_fwd(const OpCall *c) {
  StatSink sink = {.word = c->env->stat, .shift = c->env->stat_shift, .fault = c->env->fault};
  c->env->k->xent_fwd(&c->env->kctx, c->out[0], c->out[1], c->in[0], cut_of(c, c->op->in[0]), c->in[1], c->tokens, &sink);
}
void xent_dx(const OpCall *c) {
  c->env->k->xent_bwd(&c->env->kctx, c->d_in[0], c->in[0], c->out[1], cut_of(c, c->op->in[0]), c->in[1], c->tokens->n_token);
}
