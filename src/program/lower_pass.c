/* Lowering: the passes of a micro-batch, op by op. */
#include "program/lower.h"

/* ---- forward -------------------------------------------------------------------------------------------------------------------------- */
static void lower_forward_op(Lower *l, int chunk, OpId op, int mb) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  for (int k = 0; k < o->n_out; k++) {
    ValId alias = p->val[o->out[k]].alias_of;
    *lower_value(l, chunk, mb, o->out[k]) =
        alias == NO_VAL ? lower_value_buf(l, chunk, mb, o->out[k], false) : *lower_value(l, chunk, mb, alias);
  }
  Ins *i = lower_kernel(l, chunk, op, PASS_FWD, mb);
  for (int k = 0; k < o->n_in; k++)
    if (o->in[k] != NO_VAL && p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *lower_value(l, chunk, mb, o->in[k]);
  for (int k = 0; k < o->n_out; k++) i->out[k] = *lower_value(l, chunk, mb, o->out[k]);
  if (!(op_desc[o->kind].flags & OPF_SETS_ROWS)) return;
  Ins *d = lower_emit_for(l->s, INS_DECIDE, chunk, mb);
  d->op = op;
  d->in[0] = *lower_value(l, chunk, mb, o->out[0]);
  d->group = mb * l->s->n_plan + l->s->plan_number[chunk][o->out[0]];
}

void lower_forward(Lower *l, int chunk, int mb, const Action *next) {
  const Program *p = l->s->chunk[chunk];
  lower_inputs(l, chunk, mb);
  if (p->recv != NO_VAL) {
    BufId b = *lower_value(l, chunk, mb, p->recv) = lower_value_buf(l, chunk, mb, p->recv, false);
    lower_recv(l, chunk, mb, CROSS_UP, b);
  }
  lower_wait_inputs(l, chunk, mb);
  if (next) lower_inputs(l, next->chunk, next->mb);
  for (OpId op = 0; op < p->n_op; op++) lower_forward_op(l, chunk, op, mb);
  if (p->send == NO_VAL) return;
  BufId out = *lower_value(l, chunk, mb, p->send);
  if (!l->o->train) { /* nobody answers: what is on its way is bounded as gradients are */
    lower_send_bounded(l, chunk, mb, CROSS_UP, out);
    return;
  }
  l->chunk[chunk].sent[mb] = lower_send(l, chunk, mb, CROSS_UP, out);
  l->chunk[chunk].sent_buf[mb] = out;
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------------- */
static void add_grad(Lower *l, int chunk, ValId v, BufId b, int mb, int guard) {
  BufId *grad = l->chunk[chunk].grad;
  if (grad[v] == NO_BUF) {
    grad[v] = b;
    return;
  }
  BufId sum = lower_value_buf(l, chunk, mb, v, true);
  Ins *i = lower_emit_for(l->s, INS_SUM, chunk, mb);
  i->op = l->s->chunk[chunk]->val[v].def, i->guard = guard;
  i->in[0] = grad[v], i->in[1] = b, i->out[0] = sum;
  grad[v] = sum;
}

static Ins *emit_backward(const Lower *l, int chunk, OpId op, Pass pass, int mb, unsigned reads_in, unsigned reads_out,
                          const BufId *d_out) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  Ins *i = lower_kernel(l, chunk, op, pass, mb);
  for (int k = 0; k < o->n_in; k++)
    if (o->in[k] != NO_VAL && (reads_in >> k & 1) && p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *lower_value(l, chunk, mb, o->in[k]);
  for (int k = 0; k < o->n_out; k++) {
    if (reads_out >> k & 1) i->out[k] = *lower_value(l, chunk, mb, o->out[k]);
    i->d_out[k] = d_out[k];
  }
  return i;
}

static bool has_gradient(const Lower *l, int chunk, const Op *o) {
  if (o->kind == OP_XENT) return true; /* the seed: d loss / d loss = 1 */
  for (int k = 0; k < o->n_out; k++)
    if (l->chunk[chunk].grad[o->out[k]] != NO_BUF) return true;
  return false;
}

static BufId *kept_d_out(const Lower *l, int chunk, int mb, OpId op) {
  return l->chunk[chunk].d_out + ((int64_t)mb * l->s->chunk[chunk]->n_op + op) * MAX_OUT;
}
static void lower_weight_gradient(Lower *l, int chunk, OpId op, int mb) {
  const Program *p = l->s->chunk[chunk];
  const OpDesc *d = &op_desc[p->op[op].kind];
  if (!d->run[PASS_BWD_W]) return;
  int param = lower_shared_param(l, p, &p->op[op]);
  BufId accum = param >= 0 ? lower_param_buf(l, param, p->num.exact ? sizeof(uint64_t) : dtype_size(p->num.real)) : NO_BUF;
  if (param >= 0) {
    Ins *c = lower_emit_for(l->s, INS_CLEAR, chunk, mb);
    c->param = param, c->out[0] = accum;
  }
  emit_backward(l, chunk, op, PASS_BWD_W, mb, d->w_in, d->w_out, kept_d_out(l, chunk, mb, op))->accum = accum;
  if (param < 0) return;
  Ins *r = lower_emit_for(l->s, INS_REDUCE_PARAM, chunk, mb);
  r->param = param, r->in[0] = accum, r->work = lower_work_buf(l->s, l->o->reduce_work);
}

static void lower_backward_op(Lower *l, int chunk, OpId op, int mb, bool weights) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  const OpDesc *d = &op_desc[o->kind];
  BufId *d_out = kept_d_out(l, chunk, mb, op), made[MAX_IN];
  for (int k = 0; k < MAX_OUT; k++) d_out[k] = k < o->n_out ? l->chunk[chunk].grad[o->out[k]] : NO_BUF;
  if (!has_gradient(l, chunk, o)) return;
  if (d->flags & OPF_PASS_GRAD) {
    for (int k = 0; k < o->n_in; k++) add_grad(l, chunk, o->in[k], d_out[0], mb, -1);
    return;
  }
  if (d->run[PASS_BWD_X]) {
    Ins *i = emit_backward(l, chunk, op, PASS_BWD_X, mb, o->x_in, o->x_out, d_out);
    int guard = i->guard;
    for (int k = 0; k < o->n_in; k++)
      made[k] = i->d_in[k] = value_needs_grad(p, o->in[k]) ? lower_value_buf(l, chunk, mb, o->in[k], true) : NO_BUF;
    for (int k = 0; k < o->n_in; k++)
      if (made[k] != NO_BUF) add_grad(l, chunk, o->in[k], made[k], mb, guard);
  }
  if (weights) lower_weight_gradient(l, chunk, op, mb);
}

void lower_backward(Lower *l, int chunk, int mb, bool weights) {
  const Program *p = l->s->chunk[chunk];
  ChunkState *c = &l->chunk[chunk];
  for (ValId v = 0; v < p->n_val; v++) c->grad[v] = NO_BUF;
  if (p->send != NO_VAL) {
    c->grad[p->send] = lower_value_buf(l, chunk, mb, p->send, true);
    lower_recv(l, chunk, mb, CROSS_DOWN, c->grad[p->send]);
    lower_sent(l, c->sent[mb], c->sent_buf[mb]); /* whoever answers has received */
    c->sent[mb] = -1;
  }
  for (OpId op = p->n_op - 1; op >= 0; op--) lower_backward_op(l, chunk, op, mb, weights);
  if (p->recv != NO_VAL) lower_send_bounded(l, chunk, mb, CROSS_DOWN, c->grad[p->recv]);
}

void lower_weights(Lower *l, int chunk, int mb) {
  for (OpId op = l->s->chunk[chunk]->n_op - 1; op >= 0; op--) {
    bool any = l->s->chunk[chunk]->op[op].kind == OP_XENT;
    for (int k = 0; k < MAX_OUT; k++) any |= kept_d_out(l, chunk, mb, op)[k] != NO_BUF;
    if (any) lower_weight_gradient(l, chunk, op, mb);
  }
}
