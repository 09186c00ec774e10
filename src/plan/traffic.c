/* Messages before they are sent: the second reading of the list for its calls of comm. */
#include <string.h>

#include "plan/plan.h"

typedef struct Walk {
  const TrafficArgs *t;
  Sketch sketch;
  StepEnv env;
  TrafficFn *tell;
  void *ctx;
  int ins;
  int64_t *bound[N_PGROUP];
  int n[N_PGROUP];
  void *scratch;
} Walk;

static void told(void *ctx, const CommCall *call) {
  Walk *w = ctx;
  w->tell(w->ctx, w->ins, call);
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------------------------- */
static void walk_kernel(Walk *w, const Ins *i) {
  const Step *s = w->t->s;
  const Program *p = s->chunk[i->chunk];
  const Op *op = &p->op[i->op];
  if (!op_desc[op->kind].traffic) return;
  OpCall c = {.p = p, .op = op, .env = &w->env, .mb = &w->t->mb[i->mb], .work = w->scratch};
  if (i->guard >= 0) c.n_row = w->t->routed.n_row[i->guard];
  for (int k = 0; k < op->n_in; k++) {
    int number = op->in[k] == NO_VAL ? -1 : s->plan_number[i->chunk][op->in[k]];
    if (number >= 0) c.in[k] = (void *)(uintptr_t)w->t->routed.plan[i->mb * s->n_plan + number];
  }
  op_desc[op->kind].traffic(&c, i->pass, &w->sketch);
}

static size_t message_bytes(const Walk *w, BufId b) { return buf_bytes(w->t->s, &w->t->s->buf[b], w->t->mb, w->t->routed.n_row); }
static void walk_recv(Walk *w, const Ins *i) { sketch_recv(&w->sketch, AXIS_BIT(AXIS_PP), i->peer, message_bytes(w, i->out[0])); }
static void walk_send(Walk *w, const Ins *i) { sketch_send(&w->sketch, AXIS_BIT(AXIS_PP), i->peer, message_bytes(w, i->in[0])); }

/* ---- once per step ------------------------------------------------------------------------------------------------------------------------------------ */
static size_t work_bytes(const Walk *w, const Ins *i) { return i->work == NO_BUF ? 0 : w->t->s->buf[i->work].bytes; }
static size_t acc_size(const Walk *w) { return w->t->s->p->num.exact ? sizeof(uint64_t) : w->t->k->real_size; }

static size_t weight_size(const Walk *w, ParamGroupId g) { return dtype_size(weight_type(&w->t->s->p->num, g)); }

static void walk_count(Walk *w, const Ins *i) {
  (void)i;
  sketch_allreduce_u64(&w->sketch, AXES_TOKENS, 1);
}
static void walk_batch_counts(Walk *w, const Ins *i) {
  (void)i;
  sketch_allreduce_u64(&w->sketch, AXES_WORLD, w->t->s->p->n_stat);
}
static void walk_stats(Walk *w, const Ins *i) {
  (void)i;
  sketch_allreduce_u64(&w->sketch, AXES_WORLD, w->t->s->batch_aux ? 1 : w->t->s->p->n_stat);
}
/* The copy of a tied embedding, on this rank or owned by it; NULL: neither. */
static const Param *mirror(const Walk *w) {
  const ParamSet *ps = w->t->s->p->params;
  const Param *copy = &ps->param[ps->n - 1];
  return copy->elsewhere && ps->param[copy->mirror_of].elsewhere ? NULL : copy;
}
static int last_stage(const Walk *w) { return w->sketch.mesh->size[AXIS_PP] - 1; }
static void walk_mirror_grad(Walk *w, const Ins *i) {
  const Param *copy = mirror(w);
  if (copy) sketch_reduce_pair(&w->sketch, AXIS_BIT(AXIS_PP), last_stage(w), 0, acc_size(w), copy->expert_stride, work_bytes(w, i));
}
static void walk_mirror_weight(Walk *w, const Ins *i) {
  (void)i;
  const Param *copy = mirror(w);
  if (!copy) return;
  int self = mesh_coord(w->sketch.mesh, w->sketch.rank, AXIS_PP);
  RowSeg up = {.peer = last_stage(w), .n_row = copy->expert_stride}, down = {.peer = 0, .n_row = copy->expert_stride};
  sketch_exchange_rows(&w->sketch, AXIS_BIT(AXIS_PP), &up, self == 0, &down, self == last_stage(w), weight_size(w, PGROUP_MIRROR));
}
/* The shares' parts of one parameter (exec/optimizer.c, param_bounds). */
static void walk_param(Walk *w, const Ins *i, bool sum) {
  const Param *p = &w->t->s->p->params->param[i->param];
  int64_t bound[w->n[p->group] + 1], size = p->expert_stride * p->n_expert_here;
  for (int k = 0; k <= w->n[p->group]; k++) {
    int64_t at = w->bound[p->group][k] - p->flat;
    bound[k] = at < 0 ? 0 : at > size ? size : at;
  }
  if (sum)
    sketch_reduce_scatter(&w->sketch, pgroup_axes(p->group), acc_size(w), bound, work_bytes(w, i));
  else
    sketch_allgather(&w->sketch, pgroup_axes(p->group), bound, weight_size(w, p->group));
}
static void walk_fetch(Walk *w, const Ins *i) { walk_param(w, i, false); }
static void walk_reduce_param(Walk *w, const Ins *i) { walk_param(w, i, true); }
static void walk_reduce(Walk *w, const Ins *i) {
  AxisSet axes = pgroup_axes(i->group);
  sketch_reduce_scatter(&w->sketch, axes, acc_size(w), w->bound[i->group], work_bytes(w, i));
  if (!w->t->zero1) sketch_allgather(&w->sketch, axes, w->bound[i->group], acc_size(w));
}
static void walk_norm(Walk *w, const Ins *i) {
  (void)i;
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR) continue;
    int64_t bound[w->n[g] + 1];
    for (int k = 0; k <= w->n[g]; k++) bound[k] = w->bound[g][k] / NORM_BLOCK;
    sketch_allgather(&w->sketch, pgroup_axes(g), bound, sizeof(double));
  }
  sketch_allreduce_u64(&w->sketch, AXES_WORLD, w->t->s->p->params->n_norm_leaf);
}
static void walk_gather(Walk *w, const Ins *i) {
  if (w->t->zero1) sketch_allgather(&w->sketch, pgroup_axes(i->group), w->bound[i->group], weight_size(w, i->group));
}

static void (*const walk_ins[N_INS])(Walk *, const Ins *) = {[INS_KERNEL] = walk_kernel,
                                                             [INS_RECV] = walk_recv,
                                                             [INS_SEND] = walk_send,
                                                             [INS_COUNT] = walk_count,
                                                             [INS_BATCH_COUNTS] = walk_batch_counts,
                                                             [INS_STATS] = walk_stats,
                                                             [INS_MIRROR_GRAD] = walk_mirror_grad,
                                                             [INS_MIRROR_WEIGHT] = walk_mirror_weight,
                                                             [INS_FETCH] = walk_fetch,
                                                             [INS_REDUCE_PARAM] = walk_reduce_param,
                                                             [INS_REDUCE] = walk_reduce,
                                                             [INS_NORM] = walk_norm,
                                                             [INS_GATHER] = walk_gather};

void traffic_walk(Arena *a, const TrafficArgs *t, TrafficFn *tell, void *ctx) {
  const ParamSet *ps = t->s->p->params;
  ArenaMark mark = arena_mark(a);
  Walk w = {.t = t, .env = {.k = t->k}, .tell = tell, .ctx = ctx};
  w.sketch = sketch_open(a, ps->mesh, ps->rank, told, &w);
  for (int g = 0; g < N_PGROUP; g++) {
    w.n[g] = mesh_group_size(ps->mesh, pgroup_axes(g));
    w.bound[g] = ARENA_NEW(a, int64_t, w.n[g] + 1);
    params_bounds(ps, g, w.n[g], w.bound[g]);
  }
  size_t most = 1;
  for (int b = 0; b < t->s->n_buf; b++)
    if (t->s->buf[b].kind == BUF_WORK && t->s->buf[b].bytes > most) most = t->s->buf[b].bytes;
  w.scratch = arena_alloc(a, most, 1);
  for (w.ins = 0; w.ins < t->s->n_ins; w.ins++) {
    const Ins *i = &t->s->ins[w.ins];
    if (walk_ins[i->kind]) walk_ins[i->kind](&w, i);
  }
  arena_release(a, mark);
}

static void add_call(void *ctx, int ins, const CommCall *call) {
  (void)ins;
  Traffic *t = ctx;
  int k = 0;
  while (k < t->n && t->of[k].axes != call->axes) k++;
  CHECK(k < TRAFFIC_MAX, "messages over more than %d axis sets", TRAFFIC_MAX);
  if (k == t->n) t->of[t->n++] = (CommTraffic){.axes = call->axes};
  t->of[k].bytes += call->bytes;
  t->of[k].messages += call->messages;
}

Traffic plan_traffic(Arena *a, const TrafficArgs *t) {
  Traffic sum = {0};
  traffic_walk(a, t, add_call, &sum);
  return sum;
}
