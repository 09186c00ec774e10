/* Instructions over parameters: sums, norm, update, and the step's statistics. Chunks of CHUNK elements pass through the workspace. */
#include <math.h>
#include <string.h>

#include "comm/reduce.h"
#include "exec/exec_state.h"

enum { CHUNK = 64 * NORM_BLOCK, REDUCE_STAGE = 4 << 20 };

static size_t n_blocks(const ParamSet *ps) {
  int64_t n = 0;
  for (int g = 0; g < N_PGROUP; g++) n += ps->n_flat[g] / NORM_BLOCK;
  return (size_t)n;
}

/* Workspace of NORM: a chunk of gradients, squares per block of all groups, the outer tree's leaves. UPDATE uses the chunk. */
size_t exec_optimizer_work(const ParamSet *ps, DType real) {
  return CHUNK * dtype_size(real) + (n_blocks(ps) + (size_t)ps->n_norm_leaf) * sizeof(double);
}
/* The same on every rank, since all members of a group walk the same chunks: from sizes of the whole model. */
size_t exec_reduce_work(const ParamSet *ps) {
  size_t least = 0, whole = 0;
  for (int i = 0; i < ps->n; i++) whole += (size_t)(ps->param[i].n_out * ps->param[i].n_in * ps->param[i].n_expert) * sizeof(uint64_t);
  for (int g = 0; g < N_PGROUP; g++) {
    int n = mesh_group_size(ps->mesh, pgroup_axes(g));
    if (n > 1 && reduce_stage_min(n) > least) least = reduce_stage_min(n);
  }
  if (ps->mesh->world == 1) return 0;
  size_t want = whole < REDUCE_STAGE ? whole : REDUCE_STAGE;
  return want > least ? want : least;
}

void ins_zero(Exec *x, StepRun *r, const Ins *i) {
  (void)i;
  const Step *s = r->s;
  for (int g = 0; g < N_PGROUP && s->train; g++)
    memset(exec_ptr(x, s, s->state[g][STATE_ACCUM]), 0, s->buf[s->state[g][STATE_ACCUM]].bytes);
  memset(exec_ptr(x, s, s->stat), 0, s->buf[s->stat].bytes);
}

void ins_count(Exec *x, StepRun *r, const Ins *i) {
  (void)i;
  const int32_t *label = exec_ptr(x, r->s, r->s->host_labels);
  int64_t n = r->input_first[r->s->n_mb];
  uint64_t count = 0;
  for (int64_t t = 0; t < n; t++) count += label[t] >= 0;
  comm_allreduce_u64(x->o.world, AXES_TOKENS, &count, 1);
  x->result.n_valid = (int64_t)count;
  x->env.n_valid = (double)count;
}

/* Every forward is done: all statistics but faults are final. */
void ins_batch_counts(Exec *x, StepRun *r, const Ins *i) {
  (void)i;
  uint64_t *stat = x->env.stat, fault = stat[STAT_FAULT];
  stat[STAT_FAULT] = 0;
  comm_allreduce_u64(x->o.world, AXES_WORLD, stat, r->s->p->n_stat);
  stat[STAT_FAULT] = fault;
}

void ins_stats(Exec *x, StepRun *r, const Ins *i) {
  (void)i;
  if (r->s->batch_aux)
    comm_allreduce_u64(x->o.world, AXES_WORLD, x->env.fault, 1);
  else
    comm_allreduce_u64(x->o.world, AXES_WORLD, x->env.stat, r->s->p->n_stat);
}

/* ---- parameters in shares (Rajbhandari et al. 2020, ZeRO-3) ------------------------------------------------------------------------------- */
/* The part of each member's share that lies in a parameter, from its first element: bound [n + 1]. */
static void param_bounds(const Exec *x, const Param *p, int64_t *bound) {
  int64_t size = p->expert_stride * p->n_expert_here;
  for (int k = 0; k <= x->n_bound[p->group]; k++) {
    int64_t at = x->bound[p->group][k] - p->flat;
    bound[k] = at < 0 ? 0 : at > size ? size : at;
  }
}
void ins_fetch(Exec *x, StepRun *r, const Ins *i) {
  const Param *p = &r->s->p->params->param[i->param];
  int g = p->group, self = x->self[g];
  int64_t bound[x->n_bound[g] + 1];
  param_bounds(x, p, bound);
  char *whole = exec_ptr(x, r->s, i->out[0]);
  const char *share = exec_ptr(x, r->s, r->s->state[g][STATE_WEIGHT]);
  size_t size = exec_weight_size(x, g);
  memcpy(whole + (size_t)bound[self] * size, share + (size_t)(p->flat + bound[self] - x->bound[g][self]) * size,
         (size_t)(bound[self + 1] - bound[self]) * size);
  comm_allgather(x->o.world, pgroup_axes(g), whole, bound, size);
}
void ins_clear(Exec *x, StepRun *r, const Ins *i) { memset(exec_ptr(x, r->s, i->out[0]), 0, r->s->buf[i->out[0]].bytes); }

void ins_reduce_param(Exec *x, StepRun *r, const Ins *i) {
  const Param *p = &r->s->p->params->param[i->param];
  int g = p->group, self = x->self[g];
  SumKind kind = r->s->p->num.exact ? SUM_U64 : x->real == sizeof(float) ? SUM_F32 : SUM_F64;
  int64_t bound[x->n_bound[g] + 1];
  param_bounds(x, p, bound);
  char *whole = exec_ptr(x, r->s, i->in[0]), *share = exec_ptr(x, r->s, r->s->state[g][STATE_ACCUM]);
  reduce_scatter(x->o.world, pgroup_axes(g), whole, kind, bound, exec_ptr(x, r->s, i->work),
                 i->work == NO_BUF ? 0 : r->s->buf[i->work].bytes);
  if (bound[self + 1] > bound[self])
    sum_into(kind, share + (size_t)(p->flat + bound[self] - x->bound[g][self]) * sum_size(kind),
             whole + (size_t)bound[self] * sum_size(kind), bound[self + 1] - bound[self]);
}

/* The copy is the whole flat array of its group; the owner's begins at the parameter. */
static int mirror_place(const ParamSet *ps, const Exec *x, const Step *s, StateKind k, size_t elem, char **data) {
  const Param *copy = &ps->param[ps->n - 1], *owner = &ps->param[copy->mirror_of];
  const Param *here = copy->elsewhere ? owner : copy;
  *data = (char *)exec_ptr(x, s, s->state[here->group][k]) + (size_t)here->flat * elem;
  return copy->elsewhere && owner->elsewhere ? -1 : 0;
}
void ins_mirror_grad(Exec *x, StepRun *r, const Ins *i) {
  const ParamSet *ps = r->s->p->params;
  SumKind kind = r->s->p->num.exact ? SUM_U64 : x->real == sizeof(float) ? SUM_F32 : SUM_F64;
  char *acc;
  if (mirror_place(ps, x, r->s, STATE_ACCUM, sum_size(kind), &acc) < 0) return;
  const Param *copy = &ps->param[ps->n - 1];
  reduce_pair(x->o.world, AXIS_BIT(AXIS_PP), ps->mesh->size[AXIS_PP] - 1, 0, acc, kind, copy->expert_stride, exec_ptr(x, r->s, i->work),
              r->s->buf[i->work].bytes);
}
void ins_mirror_weight(Exec *x, StepRun *r, const Ins *i) {
  (void)i;
  const ParamSet *ps = r->s->p->params;
  char *w;
  int last = ps->mesh->size[AXIS_PP] - 1, self = mesh_coord(ps->mesh, ps->rank, AXIS_PP);
  size_t size = exec_weight_size(x, PGROUP_MIRROR);
  if (mirror_place(ps, x, r->s, STATE_WEIGHT, size, &w) < 0) return;
  RowSeg up = {.peer = last, .n_row = ps->param[ps->n - 1].expert_stride}, down = {.peer = 0, .n_row = up.n_row};
  comm_exchange_rows(x->o.world, AXIS_BIT(AXIS_PP), w, &up, self == 0, w, &down, self == last, size);
}

void ins_reduce(Exec *x, StepRun *r, const Ins *i) {
  const Step *s = r->s;
  int g = i->group;
  SumKind kind = s->p->num.exact ? SUM_U64 : x->real == sizeof(float) ? SUM_F32 : SUM_F64;
  void *acc = exec_ptr(x, s, s->state[g][STATE_ACCUM]);
  reduce_scatter(x->o.world, pgroup_axes(g), acc, kind, x->bound[g], exec_ptr(x, s, i->work),
                 i->work == NO_BUF ? 0 : s->buf[i->work].bytes);
  if (!x->o.zero1) comm_allgather(x->o.world, pgroup_axes(g), acc, x->bound[g], sum_size(kind));
}

/* Walks the owned part of a group's segments in chunks. */
typedef void ChunkFn(Exec *x, const ParamSeg *seg, ParamGroupId g, int64_t flat, int64_t n, void *ctx);
static void each_chunk(Exec *x, const ParamSet *ps, ParamGroupId g, int64_t lo, int64_t hi, ChunkFn *fn, void *ctx) {
  for (int k = 0; k < ps->n_seg[g]; k++) {
    const ParamSeg *seg = &ps->seg[g][k];
    int64_t end = seg->flat + seg->n_row * seg->n_col, from = seg->flat > lo ? seg->flat : lo, to = end < hi ? end : hi;
    for (int64_t f = from; f < to; f += CHUNK) fn(x, seg, g, f, to - f < CHUNK ? to - f : CHUNK, ctx);
  }
}

typedef struct NormWork {
  void *grad;
  double *block[N_PGROUP], *leaf;
} NormWork;
static void norm_chunk(Exec *x, const ParamSeg *seg, ParamGroupId g, int64_t flat, int64_t n, void *ctx) {
  (void)seg;
  NormWork *w = ctx;
  const void *grad = exec_view(x, g, TENSOR_GRAD, flat, n, w->grad);
  x->k->norm_blocks(&x->env.kctx, w->block[g] + flat / NORM_BLOCK, grad, n);
}

/* Blocks are summed by their owner, gathered in the group, then segment by segment a tree; segments of other ranks arrive as bit patterns (one rank of each group
 * speaks, the others add zero), and a tree over all of them ends it: the same bits on every layout. */
void ins_norm(Exec *x, StepRun *r, const Ins *i) {
  const ParamSet *ps = r->s->p->params;
  char *work = exec_ptr(x, r->s, i->work);
  NormWork w = {.grad = work, .block = {(double *)(work + CHUNK * x->real)}};
  for (int g = 1; g < N_PGROUP; g++) w.block[g] = w.block[g - 1] + ps->n_flat[g - 1] / NORM_BLOCK;
  w.leaf = w.block[N_PGROUP - 1] + ps->n_flat[N_PGROUP - 1] / NORM_BLOCK;
  memset(w.block[0], 0, (n_blocks(ps) + (size_t)ps->n_norm_leaf) * sizeof(double));
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR) continue;
    int64_t bound[x->n_bound[g] + 1];
    for (int k = 0; k <= x->n_bound[g]; k++) bound[k] = x->bound[g][k] / NORM_BLOCK;
    each_chunk(x, ps, g, x->bound[g][x->self[g]], x->bound[g][x->self[g] + 1], norm_chunk, &w);
    comm_allgather(x->o.world, pgroup_axes(g), w.block[g], bound, sizeof(double));
    for (int k = 0; k < ps->n_seg[g] && x->self[g] == 0; k++) {
      const ParamSeg *seg = &ps->seg[g][k];
      w.leaf[x->norm_leaf[g][k]] = tree_sum(w.block[g] + seg->flat / NORM_BLOCK, (seg->n_row * seg->n_col + NORM_BLOCK - 1) / NORM_BLOCK);
    }
  }
  comm_allreduce_u64(x->o.world, AXES_WORLD, (uint64_t *)w.leaf, ps->n_norm_leaf);
  double norm = sqrt(tree_sum(w.leaf, ps->n_norm_leaf)), clip = x->update->clip_grad;
  x->result.grad_norm = norm;
  x->result.fault = *x->env.fault != 0 || !isfinite(norm);
  x->norm_clip = clip > 0 && clip / (norm + 1e-6) < 1 ? clip / (norm + 1e-6) : 1;
}

static void update_chunk(Exec *x, const ParamSeg *seg, ParamGroupId g, int64_t flat, int64_t n, void *ctx) {
  const UpdateArgs *u = x->update;
  const Param *p = &x->run[EXEC_TRAIN].s->p->params->param[seg->param];
  AdamArgs a = {.lr = u->lr,
                .beta1 = u->beta1,
                .beta2 = u->beta2,
                .eps = u->eps,
                .weight_decay = param_decays(p) ? u->weight_decay : 0,
                .correction1 = 1 - pow(u->beta1, (double)u->t),
                .correction2 = 1 - pow(u->beta2, (double)u->t),
                .clip = x->norm_clip};
  const void *grad = exec_view(x, g, TENSOR_GRAD, flat, n, ctx);
  void *state[N_TENSOR_VIEW];
  for (TensorView k = TENSOR_WEIGHT; k <= TENSOR_MASTER; k++)
    if (k != TENSOR_GRAD) state[k] = (void *)(uintptr_t)exec_view(x, g, k, flat, n, NULL);
  x->k->adamw(&x->env.kctx, state[TENSOR_MASTER], state[TENSOR_M], state[TENSOR_V], grad, n, &a);
  if (state[TENSOR_MASTER] != state[TENSOR_WEIGHT]) x->k->narrow(&x->env.kctx, state[TENSOR_WEIGHT], state[TENSOR_MASTER], n);
}

/* Nothing moves when a gradient is not finite, or when no label counts. */
static bool updates(const Exec *x) { return !x->result.fault && x->result.n_valid > 0; }

void ins_update(Exec *x, StepRun *r, const Ins *i) {
  if (!updates(x)) return;
  int64_t lo = 0, hi = r->s->p->params->n_flat[i->group];
  if (x->o.zero1) exec_owned(x, i->group, &lo, &hi);
  each_chunk(x, r->s->p->params, i->group, lo, hi, update_chunk, exec_ptr(x, r->s, i->work));
}

void ins_gather(Exec *x, StepRun *r, const Ins *i) {
  if (!updates(x) || !x->o.zero1) return;
  comm_allgather(x->o.world, pgroup_axes(i->group), exec_ptr(x, r->s, r->s->state[i->group][STATE_WEIGHT]), x->bound[i->group],
                 exec_weight_size(x, i->group));
}
