#include "program/params.h"

#include "base/err.h"

void params_open(ParamSet *ps, Arena *a, const Mesh *m, int rank) {
  *ps = (ParamSet){.arena = a, .mesh = m, .rank = rank, .param = ARENA_NEW(a, Param, PARAM_MAX)};
}

int params_add(ParamSet *ps, Param spec) {
  CHECK(ps->n < PARAM_MAX, "more than %d parameters", PARAM_MAX);
  if (spec.group != PGROUP_EXPERT) spec.n_expert = spec.n_expert_here = 1, spec.first_expert = 0;
  if (spec.elsewhere) spec.n_expert_here = 0;
  bool mirror = spec.group == PGROUP_MIRROR;
  spec.tensor = mirror ? ps->param[spec.mirror_of].tensor : ps->n_tensor;
  ps->n_tensor += mirror ? 0 : spec.n_expert;
  ps->n_norm_leaf += mirror ? 0 : spec.n_expert * spec.cut.n;
  ps->param[ps->n] = spec;
  return ps->n++;
}

static int64_t pad_block(int64_t n) { return (n + NORM_BLOCK - 1) / NORM_BLOCK * NORM_BLOCK; }

static void lay_out(ParamSet *ps, Param *p) {
  p->offset = ARENA_NEW(ps->arena, int64_t, p->cut.count);
  int64_t n_fixed = p->cut_dim == CUT_OUT ? p->n_in : p->n_out, size = 0;
  for (int j = 0; j < p->cut.count; j++) {
    p->offset[j] = size;
    size += pad_block(n_fixed * shard_width(&p->cut, p->cut.first + j));
  }
  p->flat = ps->n_flat[p->group];
  p->expert_stride = size;
  ps->n_flat[p->group] += size * p->n_expert_here;
}

static ParamSeg segment(const Param *p, int param, int expert, int j) {
  int shard = p->cut.first + j;
  int64_t lo = shard_begin(&p->cut, shard), n = shard_width(&p->cut, shard);
  ParamSeg s = {.param = param, .tensor = p->tensor + p->first_expert + expert, .shard = shard, .n_row = p->n_out, .n_col = p->n_in};
  s.flat = p->flat + expert * p->expert_stride + p->offset[j];
  if (p->cut_dim == CUT_OUT)
    s.row = lo, s.n_row = n;
  else
    s.col = lo, s.n_col = n;
  return s;
}

void params_finish(ParamSet *ps) {
  int n_seg[N_PGROUP] = {0};
  for (int i = 0; i < ps->n; i++) {
    lay_out(ps, &ps->param[i]);
    n_seg[ps->param[i].group] += ps->param[i].n_expert_here * ps->param[i].cut.count;
  }
  for (int g = 0; g < N_PGROUP; g++) ps->seg[g] = ARENA_NEW(ps->arena, ParamSeg, n_seg[g]);
  for (int i = 0; i < ps->n; i++) {
    const Param *p = &ps->param[i];
    for (int x = 0; x < p->n_expert_here; x++)
      for (int j = 0; j < p->cut.count; j++) ps->seg[p->group][ps->n_seg[p->group]++] = segment(p, i, x, j);
  }
}

const Param *params_of_tensor(const ParamSet *ps, int tensor) {
  int lo = 0, hi = ps->n - 1;
  while (ps->param[hi].group == PGROUP_MIRROR) hi--; /* mirrors are declared last */
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (ps->param[mid].tensor <= tensor)
      lo = mid;
    else
      hi = mid - 1;
  }
  return &ps->param[lo];
}

const char *params_tensor_name(const ParamSet *ps, Arena *a, int tensor) {
  const Param *p = params_of_tensor(ps, tensor);
  if (p->group != PGROUP_EXPERT) return p->hf_name;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  return arena_printf(a, p->hf_name, tensor - p->tensor);
#pragma GCC diagnostic pop
}

int params_norm_leaf(const ParamSet *ps, int tensor, int shard) {
  int leaf = 0;
  for (int i = 0; i < ps->n && ps->param[i].tensor + ps->param[i].n_expert <= tensor && ps->param[i].group != PGROUP_MIRROR; i++)
    leaf += ps->param[i].n_expert * ps->param[i].cut.n;
  const Param *p = params_of_tensor(ps, tensor);
  return leaf + (tensor - p->tensor) * p->cut.n + shard;
}

bool param_decays(const Param *p) {
  static const bool decays[N_PARAM_KIND] = {[PARAM_MATRIX] = true, [PARAM_EMBEDDING] = true, [PARAM_ROUTER] = true};
  return decays[p->kind];
}

AxisSet pgroup_axes(ParamGroupId g) {
  static const AxisSet axes[N_PGROUP] = {
      [PGROUP_SHARD] = AXES_TOKENS, [PGROUP_TOKEN] = AXES_TOKENS | AXIS_BIT(AXIS_TP), [PGROUP_EXPERT] = AXIS_BIT(AXIS_EDP)};
  return axes[g];
}

const char *pgroup_name(ParamGroupId g) {
  static const char *const name[N_PGROUP] = {"shard", "token", "expert", "mirror"};
  return name[g];
}

void params_bounds(const ParamSet *ps, ParamGroupId g, int n, int64_t *bound) {
  for (int i = 0; i <= n; i++) bound[i] = g == PGROUP_MIRROR ? 0 : share_begin(ps->n_flat[g] / NORM_BLOCK, n, i) * NORM_BLOCK;
}
