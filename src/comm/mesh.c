#include "comm/mesh.h"

enum { N_VIEW = 4 };
/* Outermost first. */
static const Axis dense_view[N_VIEW] = {AXIS_PP, AXIS_DP, AXIS_CP, AXIS_TP};
static const Axis expert_view[N_VIEW] = {AXIS_PP, AXIS_EDP, AXIS_EP, AXIS_ETP};
static const char *const axis_names[N_AXIS] = {"pp", "dp", "cp", "tp", "edp", "ep", "etp"};

const char *axis_name(Axis a) { return axis_names[a]; }

bool axes_legal(AxisSet axes) { return !(axes & ~(AxisSet)AXES_WORLD) || !(axes & ~(AxisSet)AXES_EXPERT_WORLD); }

static const Axis *view_of(AxisSet axes) {
  CHECK(axes_legal(axes), "axis set 0x%x mixes axes of the dense and the expert view", axes);
  return axes & ~(AxisSet)AXES_WORLD ? expert_view : dense_view;
}

bool mesh_init(Mesh *m, int world, int pp, int dp, int cp, int tp, int ep, int etp, Err *e) {
  *m = (Mesh){.size = {pp, dp, cp, tp, 0, ep, etp}, .world = world};
  for (int a = 0; a < N_AXIS; a++)
    if (a != AXIS_EDP && m->size[a] < 1) return err_set(e, ERR_CONFIG, "layout.%s is %d; it must be at least 1", axis_names[a], m->size[a]);
  int64_t dense = (int64_t)pp * dp, stage = (int64_t)dp * cp;
  bool fits = dense <= world && (dense *= cp) <= world && (dense *= tp) == world;
  if (!fits)
    return err_set(
        e, ERR_CONFIG,
        "layout: pp %d x dp %d x cp %d x tp %d = %.0f ranks, but the world has %d; start that many ranks or change one of the four", pp, dp,
        cp, tp, (double)pp * dp * cp * tp, world);
  stage *= tp;
  int64_t experts = (int64_t)ep * etp;
  if (experts > stage || stage % experts)
    return err_set(
        e, ERR_CONFIG,
        "layout: ep %d x etp %d = %lld must divide the ranks of one pipeline stage, dp %d x cp %d x tp %d = %lld (world %d / pp %d)", ep,
        etp, (long long)experts, dp, cp, tp, (long long)stage, world, pp);
  m->size[AXIS_EDP] = (int)(stage / experts);
  return true;
}

/* Distance in world ranks between neighbours along view[i]. */
static int view_stride(const Mesh *m, const Axis *view, int i) {
  int stride = 1;
  for (int j = N_VIEW - 1; j > i; j--) stride *= m->size[view[j]];
  return stride;
}

int mesh_coord(const Mesh *m, int rank, Axis a) {
  CHECK(rank >= 0 && rank < m->world, "rank %d is not in a world of %d", rank, m->world);
  const Axis *view = view_of(AXIS_BIT(a));
  int i = 0;
  while (view[i] != a) i++;
  return rank / view_stride(m, view, i) % m->size[a];
}

int mesh_group_size(const Mesh *m, AxisSet axes) {
  const Axis *view = view_of(axes);
  int n = 1;
  for (int i = 0; i < N_VIEW; i++)
    if (axes & AXIS_BIT(view[i])) n *= m->size[view[i]];
  return n;
}

int mesh_group_self(const Mesh *m, int rank, AxisSet axes) {
  const Axis *view = view_of(axes);
  int self = 0;
  for (int i = 0; i < N_VIEW; i++)
    if (axes & AXIS_BIT(view[i])) self = self * m->size[view[i]] + mesh_coord(m, rank, view[i]);
  return self;
}

int mesh_group_rank(const Mesh *m, int rank, AxisSet axes, int place) {
  const Axis *view = view_of(axes);
  for (int i = N_VIEW - 1; i >= 0; i--) {
    if (!(axes & AXIS_BIT(view[i]))) continue;
    int size = m->size[view[i]];
    rank += (place % size - mesh_coord(m, rank, view[i])) * view_stride(m, view, i);
    place /= size;
  }
  return rank;
}

Group mesh_group(const Mesh *m, Arena *a, int rank, AxisSet axes) {
  CHECK(rank >= 0 && rank < m->world, "rank %d is not in a world of %d", rank, m->world);
  int n = mesh_group_size(m, axes);
  int *list = ARENA_NEW(a, int, n);
  for (int i = 0; i < n; i++) list[i] = mesh_group_rank(m, rank, axes, i);
  return (Group){.n = n, .self = mesh_group_self(m, rank, axes), .rank = list, .axes = axes};
}

int share_owner(int64_t n, int p, int64_t item) {
  CHECK(item >= 0 && item < n, "item %lld is not one of %lld", (long long)item, (long long)n);
  return (int)((((__int128)item + 1) * p - 1) / n);
}
