/* Routed rows without running: for forced routings the router's own formula (kernel.h, RouteArgs), else the bound. */
#include "config/config.h"
#include "plan/plan.h"

static int64_t rows_from_share(const Step *s, const Deal *d, DealShare share, int routing) {
  const Dims *x = &s->p->dims;
  int64_t n = 0, first = share.first * d->seq_length, tokens = share.n * d->seq_length;
  int last = x->first_expert + x->n_expert_here;
  if (routing == ROUTE_ALL_TO_ONE) {
    for (int j = 0; j < x->top_k; j++) n += j >= x->first_expert && j < last ? tokens : 0;
    return n;
  }
  for (int64_t t = 0; t < tokens; t++)
    for (int j = 0; j < x->top_k; j++) {
      int64_t e = ((first + t) * x->top_k + j) % x->n_expert;
      n += e >= x->first_expert && e < last;
    }
  return n;
}

void plan_rows(const Step *s, const Deal *d, int routing, int64_t *n_row) {
  const Program *p = s->p;
  if (!s->n_plan) return;   /* no experts */
  Group ep = mesh_group(p->mesh, p->arena, p->rank, AXIS_BIT(AXIS_EP));
  for (int mb = 0; mb < s->n_mb; mb++) {
    int64_t n = 0;
    for (int k = 0; k < ep.n; k++)
      if (routing == ROUTE_BALANCED || routing == ROUTE_ALL_TO_ONE) n += rows_from_share(s, d, deal_share(d, mesh_coord(p->mesh, ep.rank[k], AXIS_DP), mb), routing);
    for (int k = 0; k < s->n_plan; k++) n_row[mb * s->n_plan + k] = routing == ROUTE_BALANCED || routing == ROUTE_ALL_TO_ONE ? n : p->dims.n_row_expert;
  }
}
