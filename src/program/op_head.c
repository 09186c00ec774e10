/* Cross-entropy over a vocabulary that TP cuts: every rank's blocks give (max, sum, label's logit) per token; all are gathered and merged by the fixed tree. The
 * losses of a token count where the token is one's own. */
#include "program/op_passes.h"

enum { LEAF = 3 };

ValId op_xent(Program *p, const char *name, ValId logits, ValId labels) {
  Shards one = {1, 0, 1, 1, 1};
  ValId out[2] = {program_act(p, name, p->val[logits].rows, 1, one),
                  program_act(p, arena_printf(p->arena, "%s.lse", name), p->val[logits].rows, 1, one)};
  p->val[out[1]].floor = true;
  value_types(p, logits, p->num.real, p->num.act);
  for (int k = 0; k < 2; k++) value_types(p, out[k], p->num.real, p->num.real);
  program_op(p, OP_XENT, name, (ValId[]){logits, labels}, 2, out, 2);
  return out[0];
}

void xent_fwd(const OpCall *c) {
  const Kernels *k = c->env->k;
  const Dims *d = &c->p->dims;
  const Shards *vocab = &c->p->val[c->op->in[0]].cut;
  int64_t T = c->mb->view[VIEW_TP].n_token, bound[d->n_tp + 1];
  size_t block = (size_t)(T * LEAF) * k->real_size;
  StatSink sink = {.word = c->env->stat, .shift = c->env->stat_shift, .fault = c->env->fault};
  k->xent_leaves(&c->env->kctx, (char *)c->work + (size_t)vocab->first * block, c->in[0], vocab, c->in[1], T);
  for (int i = 0; i <= d->n_tp; i++) bound[i] = share_begin(vocab->n, d->n_tp, i);
  comm_allgather(c->env->world, AXIS_BIT(AXIS_TP), c->work, bound, block);
  k->xent_merge(&c->env->kctx, c->out[0], c->out[1], c->work, vocab, c->in[1], T, &c->mb->view[VIEW_OWN], c->mb->tp_row[d->tp_self], &sink);
}
void xent_dx(const OpCall *c) {
  c->env->k->xent_bwd(&c->env->kctx, c->d_in[0], c->in[0], c->out[1], &c->p->val[c->op->in[0]].cut, c->in[1], c->mb->view[VIEW_TP].n_token);
}
void xent_traffic(const OpCall *c, Pass pass, Sketch *s) {
  const Shards *vocab = &c->p->val[c->op->in[0]].cut;
  int n_tp = c->p->dims.n_tp;
  int64_t bound[n_tp + 1];
  for (int i = 0; i <= n_tp; i++) bound[i] = share_begin(vocab->n, n_tp, i);
  if (pass == PASS_FWD) sketch_allgather(s, AXIS_BIT(AXIS_TP), bound, (size_t)(c->mb->view[VIEW_TP].n_token * LEAF) * c->env->k->real_size);
}
size_t xent_work(const OpWorkArgs *w, Pass pass) {
  const Shards *vocab = &w->p->val[w->op->in[0]].cut;
  return pass == PASS_FWD ? (size_t)(vocab->n * w->p->dims.n_token[VIEW_TP] * LEAF) * w->k->real_size : 0;
}
