/* Lowering: program x schedule x policy -> one list. Forward and backward of a micro-batch are emitted op by op; buffers live from the first to the last
 * instruction that names them, so nothing is freed by hand. */
#include <string.h>

#include "base/err.h"
#include "program/step.h"

typedef struct ChunkState {
  const Program *p;
  bool *kept;   /* [n_val] the backward reads it */
  BufId *grad;  /* [n_val] gradient so far, of the micro-batch in backward */
  BufId *d_out; /* [n_mb][n_op][MAX_OUT] gradients that a later W pass reads */
  bool *copied; /* [n_mb] inputs are on their way */
  int *sent;    /* [n_mb] event of the activation's send, -1 */
  BufId *sent_buf;
} ChunkState;

enum { GRAD_SENDS = SCHEDULE_GRAD_SENDS };
enum { SENDS_OPEN = 4 }; /* unanswered messages on their way to a neighbour before the oldest is waited for */
typedef struct Lower {
  Step *s;
  const StepOptions *o;
  ChunkState chunk[STEP_MAX_CHUNK];
  int *open_event, most_open;
  BufId *open_buf;
  int n_open_send; /* [most_open] */
} Lower;

enum { EVENT_STAT = DEVICE_MAX_EVENT - 1 };
static int event_of(const Lower *l, int chunk, int mb) { return (chunk * l->s->n_mb + mb) % EVENT_STAT; }

static BufId buf_new(Step *s, Buf b) {
  CHECK(s->n_buf < s->max_buf, "more than %d buffers", s->max_buf);
  b.first = b.last = -1;
  s->buf[s->n_buf] = b;
  return s->n_buf++;
}

static Ins *emit(Step *s, InsKind kind) {
  CHECK(s->n_ins < s->max_ins, "more than %d instructions", s->max_ins);
  Ins *i = &s->ins[s->n_ins++];
  memset(i, 0, sizeof *i);
  *i = (Ins){.kind = kind,
             .op = -1,
             .mb = -1,
             .event = -1,
             .guard = -1,
             .work = NO_BUF,
             .group = -1,
             .peer = -1,
             .param = -1,
             .weight = NO_BUF,
             .accum = NO_BUF};
  for (int k = 0; k < MAX_IN; k++) i->in[k] = i->d_in[k] = NO_BUF;
  for (int k = 0; k < MAX_OUT; k++) i->out[k] = i->d_out[k] = NO_BUF;
  return i;
}
static Ins *emit_for(Step *s, InsKind kind, int chunk, int mb) {
  Ins *i = emit(s, kind);
  i->chunk = chunk, i->mb = mb;
  return i;
}

static BufId *value_at(const Lower *l, int chunk, int mb, ValId v) {
  return &l->s->value[chunk][(int64_t)mb * l->s->chunk[chunk]->n_val + v];
}

static Region value_region(const ChunkState *c, ValId v) {
  const Value *val = &c->p->val[v];
  if (val->floor) return REGION_F;
  return val->late && c->kept[v] ? REGION_S : REGION_W;
}

static BufId value_buf(const Lower *l, int chunk, int mb, ValId v, bool grad) {
  const ChunkState *c = &l->chunk[chunk];
  size_t bytes = (size_t)value_bound_rows(c->p, v) * value_row_bytes(c->p, v, grad);
  return buf_new(l->s, (Buf){.label = c->p->val[v].name,
                             .kind = grad ? BUF_GRAD : BUF_VALUE,
                             .region = grad ? REGION_W : value_region(c, v),
                             .val = v,
                             .chunk = chunk,
                             .mb = mb,
                             .bytes = bytes});
}
static BufId work_buf(Step *s, size_t bytes) {
  return bytes ? buf_new(s, (Buf){.label = "workspace", .kind = BUF_WORK, .region = REGION_W, .val = NO_VAL, .mb = -1, .bytes = bytes})
               : NO_BUF;
}

/* The guard of an op that touches routed rows: the decision of its plan value. */
static int guard_of(const Lower *l, int chunk, int mb, const Op *op) {
  const int *number = l->s->plan_number[chunk];
  for (int k = 0; k < op->n_in; k++) {
    ValId v = op->in[k];
    if (v == NO_VAL) continue;
    ValId plan = number[v] >= 0 ? v : l->s->chunk[chunk]->val[v].rows_from;
    if (plan != NO_VAL) return mb * l->s->n_plan + number[plan];
  }
  return -1;
}

/* The parameter among an op's inputs that is kept in shares, or -1. An op has one parameter at most. */
static int shared_param(const Lower *l, const Program *p, const Op *o) {
  for (int k = 0; k < o->n_in && l->o->zero3; k++)
    if (o->in[k] != NO_VAL && p->val[o->in[k]].kind == VAL_PARAM && program_param_of(p, o->in[k])->group != PGROUP_MIRROR)
      return p->val[o->in[k]].param;
  return -1;
}
static int64_t param_elements(const Param *p) { return p->expert_stride * p->n_expert_here; }
static BufId param_buf(const Lower *l, int param, size_t element) {
  const Param *p = &l->s->p->params->param[param];
  return buf_new(
      l->s,
      (Buf){.label = p->name, .kind = BUF_WORK, .region = REGION_W, .val = NO_VAL, .mb = -1, .bytes = (size_t)param_elements(p) * element});
}
static BufId lower_fetch(const Lower *l, int chunk, int mb, int param) {
  const Program *p = l->s->p;
  BufId b = param_buf(l, param, dtype_size(weight_type(&p->num, p->params->param[param].group)));
  Ins *i = emit_for(l->s, INS_FETCH, chunk, mb);
  i->param = param, i->out[0] = b;
  return b;
}

static Ins *emit_kernel(const Lower *l, int chunk, OpId op, Pass pass, int mb) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  int param = pass == PASS_BWD_W ? -1 : shared_param(l, p, o);
  BufId weight = param >= 0 ? lower_fetch(l, chunk, mb, param) : NO_BUF;
  Ins *i = emit_for(l->s, INS_KERNEL, chunk, mb);
  i->op = op, i->pass = pass, i->weight = weight;
  i->guard = guard_of(l, chunk, mb, o);
  i->action = LATE_KEEP;
  OpWorkArgs w = {.p = p, .op = o, .k = l->o->k, .kctx = l->o->kctx, .mb = l->o->mb};
  if (op_desc[o->kind].work) i->work = work_buf(l->s, op_desc[o->kind].work(&w, pass));
  return i;
}

/* ---- inputs and neighbours ---------------------------------------------------------------------------------------------------------- */
static void lower_inputs(Lower *l, int chunk, int mb) {
  const Program *p = l->s->chunk[chunk];
  const ValId input[2] = {p->tokens, p->labels};
  const BufId host[2] = {l->s->host_tokens, l->s->host_labels};
  if (l->chunk[chunk].copied[mb]) return;
  l->chunk[chunk].copied[mb] = true;
  for (int k = 0; k < 2; k++) {
    if (input[k] == NO_VAL) continue;
    BufId b = *value_at(l, chunk, mb, input[k]) = value_buf(l, chunk, mb, input[k], false);
    Ins *i = emit_for(l->s, INS_COPY, chunk, mb);
    i->stream = STREAM_IN, i->event = event_of(l, chunk, mb);
    i->in[0] = host[k], i->out[0] = b;
  }
}
static void lower_wait_inputs(Lower *l, int chunk, int mb) {
  const Program *p = l->s->chunk[chunk];
  if (p->tokens == NO_VAL && p->labels == NO_VAL) return;
  Ins *w = emit_for(l->s, INS_WAIT, chunk, mb);
  w->event = event_of(l, chunk, mb);
  if (p->tokens != NO_VAL) w->in[0] = *value_at(l, chunk, mb, p->tokens);
  if (p->labels != NO_VAL) w->in[1] = *value_at(l, chunk, mb, p->labels);
}

/* A message is told by what crosses which border of virtual stages: activations up, gradients down. */
typedef enum { CROSS_UP, CROSS_DOWN } Cross;
static int message_tag(const Lower *l, Cross c, int border, int mb) { return ((int)c * l->s->p->n_virtual + border) * l->s->n_mb + mb; }
static int stage_of(const Lower *l, int virtual_stage) { return virtual_stage % l->s->p->mesh->size[AXIS_PP]; }

static void lower_recv(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int here = l->s->chunk[chunk]->virtual_stage, from = c == CROSS_UP ? here - 1 : here + 1;
  Ins *i = emit_for(l->s, INS_RECV, chunk, mb);
  i->out[0] = b, i->peer = stage_of(l, from), i->tag = message_tag(l, c, c == CROSS_UP ? from : here, mb);
}
static int lower_send(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int here = l->s->chunk[chunk]->virtual_stage, to = c == CROSS_UP ? here + 1 : here - 1;
  Ins *i = emit_for(l->s, INS_SEND, chunk, mb);
  i->in[0] = b, i->peer = stage_of(l, to), i->tag = message_tag(l, c, c == CROSS_UP ? here : to, mb), i->event = l->s->n_send++;
  return i->event;
}
static void lower_sent(Lower *l, int event, BufId b) {
  if (event < 0) return;
  Ins *i = emit(l->s, INS_SENT);
  i->event = event, i->in[0] = b;
}

/* A message that no answer acknowledges: at most most_open are on their way. Several chunks send a whole group of micro-batches before the group's next chunk
 * receives, so they may have two groups under way: fewer, and stages could wait for each other in a ring. */
static void lower_send_bounded(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int slot = l->n_open_send++ % l->most_open;
  if (l->n_open_send > l->most_open) lower_sent(l, l->open_event[slot], l->open_buf[slot]);
  l->open_event[slot] = lower_send(l, chunk, mb, c, b);
  l->open_buf[slot] = b;
}

/* ---- forward -------------------------------------------------------------------------------------------------------------------------- */
static void lower_forward_op(Lower *l, int chunk, OpId op, int mb) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  for (int k = 0; k < o->n_out; k++) {
    ValId alias = p->val[o->out[k]].alias_of;
    *value_at(l, chunk, mb, o->out[k]) = alias == NO_VAL ? value_buf(l, chunk, mb, o->out[k], false) : *value_at(l, chunk, mb, alias);
  }
  Ins *i = emit_kernel(l, chunk, op, PASS_FWD, mb);
  for (int k = 0; k < o->n_in; k++)
    if (o->in[k] != NO_VAL && p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *value_at(l, chunk, mb, o->in[k]);
  for (int k = 0; k < o->n_out; k++) i->out[k] = *value_at(l, chunk, mb, o->out[k]);
  if (!(op_desc[o->kind].flags & OPF_SETS_ROWS)) return;
  Ins *d = emit_for(l->s, INS_DECIDE, chunk, mb);
  d->op = op;
  d->in[0] = *value_at(l, chunk, mb, o->out[0]);
  d->group = mb * l->s->n_plan + l->s->plan_number[chunk][o->out[0]];
}

static void lower_forward(Lower *l, int chunk, int mb, const Action *next) {
  const Program *p = l->s->chunk[chunk];
  lower_inputs(l, chunk, mb);
  if (p->recv != NO_VAL) {
    BufId b = *value_at(l, chunk, mb, p->recv) = value_buf(l, chunk, mb, p->recv, false);
    lower_recv(l, chunk, mb, CROSS_UP, b);
  }
  lower_wait_inputs(l, chunk, mb);
  if (next) lower_inputs(l, next->chunk, next->mb);
  for (OpId op = 0; op < p->n_op; op++) lower_forward_op(l, chunk, op, mb);
  if (p->send == NO_VAL) return;
  BufId out = *value_at(l, chunk, mb, p->send);
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
  BufId sum = value_buf(l, chunk, mb, v, true);
  Ins *i = emit_for(l->s, INS_SUM, chunk, mb);
  i->op = l->s->chunk[chunk]->val[v].def, i->guard = guard;
  i->in[0] = grad[v], i->in[1] = b, i->out[0] = sum;
  grad[v] = sum;
}

static Ins *emit_backward(const Lower *l, int chunk, OpId op, Pass pass, int mb, unsigned reads_in, unsigned reads_out,
                          const BufId *d_out) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  Ins *i = emit_kernel(l, chunk, op, pass, mb);
  for (int k = 0; k < o->n_in; k++)
    if (o->in[k] != NO_VAL && (reads_in >> k & 1) && p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *value_at(l, chunk, mb, o->in[k]);
  for (int k = 0; k < o->n_out; k++) {
    if (reads_out >> k & 1) i->out[k] = *value_at(l, chunk, mb, o->out[k]);
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
  int param = shared_param(l, p, &p->op[op]);
  BufId accum = param >= 0 ? param_buf(l, param, p->num.exact ? sizeof(uint64_t) : dtype_size(p->num.real)) : NO_BUF;
  if (param >= 0) {
    Ins *c = emit_for(l->s, INS_CLEAR, chunk, mb);
    c->param = param, c->out[0] = accum;
  }
  emit_backward(l, chunk, op, PASS_BWD_W, mb, d->w_in, d->w_out, kept_d_out(l, chunk, mb, op))->accum = accum;
  if (param < 0) return;
  Ins *r = emit_for(l->s, INS_REDUCE_PARAM, chunk, mb);
  r->param = param, r->in[0] = accum, r->work = work_buf(l->s, l->o->reduce_work);
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
      made[k] = i->d_in[k] = value_needs_grad(p, o->in[k]) ? value_buf(l, chunk, mb, o->in[k], true) : NO_BUF;
    for (int k = 0; k < o->n_in; k++)
      if (made[k] != NO_BUF) add_grad(l, chunk, o->in[k], made[k], mb, guard);
  }
  if (weights) lower_weight_gradient(l, chunk, op, mb);
}

static void lower_backward(Lower *l, int chunk, int mb, bool weights) {
  const Program *p = l->s->chunk[chunk];
  ChunkState *c = &l->chunk[chunk];
  for (ValId v = 0; v < p->n_val; v++) c->grad[v] = NO_BUF;
  if (p->send != NO_VAL) {
    c->grad[p->send] = value_buf(l, chunk, mb, p->send, true);
    lower_recv(l, chunk, mb, CROSS_DOWN, c->grad[p->send]);
    lower_sent(l, c->sent[mb], c->sent_buf[mb]); /* whoever answers has received */
    c->sent[mb] = -1;
  }
  for (OpId op = p->n_op - 1; op >= 0; op--) lower_backward_op(l, chunk, op, mb, weights);
  if (p->recv != NO_VAL) lower_send_bounded(l, chunk, mb, CROSS_DOWN, c->grad[p->recv]);
}

static void lower_weights(Lower *l, int chunk, int mb) {
  for (OpId op = l->s->chunk[chunk]->n_op - 1; op >= 0; op--) {
    bool any = l->s->chunk[chunk]->op[op].kind == OP_XENT;
    for (int k = 0; k < MAX_OUT; k++) any |= kept_d_out(l, chunk, mb, op)[k] != NO_BUF;
    if (any) lower_weight_gradient(l, chunk, op, mb);
  }
}

/* ---- once per step ------------------------------------------------------------------------------------------------------------------ */
void step_state_bytes(const ParamSet *ps, int rank, ParamGroupId g, const Numerics *num, bool zero1, bool zero3, size_t bytes[N_STATE]) {
  size_t real = dtype_size(num->real), acc = num->exact ? sizeof(uint64_t) : real;
  int n = mesh_group_size(ps->mesh, pgroup_axes(g)), self = mesh_group_self(ps->mesh, rank, pgroup_axes(g));
  int64_t bound[n + 1];
  params_bounds(ps, g, n, bound);
  size_t own = (size_t)(zero1 ? bound[self + 1] - bound[self] : bound[n]), held = zero3 && g != PGROUP_MIRROR ? own : (size_t)ps->n_flat[g];
  DType weight = weight_type(num, g);
  bytes[STATE_WEIGHT] = held * dtype_size(weight), bytes[STATE_ACCUM] = held * acc, bytes[STATE_M] = bytes[STATE_V] = own * real;
  bytes[STATE_MASTER] = weight == num->real ? 0 : own * real;
}

/* Where each token's document begins: read by kernels through the views. */
static void lower_documents(Lower *l, Buf host) {
  const int64_t n[N_TOKEN_VIEW] = {[VIEW_TP] = l->o->n_input, [VIEW_SEQ] = l->o->n_document};
  static const char *const label[N_TOKEN_VIEW] = {[VIEW_TP] = "host.doc_start", [VIEW_SEQ] = "host.doc_start.whole"};
  for (int k = 0; k < N_TOKEN_VIEW; k++) {
    host.label = label[k], host.bytes = (size_t)n[k] * sizeof(int32_t);
    l->s->host_doc[k] = l->o->n_document && label[k] ? buf_new(l->s, host) : NO_BUF;
  }
}
static void lower_states(Lower *l) {
  static const char *const state[N_STATE] = {"weights", "gradients", "moment1", "moment2", "masters"};
  const ParamSet *ps = l->s->p->params;
  Step *s = l->s;
  for (int g = 0; g < N_PGROUP; g++) {
    size_t bytes[N_STATE];
    step_state_bytes(ps, ps->rank, g, &s->p->num, l->o->zero1, l->o->zero3, bytes);
    for (int k = 0; k < N_STATE; k++)
      s->state[g][k] = buf_new(s, (Buf){.label = arena_printf(ps->arena, "%s.%s", state[k], pgroup_name(g)),
                                        .kind = BUF_STATE,
                                        .region = REGION_P,
                                        .val = NO_VAL,
                                        .mb = -1,
                                        .bytes = bytes[k]});
  }
  const Buf host = {.kind = BUF_HOST, .region = REGION_HOST, .val = NO_VAL, .mb = -1};
  Buf stat = host, tokens = host, labels = host, out = host;
  stat.label = "statistics", stat.kind = BUF_STATE, stat.region = REGION_P;
  stat.bytes = out.bytes = (size_t)s->p->n_stat * sizeof(uint64_t);
  tokens.bytes = labels.bytes = (size_t)l->o->n_input * sizeof(int32_t);
  tokens.label = "host.tokens", labels.label = "host.labels", out.label = "host.statistics";
  s->stat = buf_new(s, stat), s->host_tokens = buf_new(s, tokens), s->host_labels = buf_new(s, labels), s->host_stat = buf_new(s, out);
  lower_documents(l, host);
}

static void lower_optimizer(Lower *l) {
  Step *s = l->s;
  if (l->o->tied_stages) emit(s, INS_MIRROR_GRAD)->work = work_buf(s, l->o->reduce_work);
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR || l->o->zero3) continue;
    Ins *i = emit(s, INS_REDUCE);
    i->group = g, i->work = work_buf(s, l->o->reduce_work);
  }
  emit(s, INS_NORM)->work = work_buf(s, l->o->optimizer_work);
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR) continue;
    Ins *i = emit(s, INS_UPDATE);
    i->group = g, i->work = work_buf(s, l->o->optimizer_work);
  }
  for (int g = 0; g < N_PGROUP; g++)
    if (g != PGROUP_MIRROR && !l->o->zero3) emit(s, INS_GATHER)->group = g;
  if (l->o->tied_stages) emit(s, INS_MIRROR_WEIGHT);
}

static void lower_statistics_out(Step *s) {
  Ins *c = emit(s, INS_COPY);
  c->stream = STREAM_OUT, c->event = EVENT_STAT, c->in[0] = s->stat, c->out[0] = s->host_stat;
  Ins *w = emit(s, INS_WAIT);
  w->event = EVENT_STAT, w->in[0] = s->stat, w->in[1] = s->host_stat;
}

/* ---- analysis ------------------------------------------------------------------------------------------------------------------------- */
static void mark_kept(ChunkState *c) {
  const Program *p = c->p;
  for (OpId op = 0; op < p->n_op; op++) {
    const Op *o = &p->op[op];
    const OpDesc *d = &op_desc[o->kind];
    for (int k = 0; k < o->n_in; k++)
      if (o->in[k] != NO_VAL && ((o->x_in | d->w_in) >> k & 1)) c->kept[o->in[k]] = true;
    for (int k = 0; k < o->n_out; k++)
      if ((o->x_out | d->w_out) >> k & 1) c->kept[o->out[k]] = true;
  }
  for (ValId v = 0; v < p->n_val; v++)
    if (c->kept[v] && p->val[v].alias_of != NO_VAL) c->kept[p->val[v].alias_of] = true;
}
static void number_plans(Step *s, int chunk) {
  const Program *p = s->chunk[chunk];
  for (ValId v = 0; v < p->n_val; v++) {
    OpId def = p->val[v].def;
    bool plan = def >= 0 && (op_desc[p->op[def].kind].flags & OPF_SETS_ROWS);
    s->plan_number[chunk][v] = plan ? s->n_plan++ : -1;
  }
}

static void touch(Step *s, BufId b, int i) {
  if (b == NO_BUF) return;
  if (s->buf[b].first < 0) s->buf[b].first = i;
  s->buf[b].last = i;
}
static void find_lifetimes(Step *s) {
  for (int i = 0; i < s->n_ins; i++) {
    const Ins *x = &s->ins[i];
    for (int k = 0; k < MAX_IN; k++) touch(s, x->in[k], i), touch(s, x->d_in[k], i);
    for (int k = 0; k < MAX_OUT; k++) touch(s, x->out[k], i), touch(s, x->d_out[k], i);
    touch(s, x->work, i), touch(s, x->weight, i), touch(s, x->accum, i);
  }
  for (BufId b = 0; b < s->n_buf; b++)
    if (s->buf[b].kind == BUF_STATE || s->buf[b].kind == BUF_HOST) s->buf[b].first = 0, s->buf[b].last = s->n_ins;
}

static const Action *next_forward(const Schedule *sc, int a) {
  for (int b = a + 1; b < sc->n_act; b++)
    if (sc->act[b].kind == ACT_FWD) return &sc->act[b];
  return NULL;
}
static void lower_actions(Lower *l) {
  const Schedule *sc = l->s->sched;
  bool counted = !l->o->batch_aux;
  for (int a = 0; a < sc->n_act; a++) {
    const Action *x = &sc->act[a];
    if (x->kind != ACT_FWD && !counted) emit(l->s, INS_BATCH_COUNTS), counted = true;
    switch (x->kind) {
    case ACT_FWD:
      lower_forward(l, x->chunk, x->mb, next_forward(sc, a));
      break;
    case ACT_BWD:
      lower_backward(l, x->chunk, x->mb, true);
      break;
    case ACT_BWD_X:
      lower_backward(l, x->chunk, x->mb, false);
      break;
    case ACT_BWD_W:
      lower_weights(l, x->chunk, x->mb);
      break;
    }
  }
  for (int c = 0; c < l->s->n_chunk; c++)
    for (int mb = 0; mb < l->s->n_mb; mb++) lower_sent(l, l->chunk[c].sent[mb], l->chunk[c].sent_buf[mb]);
  for (int k = 0; k < l->most_open && k < l->n_open_send; k++) lower_sent(l, l->open_event[k], l->open_buf[k]);
}

static void open_chunk(Lower *l, Arena *a, int i) {
  Step *s = l->s;
  const Program *p = s->chunk[i];
  ChunkState *c = &l->chunk[i];
  *c = (ChunkState){.p = p,
                    .kept = ARENA_NEW(a, bool, p->n_val),
                    .grad = ARENA_NEW(a, BufId, p->n_val),
                    .d_out = ARENA_NEW(a, BufId, (int64_t)s->n_mb * p->n_op * MAX_OUT),
                    .copied = ARENA_NEW(a, bool, s->n_mb),
                    .sent = ARENA_NEW(a, int, s->n_mb),
                    .sent_buf = ARENA_NEW(a, BufId, s->n_mb)};
  s->plan_number[i] = ARENA_NEW(a, int, p->n_val);
  s->value[i] = ARENA_NEW(a, BufId, (int64_t)s->n_mb * p->n_val);
  for (int64_t k = 0; k < (int64_t)s->n_mb * p->n_val; k++) s->value[i][k] = NO_BUF;
  for (int64_t k = 0; k < (int64_t)s->n_mb * p->n_op * MAX_OUT; k++) c->d_out[k] = NO_BUF;
  for (int k = 0; k < s->n_mb; k++) c->sent[k] = -1;
  if (l->o->train) mark_kept(c);
  number_plans(s, i);
}

void step_lower(Step *s, Arena *a, const Program *const *chunk, int n_chunk, const Schedule *sched, const StepOptions *o) {
  CHECK(n_chunk <= STEP_MAX_CHUNK, "%d chunks on a rank, at most %d", n_chunk, STEP_MAX_CHUNK);
  int n_op = 0, n_val = 0;
  for (int i = 0; i < n_chunk; i++) {
    if (chunk[i]->n_op > n_op) n_op = chunk[i]->n_op;
    if (chunk[i]->n_val > n_val) n_val = chunk[i]->n_val;
  }
  *s = (Step){.p = chunk[0],
              .n_chunk = n_chunk,
              .sched = sched,
              .train = o->train,
              .batch_aux = o->batch_aux,
              .zero3 = o->zero3,
              .n_mb = sched->n_mb};
  s->max_ins = sched->n_act * (7 * n_op + 24) + 96;
  s->max_buf = sched->n_act * (4 * n_val + 4 * n_op + 24) + 96;
  s->ins = ARENA_NEW(a, Ins, s->max_ins);
  s->buf = ARENA_NEW(a, Buf, s->max_buf);
  int most_open = n_chunk == 1 ? SENDS_OPEN : 2 * s->p->n_virtual / n_chunk;
  Lower l = {
      .s = s, .o = o, .most_open = most_open, .open_event = ARENA_NEW(a, int, most_open), .open_buf = ARENA_NEW(a, BufId, most_open)};
  for (int i = 0; i < n_chunk; i++) s->chunk[i] = chunk[i];
  for (int i = 0; i < n_chunk; i++) open_chunk(&l, a, i);
  s->n_guard = s->n_plan * s->n_mb;
  lower_states(&l);
  emit(s, INS_ZERO);
  emit(s, INS_COUNT);
  lower_actions(&l);
  emit(s, INS_STATS);
  if (o->train) lower_optimizer(&l);
  lower_statistics_out(s);
  find_lifetimes(s);
}
