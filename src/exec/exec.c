#include "exec/exec.h"

#include <math.h>
#include <string.h>

#include "base/timer.h"
#include "exec/exec_state.h"

static InsFn *const ins_run[N_INS] = {[INS_KERNEL] = ins_kernel,
                                      [INS_SUM] = ins_sum,
                                      [INS_COPY] = ins_copy,
                                      [INS_WAIT] = ins_wait,
                                      [INS_RECV] = ins_recv,
                                      [INS_SEND] = ins_send,
                                      [INS_SENT] = ins_sent,
                                      [INS_MIRROR_GRAD] = ins_mirror_grad,
                                      [INS_MIRROR_WEIGHT] = ins_mirror_weight,
                                      [INS_DECIDE] = ins_decide,
                                      [INS_ZERO] = ins_zero,
                                      [INS_COUNT] = ins_count,
                                      [INS_BATCH_COUNTS] = ins_batch_counts,
                                      [INS_STATS] = ins_stats,
                                      [INS_FETCH] = ins_fetch,
                                      [INS_CLEAR] = ins_clear,
                                      [INS_REDUCE_PARAM] = ins_reduce_param,
                                      [INS_REDUCE] = ins_reduce,
                                      [INS_NORM] = ins_norm,
                                      [INS_UPDATE] = ins_update,
                                      [INS_GATHER] = ins_gather};

/* ---- instructions over values ----------------------------------------------------------------------------------------------------------- */
static void bind_parameter(const Exec *x, const StepRun *r, const Ins *i, OpCall *c, int k) {
  const Param *p = program_param_of(c->p, c->op->in[k]);
  const char *w = exec_ptr(x, r->s, r->s->state[p->group][STATE_WEIGHT]);
  char *acc = exec_ptr(x, r->s, r->s->state[p->group][STATE_ACCUM]);
  size_t acc_size = r->s->p->num.exact ? sizeof(uint64_t) : x->real;
  const char *fetched = exec_ptr(x, r->s, i->weight);
  char *apart = exec_ptr(x, r->s, i->accum);
  c->weight[k] = (Weight){fetched ? fetched : w + (size_t)p->flat * exec_weight_size(x, p->group), p->expert_stride, p->offset};
  c->accum[k] = x->env.accum_like;
  c->accum[k].data = apart ? apart : acc + (size_t)p->flat * acc_size;
  c->accum[k].expert_stride = p->expert_stride;
  c->accum[k].offset = p->offset;
}

static OpCall bind_call(const Exec *x, const StepRun *r, const Ins *i) {
  const Step *s = r->s;
  const Program *p = s->chunk[i->chunk];
  OpCall c = {.p = p, .op = &p->op[i->op], .env = &x->env, .mb = &r->mb[i->mb], .work = exec_ptr(x, s, i->work)};
  for (int k = 0; k < c.op->n_in; k++) {
    if (c.op->in[k] != NO_VAL && p->val[c.op->in[k]].kind == VAL_PARAM) bind_parameter(x, r, i, &c, k);
    c.in[k] = exec_ptr(x, s, i->in[k]);
    c.d_in[k] = exec_ptr(x, s, i->d_in[k]);
  }
  for (int k = 0; k < c.op->n_out; k++) c.out[k] = exec_ptr(x, s, i->out[k]), c.d_out[k] = exec_ptr(x, s, i->d_out[k]);
  if (i->guard >= 0) c.n_row = r->n_row[i->guard];
  return c;
}

void ins_kernel(Exec *x, StepRun *r, const Ins *i) {
  OpCall c = bind_call(x, r, i);
  double t = timer_now();
  op_desc[c.op->kind].run[i->pass](&c);
  x->seconds[c.op->kind][i->pass] += timer_now() - t;
  if (!x->tap || i->pass != PASS_FWD) return;
  for (int k = 0; k < c.op->n_out; k++) x->tap(x->tap_ctx, r->s, i, c.op->out[k], c.out[k], value_rows(c.p, c.op->out[k], c.mb, c.n_row));
}

void ins_sum(Exec *x, StepRun *r, const Ins *i) {
  size_t bytes = buf_bytes(r->s, &r->s->buf[i->out[0]], r->mb, r->n_row);
  DType t = r->s->chunk[i->chunk]->val[r->s->buf[i->out[0]].val].grad_dtype;
  const Kernels *k = dtype_size(t) == x->real ? x->k->wide : x->k;
  k->add(&x->env.kctx, exec_ptr(x, r->s, i->out[0]), exec_ptr(x, r->s, i->in[0]), exec_ptr(x, r->s, i->in[1]),
         (int64_t)(bytes / dtype_size(t)));
}

void ins_decide(Exec *x, StepRun *r, const Ins *i) {
  const Program *p = r->s->chunk[i->chunk];
  OpCall c = {.p = p, .op = &p->op[i->op], .env = &x->env, .mb = &r->mb[i->mb]};
  c.out[0] = exec_ptr(x, r->s, i->in[0]);
  r->n_row[i->group] = op_desc[c.op->kind].plan_rows(&c);
  CHECK(r->n_row[i->group] <= r->s->p->dims.n_row_expert, "%lld routed rows, the bound is %lld", (long long)r->n_row[i->group],
        (long long)r->s->p->dims.n_row_expert);
  r->decision[i->group] = LATE_KEEP;
}

/* Inputs of a micro-batch are a slice of the rank's; statistics go out whole. */
void ins_copy(Exec *x, StepRun *r, const Ins *i) {
  const Step *s = r->s;
  const char *src = exec_ptr(x, s, i->in[0]);
  size_t bytes = s->buf[i->in[0]].bytes;
  if (i->mb >= 0) {
    bytes = (size_t)r->mb[i->mb].view[VIEW_TP].n_token * sizeof(int32_t);
    src += (size_t)r->input_first[i->mb] * sizeof(int32_t);
  }
  if (bytes) x->o.device->ops->copy(x->o.device, i->stream, exec_ptr(x, s, i->out[0]), src, bytes);
  x->o.device->ops->record(x->o.device, i->stream, i->event);
}

void ins_wait(Exec *x, StepRun *r, const Ins *i) {
  (void)r;
  x->o.device->ops->wait(x->o.device, STREAM_COMPUTE, i->event);
}

/* ---- pipeline neighbours ---------------------------------------------------------------------------------------------------------------------- */
void ins_recv(Exec *x, StepRun *r, const Ins *i) {
  comm_recv(x->o.world, AXIS_BIT(AXIS_PP), i->peer, i->tag, exec_ptr(x, r->s, i->out[0]),
            buf_bytes(r->s, &r->s->buf[i->out[0]], r->mb, r->n_row));
}
void ins_send(Exec *x, StepRun *r, const Ins *i) {
  comm_send(x->o.world, AXIS_BIT(AXIS_PP), i->peer, i->tag, exec_ptr(x, r->s, i->in[0]),
            buf_bytes(r->s, &r->s->buf[i->in[0]], r->mb, r->n_row), i->event);
}
void ins_sent(Exec *x, StepRun *r, const Ins *i) {
  (void)r;
  comm_sent(x->o.world, i->event);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------------------------------ */
void exec_run(Exec *x, int which, const UpdateArgs *u, StepResult *result) {
  StepRun *r = &x->run[which];
  const Step *s = r->s;
  x->update = u;
  x->result = (StepResult){.n_stat = s->p->n_stat, .stat = exec_ptr(x, s, s->host_stat), .stat_shift = s->p->num.shift};
  x->env.accum_like = (Accum){.exact = s->p->num.exact, .shift = s->p->num.shift};
  x->env.stat = exec_ptr(x, s, s->stat);
  x->env.fault = x->env.accum_like.fault = x->env.stat + STAT_FAULT;
  x->env.stat_shift = s->p->num.shift;
  x->env.n_seq_global = r->deal.n_seq;
  x->env.n_token_global = r->deal.n_seq * r->deal.seq_length;
  mishap_begin(x, r);
  for (int n = 0; n < s->n_ins; n++) {
    const Ins *i = &s->ins[n];
    if ((i->guard >= 0 && r->decision[i->guard] != i->action) || !mishap_before(x, r, n)) continue;
    if (x->o.guard) guard_before(x, r, i);
    double t = timer_now();
    ins_run[i->kind](x, r, i);
    double end = timer_now();
    x->ins_seconds[i->kind] += end - t;
    if (n >= s->pass_begin && n < s->pass_end) x->result.pass_seconds += end - t;
    if (x->observer) x->observer(x->observer_ctx, s, n, t, end);
    mishap_after(x, r, n);
    if (x->o.guard) guard_after(x, r, n);
  }
  x->o.device->ops->sync(x->o.device);
  mishap_end(x);
  x->result.loss_sum = (double)(int64_t)x->result.stat[STAT_LOSS] * (1.0 / (double)(1ull << s->p->num.shift));
  x->result.loss = x->result.n_valid ? x->result.loss_sum / (double)x->result.n_valid : 0;
  if (x->result.stat[STAT_FAULT]) x->result.fault = true, x->result.loss = x->result.loss_sum = x->result.grad_norm = NAN;
  *result = x->result;
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------------------- */
int32_t *exec_documents(Exec *x, int which, int mb, ViewKind v) {
  const StepRun *r = &x->run[which];
  int64_t first = 0;
  for (int i = 0; i < mb; i++) first += r->mb[i].view[v].n_token;
  return r->s->host_doc[v] == NO_BUF ? NULL : (int32_t *)exec_ptr(x, r->s, r->s->host_doc[v]) + first;
}
/* Own tokens are a slice of the TP view. */
static void open_documents(Exec *x, int which, int mb) {
  DealMb *m = &x->run[which].mb[mb];
  const int32_t *tp = m->view[VIEW_TP].doc_start = exec_documents(x, which, mb, VIEW_TP);
  m->view[VIEW_OWN].doc_start = tp ? tp + m->tp_row[x->run[which].place.tp] : NULL;
  m->view[VIEW_SEQ].doc_start = exec_documents(x, which, mb, VIEW_SEQ);
}

static void open_step(Exec *x, Arena *a, int which) {
  const ExecStep *from = &x->o.step[which];
  StepRun *r = &x->run[which];
  if (!from->step) return;
  *r = (StepRun){.s = from->step, .deal = from->deal, .place = from->place};
  r->mb = ARENA_NEW(a, DealMb, r->s->n_mb);
  r->input_first = ARENA_NEW(a, int64_t, r->s->n_mb + 1);
  for (int mb = 0; mb < r->s->n_mb; mb++) {
    r->mb[mb] = deal_mb(&r->deal, a, r->place, mb);
    open_documents(x, which, mb);
    r->input_first[mb + 1] = r->input_first[mb] + r->mb[mb].view[VIEW_TP].n_token;
  }
  r->n_row = ARENA_NEW(a, int64_t, r->s->n_guard + 1);
  r->decision = ARENA_NEW(a, uint8_t, r->s->n_guard + 1);
  guard_index_dead(r, a);
}

static void open_groups(Exec *x, Arena *a, const ParamSet *ps) {
  for (int g = 0; g < N_PGROUP; g++) {
    int n = x->n_bound[g] = mesh_group_size(ps->mesh, pgroup_axes(g));
    x->self[g] = mesh_group(ps->mesh, a, ps->rank, pgroup_axes(g)).self;
    x->bound[g] = ARENA_NEW(a, int64_t, n + 1);
    params_bounds(ps, g, n, x->bound[g]);
    x->norm_leaf[g] = ARENA_NEW(a, int, ps->n_seg[g] + 1);
    for (int i = 0; i < ps->n_seg[g]; i++) x->norm_leaf[g][i] = params_norm_leaf(ps, ps->seg[g][i].tensor, ps->seg[g][i].shard);
  }
}

static void prepare_chunk(const Exec *x, const StepRun *r, const Program *p) {
  for (OpId op = 0; op < p->n_op; op++) {
    OpWorkArgs args = {
        .p = p, .op = &p->op[op], .k = x->k, .kctx = x->env.kctx, .mb = &r->mb[0]}; /* the first micro-batch is the largest */
    if (op_desc[args.op->kind].prepare) op_desc[args.op->kind].prepare(&args);
  }
}
static void prepare_gemm(Exec *x) {
  for (int w = 0; w < EXEC_MAX_STEP; w++) {
    const StepRun *r = &x->run[w];
    if (!r->s) continue;
    for (int c = 0; c < r->s->n_chunk; c++) prepare_chunk(x, r, r->s->chunk[c]);
  }
}

bool exec_open(Exec **out, Arena *a, const ExecOptions *o, Err *e) {
  Exec *x = *out = ARENA_NEW(a, Exec, 1);
  x->o = *o;
  const Program *p = o->step[EXEC_TRAIN].step ? o->step[EXEC_TRAIN].step->p : o->step[EXEC_EVAL].step->p;
  x->k = device_kernels(o->device, p->num.act);
  x->real = dtype_size(p->num.real);
  x->device = o->device->ops->alloc(o->device, SPACE_DEVICE, o->slab.device);
  x->host = o->device->ops->alloc(o->device, SPACE_HOST, o->slab.host);
  if (!x->device || !x->host)
    return err_set(e, ERR_MEMORY, "the system refused %zu bytes of device memory and %zu of host memory", o->slab.device, o->slab.host);
  guard_paint(x->device, o->slab.device);
  for (int w = 0; w < EXEC_MAX_STEP; w++) open_step(x, a, w);
  open_groups(x, a, p->params);
  int n_send = 0, n_tag = 0;
  for (int w = 0; w < EXEC_MAX_STEP; w++)
    if (x->run[w].s && x->run[w].s->n_send > n_send) n_send = x->run[w].s->n_send;
  for (int w = 0; w < EXEC_MAX_STEP; w++)
    if (x->run[w].s && 2 * p->n_virtual * x->run[w].s->n_mb > n_tag) n_tag = 2 * p->n_virtual * x->run[w].s->n_mb;
  world_set_sends(o->world, a, n_send, n_tag);
  x->env = (StepEnv){.k = x->k, .kctx = {.threads = o->device->threads, .gemm = o->device->gemm}, .world = o->world};
  prepare_gemm(x);
  const Step *s = x->run[EXEC_TRAIN].s ? x->run[EXEC_TRAIN].s : x->run[EXEC_EVAL].s;
  for (int g = 0; g < N_PGROUP; g++)
    for (int k = 0; k < N_STATE; k++) memset(exec_state(x, g, k), 0, s->buf[s->state[g][k]].bytes);
  return true;
}

void exec_close(Exec *x) {
  if (!x) return;
  if (x->device) x->o.device->ops->release(x->o.device, SPACE_DEVICE, x->device, x->o.slab.device);
  if (x->host) x->o.device->ops->release(x->o.device, SPACE_HOST, x->host, x->o.slab.host);
}

/* ---- views ---------------------------------------------------------------------------------------------------------------------------------- */
static const Step *any_step(const Exec *x) { return x->run[EXEC_TRAIN].s ? x->run[EXEC_TRAIN].s : x->run[EXEC_EVAL].s; }
int32_t *exec_tokens(Exec *x, int which) { return exec_ptr(x, x->run[which].s, x->run[which].s->host_tokens); }
const DealMb *exec_geometry(const Exec *x, int which) { return x->run[which].mb; }
int32_t *exec_labels(Exec *x, int which) { return exec_ptr(x, x->run[which].s, x->run[which].s->host_labels); }
void *exec_state(Exec *x, ParamGroupId g, StateKind k) { return exec_ptr(x, any_step(x), any_step(x)->state[g][k]); }
void exec_set_replay(Exec *x, const uint16_t *const *layer) { x->env.replay = layer; }
void exec_set_observer(Exec *x, ExecObserver *observer, void *ctx) { x->observer = observer, x->observer_ctx = ctx; }
void exec_set_tap(Exec *x, ExecTap *tap, void *ctx) { x->tap = tap, x->tap_ctx = ctx; }
const int64_t *exec_rows(const Exec *x, int which) { return x->run[which].n_row; }
double exec_seconds(const Exec *x, OpKind k, Pass p) { return x->seconds[k][p]; }
double exec_ins_seconds(const Exec *x, InsKind k) { return x->ins_seconds[k]; }

void exec_owned(const Exec *x, ParamGroupId g, int64_t *lo, int64_t *hi) {
  *lo = x->bound[g][x->self[g]];
  *hi = x->bound[g][x->self[g] + 1];
}

const void *exec_view(Exec *x, ParamGroupId g, TensorView v, int64_t flat, int64_t n, void *scratch) {
  static const StateKind kind[] = {[TENSOR_WEIGHT] = STATE_WEIGHT,
                                   [TENSOR_GRAD] = STATE_ACCUM,
                                   [TENSOR_M] = STATE_M,
                                   [TENSOR_V] = STATE_V,
                                   [TENSOR_MASTER] = STATE_MASTER};
  const Step *s = any_step(x);
  if (v == TENSOR_MASTER && weight_type(&s->p->num, g) == s->p->num.real) v = TENSOR_WEIGHT;
  const char *base = exec_state(x, g, kind[v]);
  if (v == TENSOR_GRAD) {
    const char *acc = base + (size_t)(flat - (x->o.zero3 ? x->bound[g][x->self[g]] : 0)) * (s->p->num.exact ? sizeof(uint64_t) : x->real);
    x->k->grad_finish(&x->env.kctx, scratch, acc, s->p->num.exact, s->p->num.shift, (double)x->result.n_valid, n);
    return scratch;
  }
  bool share = v == TENSOR_WEIGHT ? x->o.zero3 && g != PGROUP_MIRROR : x->o.zero1;
  return base + (size_t)(flat - (share ? x->bound[g][x->self[g]] : 0)) * (v == TENSOR_WEIGHT ? exec_weight_size(x, g) : x->real);
}

size_t exec_touched(const Exec *x, Region r) {
  return r == REGION_HOST ? x->o.slab.host : guard_touched(x->device + x->o.slab.base[r], x->o.slab.bytes[r]);
}
