/* Lowering: program x schedule x policy -> one list. Forward and backward of a micro-batch are emitted op by op; buffers live from the first to the last
 * instruction that names them, so nothing is freed by hand. */
#include <string.h>

#include "base/err.h"
#include "program/step.h"

typedef struct Lower {
  Step *s; const Program *p; const StepOptions *o;
  bool *kept;        /* [n_val] the backward reads it */
  BufId *grad;       /* [n_val] gradient so far, of the micro-batch in backward */
  int n_copied;      /* micro-batches whose inputs are on their way */
} Lower;

enum { EVENT_STAT = DEVICE_MAX_EVENT - 1 };
static int event_of(int mb) { return mb % EVENT_STAT; }

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
  *i = (Ins){.kind = kind, .op = -1, .mb = -1, .event = -1, .guard = -1, .work = NO_BUF, .group = -1};
  for (int k = 0; k < MAX_IN; k++) i->in[k] = i->d_in[k] = NO_BUF;
  for (int k = 0; k < MAX_OUT; k++) i->out[k] = i->d_out[k] = NO_BUF;
  return i;
}

static BufId *value_at(const Lower *l, int mb, ValId v) { return &l->s->value[(int64_t)mb * l->p->n_val + v]; }

static Region value_region(const Lower *l, ValId v) {
  const Value *val = &l->p->val[v];
  if (val->floor) return REGION_F;
  return val->late && l->kept[v] ? REGION_S : REGION_W;
}

static size_t bound_bytes(const Program *p, ValId v) { return (size_t)value_bound_rows(p, v) * value_row_bytes(p, v); }

static BufId value_buf(const Lower *l, int mb, ValId v, bool grad) {
  return buf_new(l->s, (Buf){.label = l->p->val[v].name, .kind = grad ? BUF_GRAD : BUF_VALUE, .region = grad ? REGION_W : value_region(l, v), .val = v,
                             .mb = mb, .bytes = bound_bytes(l->p, v)});
}
static BufId work_buf(Step *s, size_t bytes) {
  return bytes ? buf_new(s, (Buf){.label = "workspace", .kind = BUF_WORK, .region = REGION_W, .val = NO_VAL, .mb = -1, .bytes = bytes}) : NO_BUF;
}

/* The guard of an op that touches routed rows: the decision of its plan value. */
static int guard_of(const Lower *l, int mb, const Op *op) {
  for (int k = 0; k < op->n_in; k++) {
    ValId v = op->in[k];
    if (v == NO_VAL) continue;
    ValId plan = l->s->plan_number[v] >= 0 ? v : l->p->val[v].rows_from;
    if (plan != NO_VAL) return mb * l->s->n_plan + l->s->plan_number[plan];
  }
  return -1;
}

static Ins *emit_kernel(const Lower *l, OpId op, Pass pass, int mb) {
  const Op *o = &l->p->op[op];
  Ins *i = emit(l->s, INS_KERNEL);
  i->op = op, i->pass = pass, i->mb = mb;
  i->guard = guard_of(l, mb, o);
  i->action = LATE_KEEP;
  const OpDesc *d = &op_desc[o->kind];
  OpWorkArgs w = {.p = l->p, .op = o, .k = l->o->k, .kctx = l->o->kctx, .tokens = l->o->tokens};
  if (d->work) i->work = work_buf(l->s, d->work(&w, pass));
  return i;
}

static void lower_inputs(Lower *l, int mb) {
  const ValId input[2] = {l->p->tokens, l->p->labels};
  const BufId host[2] = {l->s->host_tokens, l->s->host_labels};
  for (int k = 0; k < 2; k++) {
    BufId b = *value_at(l, mb, input[k]) = value_buf(l, mb, input[k], false);
    Ins *i = emit(l->s, INS_COPY);
    i->stream = STREAM_IN, i->mb = mb, i->event = event_of(mb);
    i->in[0] = host[k], i->out[0] = b;
  }
}

static void lower_forward(Lower *l, int mb, int next_mb) {
  const Program *p = l->p;
  if (mb >= l->n_copied) lower_inputs(l, mb), l->n_copied = mb + 1;
  Ins *w = emit(l->s, INS_WAIT);
  w->event = event_of(mb), w->mb = mb;
  w->in[0] = *value_at(l, mb, p->tokens), w->in[1] = *value_at(l, mb, p->labels);
  if (next_mb >= l->n_copied) lower_inputs(l, next_mb), l->n_copied = next_mb + 1;
  for (OpId op = 0; op < p->n_op; op++) {
    const Op *o = &p->op[op];
    for (int k = 0; k < o->n_out; k++) *value_at(l, mb, o->out[k]) = value_buf(l, mb, o->out[k], false);
    Ins *i = emit_kernel(l, op, PASS_FWD, mb);
    for (int k = 0; k < o->n_in; k++)
      if (o->in[k] != NO_VAL && p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *value_at(l, mb, o->in[k]);
    for (int k = 0; k < o->n_out; k++) i->out[k] = *value_at(l, mb, o->out[k]);
    if (op_desc[o->kind].flags & OPF_SETS_ROWS) {
      Ins *d = emit(l->s, INS_DECIDE);
      d->op = op, d->mb = mb, d->guard = -1;
      d->in[0] = *value_at(l, mb, o->out[0]);
      d->group = mb * l->s->n_plan + l->s->plan_number[o->out[0]];
    }
  }
}

static void add_grad(Lower *l, ValId v, BufId b, int mb, int guard) {
  if (l->grad[v] == NO_BUF) {
    l->grad[v] = b;
    return;
  }
  BufId sum = value_buf(l, mb, v, true);
  Ins *i = emit(l->s, INS_SUM);
  i->op = l->p->val[v].def, i->mb = mb, i->guard = guard;
  i->in[0] = l->grad[v], i->in[1] = b, i->out[0] = sum;
  l->grad[v] = sum;
}

static Ins *emit_backward(const Lower *l, OpId op, Pass pass, int mb, unsigned reads_in, unsigned reads_out) {
  const Op *o = &l->p->op[op];
  Ins *i = emit_kernel(l, op, pass, mb);
  for (int k = 0; k < o->n_in; k++)
    if (o->in[k] != NO_VAL && (reads_in >> k & 1) && l->p->val[o->in[k]].kind != VAL_PARAM) i->in[k] = *value_at(l, mb, o->in[k]);
  for (int k = 0; k < o->n_out; k++) {
    if (reads_out >> k & 1) i->out[k] = *value_at(l, mb, o->out[k]);
    i->d_out[k] = l->grad[o->out[k]];
  }
  return i;
}

static bool has_gradient(const Lower *l, const Op *o) {
  if (o->kind == OP_XENT) return true;      /* the seed: d loss / d loss = 1 */
  for (int k = 0; k < o->n_out; k++)
    if (l->grad[o->out[k]] != NO_BUF) return true;
  return false;
}

static void lower_backward_op(Lower *l, OpId op, int mb) {
  const Op *o = &l->p->op[op];
  const OpDesc *d = &op_desc[o->kind];
  if (!has_gradient(l, o)) return;
  if (d->flags & OPF_PASS_GRAD) {
    for (int k = 0; k < o->n_in; k++) add_grad(l, o->in[k], l->grad[o->out[0]], mb, -1);
    return;
  }
  if (d->run[PASS_BWD_X]) {
    Ins *i = emit_backward(l, op, PASS_BWD_X, mb, d->x_in, d->x_out);
    BufId made[MAX_IN];
    int guard = i->guard;
    for (int k = 0; k < o->n_in; k++) made[k] = i->d_in[k] = value_needs_grad(l->p, o->in[k]) ? value_buf(l, mb, o->in[k], true) : NO_BUF;
    for (int k = 0; k < o->n_in; k++)
      if (made[k] != NO_BUF) add_grad(l, o->in[k], made[k], mb, guard);
  }
  if (d->run[PASS_BWD_W]) emit_backward(l, op, PASS_BWD_W, mb, d->w_in, d->w_out);
}

static void lower_backward(Lower *l, int mb) {
  for (ValId v = 0; v < l->p->n_val; v++) l->grad[v] = NO_BUF;
  for (OpId op = l->p->n_op - 1; op >= 0; op--) lower_backward_op(l, op, mb);
}

/* ---- once per step ------------------------------------------------------------------------------------------------------------------ */
static void lower_states(Lower *l) {
  static const char *const name[N_PGROUP][N_STATE] = {{"weights.dense", "gradients.dense", "moment1.dense", "moment2.dense"},
                                                       {"weights.expert", "gradients.expert", "moment1.expert", "moment2.expert"}};
  const ParamSet *ps = l->p->params;
  Step *s = l->s;
  size_t real = dtype_size(l->p->num.real), acc = l->p->num.exact ? sizeof(uint64_t) : real;
  for (int g = 0; g < N_PGROUP; g++) {
    int n = mesh_group_size(ps->mesh, pgroup_axes(g)), self = mesh_coord(ps->mesh, ps->rank, g == PGROUP_DENSE ? AXIS_DP : AXIS_EDP);
    int64_t *bound = ARENA_NEW(ps->arena, int64_t, n + 1);
    params_bounds(ps, g, n, bound);
    size_t own = (size_t)(l->o->zero1 ? bound[self + 1] - bound[self] : ps->n_flat[g]);
    const size_t bytes[N_STATE] = {(size_t)ps->n_flat[g] * real, (size_t)ps->n_flat[g] * acc, own * real, own * real};
    for (int k = 0; k < N_STATE; k++)
      s->state[g][k] = buf_new(s, (Buf){.label = name[g][k], .kind = BUF_STATE, .region = REGION_P, .val = NO_VAL, .mb = -1, .bytes = bytes[k]});
  }
  size_t stat = (size_t)l->p->n_stat * sizeof(uint64_t), ids = (size_t)(l->o->n_local_seq * l->p->dims.seq_length) * sizeof(int32_t);
  s->stat = buf_new(s, (Buf){.label = "statistics", .kind = BUF_STATE, .region = REGION_P, .val = NO_VAL, .mb = -1, .bytes = stat});
  s->host_tokens = buf_new(s, (Buf){.label = "host.tokens", .kind = BUF_HOST, .region = REGION_HOST, .val = NO_VAL, .mb = -1, .bytes = ids});
  s->host_labels = buf_new(s, (Buf){.label = "host.labels", .kind = BUF_HOST, .region = REGION_HOST, .val = NO_VAL, .mb = -1, .bytes = ids});
  s->host_stat = buf_new(s, (Buf){.label = "host.statistics", .kind = BUF_HOST, .region = REGION_HOST, .val = NO_VAL, .mb = -1, .bytes = stat});
}

static void lower_optimizer(Lower *l) {
  Step *s = l->s;
  for (int g = 0; g < N_PGROUP; g++) {
    Ins *i = emit(s, INS_REDUCE);
    i->group = g, i->work = work_buf(s, l->o->reduce_work);
  }
  emit(s, INS_NORM)->work = work_buf(s, l->o->optimizer_work);
  for (int g = 0; g < N_PGROUP; g++) {
    Ins *i = emit(s, INS_UPDATE);
    i->group = g, i->work = work_buf(s, l->o->optimizer_work);
  }
  for (int g = 0; g < N_PGROUP; g++) emit(s, INS_GATHER)->group = g;
}

static void lower_statistics_out(Step *s) {
  Ins *c = emit(s, INS_COPY);
  c->stream = STREAM_OUT, c->event = EVENT_STAT, c->in[0] = s->stat, c->out[0] = s->host_stat;
  Ins *w = emit(s, INS_WAIT);
  w->event = EVENT_STAT, w->in[0] = s->stat, w->in[1] = s->host_stat;
}

/* ---- analysis ------------------------------------------------------------------------------------------------------------------------- */
static void mark_kept(Lower *l) {
  for (OpId op = 0; op < l->p->n_op; op++) {
    const Op *o = &l->p->op[op];
    const OpDesc *d = &op_desc[o->kind];
    for (int k = 0; k < o->n_in; k++)
      if (o->in[k] != NO_VAL && ((d->x_in | d->w_in) >> k & 1)) l->kept[o->in[k]] = true;
    for (int k = 0; k < o->n_out; k++)
      if ((d->x_out | d->w_out) >> k & 1) l->kept[o->out[k]] = true;
  }
}
static void number_plans(Lower *l) {
  for (ValId v = 0; v < l->p->n_val; v++) {
    OpId def = l->p->val[v].def;
    bool plan = def >= 0 && (op_desc[l->p->op[def].kind].flags & OPF_SETS_ROWS);
    l->s->plan_number[v] = plan ? l->s->n_plan++ : -1;
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
    touch(s, x->work, i);
  }
  for (BufId b = 0; b < s->n_buf; b++)
    if (s->buf[b].kind == BUF_STATE || s->buf[b].kind == BUF_HOST) s->buf[b].first = 0, s->buf[b].last = s->n_ins;
}

static void lower_actions(Lower *l) {
  const Schedule *sc = l->s->sched;
  bool counted = !l->o->batch_aux;
  for (int a = 0; a < sc->n_act; a++) {
    int next = -1;
    for (int b = a + 1; b < sc->n_act && next < 0; b++)
      if (sc->act[b].kind == ACT_FWD) next = sc->act[b].mb;
    if (sc->act[a].kind == ACT_FWD) lower_forward(l, sc->act[a].mb, next);
    else {
      if (!counted) emit(l->s, INS_BATCH_COUNTS), counted = true;
      lower_backward(l, sc->act[a].mb);
    }
  }
}

bool step_lower(Step *s, Arena *a, const Program *p, const Schedule *sched, const StepOptions *o, Err *e) {
  (void)e;
  int n_act = sched->n_act;
  *s = (Step){.p = p, .sched = sched, .train = o->train, .batch_aux = o->batch_aux, .n_mb = sched->n_mb, .max_ins = n_act * (4 * p->n_op + 16) + 64};
  s->max_buf = n_act * (4 * p->n_val + 4 * p->n_op + 16) + 64;
  s->ins = ARENA_NEW(a, Ins, s->max_ins);
  s->buf = ARENA_NEW(a, Buf, s->max_buf);
  s->plan_number = ARENA_NEW(a, int, p->n_val);
  s->value = ARENA_NEW(a, BufId, (int64_t)s->n_mb * p->n_val);
  memset(s->value, -1, (size_t)s->n_mb * (size_t)p->n_val * sizeof *s->value);
  Lower l = {.s = s, .p = p, .o = o, .kept = ARENA_NEW(a, bool, p->n_val), .grad = ARENA_NEW(a, BufId, p->n_val)};
  if (o->train) mark_kept(&l);
  number_plans(&l);
  s->n_guard = s->n_plan * s->n_mb;
  lower_states(&l);
  emit(s, INS_ZERO);
  emit(s, INS_COUNT);
  lower_actions(&l);
  emit(s, INS_STATS);
  if (o->train) lower_optimizer(&l);
  lower_statistics_out(s);
  find_lifetimes(s);
  return true;
}
