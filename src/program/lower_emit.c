/* Lowering: buffers, instructions, and the two ends of a chunk: inputs from the host, messages from and to its neighbours in the pipeline. */
#include <string.h>

#include "base/err.h"
#include "program/lower.h"

static int event_of(const Lower *l, int chunk, int mb) { return (chunk * l->s->n_mb + mb) % LOWER_EVENT_STAT; }

BufId lower_buf(Step *s, Buf b) {
  CHECK(s->n_buf < s->max_buf, "more than %d buffers", s->max_buf);
  b.first = b.last = -1;
  s->buf[s->n_buf] = b;
  return s->n_buf++;
}

Ins *lower_emit(Step *s, InsKind kind) {
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
Ins *lower_emit_for(Step *s, InsKind kind, int chunk, int mb) {
  Ins *i = lower_emit(s, kind);
  i->chunk = chunk, i->mb = mb;
  return i;
}

BufId *lower_value(const Lower *l, int chunk, int mb, ValId v) { return &l->s->value[chunk][(int64_t)mb * l->s->chunk[chunk]->n_val + v]; }

static Region value_region(const ChunkState *c, ValId v) {
  const Value *val = &c->p->val[v];
  if (val->floor) return REGION_F;
  return val->late && c->kept[v] ? REGION_S : REGION_W;
}

BufId lower_value_buf(const Lower *l, int chunk, int mb, ValId v, bool grad) {
  const ChunkState *c = &l->chunk[chunk];
  size_t bytes = (size_t)value_bound_rows(c->p, v) * value_row_bytes(c->p, v, grad);
  return lower_buf(l->s, (Buf){.label = c->p->val[v].name,
                               .kind = grad ? BUF_GRAD : BUF_VALUE,
                               .region = grad ? REGION_W : value_region(c, v),
                               .val = v,
                               .chunk = chunk,
                               .mb = mb,
                               .bytes = bytes});
}
BufId lower_work_buf(Step *s, size_t bytes) {
  return bytes ? lower_buf(s, (Buf){.label = "workspace", .kind = BUF_WORK, .region = REGION_W, .val = NO_VAL, .mb = -1, .bytes = bytes})
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

int lower_shared_param(const Lower *l, const Program *p, const Op *o) {
  for (int k = 0; k < o->n_in && l->o->zero3; k++)
    if (o->in[k] != NO_VAL && p->val[o->in[k]].kind == VAL_PARAM && program_param_of(p, o->in[k])->group != PGROUP_MIRROR)
      return p->val[o->in[k]].param;
  return -1;
}
static int64_t param_elements(const Param *p) { return p->expert_stride * p->n_expert_here; }
BufId lower_param_buf(const Lower *l, int param, size_t element) {
  const Param *p = &l->s->p->params->param[param];
  return lower_buf(
      l->s,
      (Buf){.label = p->name, .kind = BUF_WORK, .region = REGION_W, .val = NO_VAL, .mb = -1, .bytes = (size_t)param_elements(p) * element});
}
static BufId lower_fetch(const Lower *l, int chunk, int mb, int param) {
  const Program *p = l->s->p;
  BufId b = lower_param_buf(l, param, dtype_size(weight_type(&p->num, p->params->param[param].group)));
  Ins *i = lower_emit_for(l->s, INS_FETCH, chunk, mb);
  i->param = param, i->out[0] = b;
  return b;
}

Ins *lower_kernel(const Lower *l, int chunk, OpId op, Pass pass, int mb) {
  const Program *p = l->s->chunk[chunk];
  const Op *o = &p->op[op];
  int param = pass == PASS_BWD_W ? -1 : lower_shared_param(l, p, o);
  BufId weight = param >= 0 ? lower_fetch(l, chunk, mb, param) : NO_BUF;
  Ins *i = lower_emit_for(l->s, INS_KERNEL, chunk, mb);
  i->op = op, i->pass = pass, i->weight = weight;
  i->guard = guard_of(l, chunk, mb, o);
  i->action = LATE_KEEP;
  OpWorkArgs w = {.p = p, .op = o, .k = l->o->k, .kctx = l->o->kctx, .mb = l->o->mb};
  if (op_desc[o->kind].work) i->work = lower_work_buf(l->s, op_desc[o->kind].work(&w, pass));
  return i;
}

/* ---- inputs and neighbours ---------------------------------------------------------------------------------------------------------- */
void lower_inputs(Lower *l, int chunk, int mb) {
  const Program *p = l->s->chunk[chunk];
  const ValId input[2] = {p->tokens, p->labels};
  const BufId host[2] = {l->s->host_tokens, l->s->host_labels};
  if (l->chunk[chunk].copied[mb]) return;
  l->chunk[chunk].copied[mb] = true;
  for (int k = 0; k < 2; k++) {
    if (input[k] == NO_VAL) continue;
    BufId b = *lower_value(l, chunk, mb, input[k]) = lower_value_buf(l, chunk, mb, input[k], false);
    Ins *i = lower_emit_for(l->s, INS_COPY, chunk, mb);
    i->stream = STREAM_IN, i->event = event_of(l, chunk, mb);
    i->in[0] = host[k], i->out[0] = b;
  }
}
void lower_wait_inputs(Lower *l, int chunk, int mb) {
  const Program *p = l->s->chunk[chunk];
  if (p->tokens == NO_VAL && p->labels == NO_VAL) return;
  Ins *w = lower_emit_for(l->s, INS_WAIT, chunk, mb);
  w->event = event_of(l, chunk, mb);
  if (p->tokens != NO_VAL) w->in[0] = *lower_value(l, chunk, mb, p->tokens);
  if (p->labels != NO_VAL) w->in[1] = *lower_value(l, chunk, mb, p->labels);
}

static int message_tag(const Lower *l, Cross c, int border, int mb) { return ((int)c * l->s->p->n_virtual + border) * l->s->n_mb + mb; }
static int stage_of(const Lower *l, int virtual_stage) { return virtual_stage % l->s->p->mesh->size[AXIS_PP]; }

void lower_recv(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int here = l->s->chunk[chunk]->virtual_stage, from = c == CROSS_UP ? here - 1 : here + 1;
  Ins *i = lower_emit_for(l->s, INS_RECV, chunk, mb);
  i->out[0] = b, i->peer = stage_of(l, from), i->tag = message_tag(l, c, c == CROSS_UP ? from : here, mb);
}
int lower_send(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int here = l->s->chunk[chunk]->virtual_stage, to = c == CROSS_UP ? here + 1 : here - 1;
  Ins *i = lower_emit_for(l->s, INS_SEND, chunk, mb);
  i->in[0] = b, i->peer = stage_of(l, to), i->tag = message_tag(l, c, c == CROSS_UP ? here : to, mb), i->event = l->s->n_send++;
  return i->event;
}
void lower_sent(Lower *l, int event, BufId b) {
  if (event < 0) return;
  Ins *i = lower_emit(l->s, INS_SENT);
  i->event = event, i->in[0] = b;
}

/* Several chunks send a whole group of micro-batches before the group's next chunk
 * receives, so they may have two groups under way: fewer, and stages could wait for each other in a ring. */
void lower_send_bounded(Lower *l, int chunk, int mb, Cross c, BufId b) {
  int slot = l->n_open_send++ % l->most_open;
  if (l->n_open_send > l->most_open) lower_sent(l, l->open_event[slot], l->open_buf[slot]);
  l->open_event[slot] = lower_send(l, chunk, mb, c, b);
  l->open_buf[slot] = b;
}
