/* Lowering: program x schedule x policy -> one list. Forward and backward of a micro-batch are emitted op by op; buffers live from the first to the last
 * instruction that names them, so nothing is freed by hand. */
#include "program/lower.h"

#include "base/err.h"

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
    l->s->host_doc[k] = l->o->n_document && label[k] ? lower_buf(l->s, host) : NO_BUF;
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
      s->state[g][k] = lower_buf(s, (Buf){.label = arena_printf(ps->arena, "%s.%s", state[k], pgroup_name(g)),
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
  s->stat = lower_buf(s, stat), s->host_tokens = lower_buf(s, tokens), s->host_labels = lower_buf(s, labels),
  s->host_stat = lower_buf(s, out);
  lower_documents(l, host);
}

static void lower_optimizer(Lower *l) {
  Step *s = l->s;
  if (l->o->tied_stages) lower_emit(s, INS_MIRROR_GRAD)->work = lower_work_buf(s, l->o->reduce_work);
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR || l->o->zero3) continue;
    Ins *i = lower_emit(s, INS_REDUCE);
    i->group = g, i->work = lower_work_buf(s, l->o->reduce_work);
  }
  lower_emit(s, INS_NORM)->work = lower_work_buf(s, l->o->optimizer_work);
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR) continue;
    Ins *i = lower_emit(s, INS_UPDATE);
    i->group = g, i->work = lower_work_buf(s, l->o->optimizer_work);
  }
  for (int g = 0; g < N_PGROUP; g++)
    if (g != PGROUP_MIRROR && !l->o->zero3) lower_emit(s, INS_GATHER)->group = g;
  if (l->o->tied_stages) lower_emit(s, INS_MIRROR_WEIGHT);
}

static void lower_statistics_out(Step *s) {
  Ins *c = lower_emit(s, INS_COPY);
  c->stream = STREAM_OUT, c->event = LOWER_EVENT_STAT, c->in[0] = s->stat, c->out[0] = s->host_stat;
  Ins *w = lower_emit(s, INS_WAIT);
  w->event = LOWER_EVENT_STAT, w->in[0] = s->stat, w->in[1] = s->host_stat;
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
    if (x->kind != ACT_FWD && !counted) lower_emit(l->s, INS_BATCH_COUNTS), counted = true;
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
  int most_open = n_chunk == 1 ? SCHEDULE_GRAD_SENDS : 2 * s->p->n_virtual / n_chunk;
  Lower l = {
      .s = s, .o = o, .most_open = most_open, .open_event = ARENA_NEW(a, int, most_open), .open_buf = ARENA_NEW(a, BufId, most_open)};
  for (int i = 0; i < n_chunk; i++) s->chunk[i] = chunk[i];
  for (int i = 0; i < n_chunk; i++) open_chunk(&l, a, i);
  s->n_guard = s->n_plan * s->n_mb;
  lower_states(&l);
  lower_emit(s, INS_ZERO);
  lower_emit(s, INS_COUNT);
  s->pass_begin = s->n_ins;
  lower_actions(&l);
  s->pass_end = s->n_ins;
  lower_emit(s, INS_STATS);
  if (o->train) lower_optimizer(&l);
  lower_statistics_out(s);
  find_lifetimes(s);
}
