/* Routed rows without running: for forced routings the router's own formula (kernel.h, RouteArgs), else the bound. */
#include "config/config.h"
#include "plan/plan.h"

static int64_t rows_from_view(const Dims *x, const TokenView *t, int routing) {
  int last = x->first_expert + x->n_expert_here;
  int64_t n = 0;
  for (int w = 0; w < t->n_window; w++)
    for (int64_t i = 0; i < t->window_start[w + 1] - t->window_start[w]; i++)
      for (int j = 0; j < x->top_k; j++) {
        int64_t e = routing == ROUTE_ALL_TO_ONE ? j : ((t->window_number[w] + i) * x->top_k + j) % x->n_expert;
        n += e >= x->first_expert && e < last;
      }
  return n;
}

void plan_rows(const Step *s, const Deal *d, int routing, int64_t *n_row) {
  const Program *p = s->p;
  bool known = routing == ROUTE_BALANCED || routing == ROUTE_ALL_TO_ONE;
  Group g = mesh_group(p->mesh, p->arena, p->rank, AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP));
  for (int mb = 0; mb < s->n_mb; mb++) {
    ArenaMark mark = arena_mark(p->arena);
    int64_t n = 0;
    for (int k = 0; k < g.n && known && s->n_plan; k++) {
      TokenView own = deal_view(d, p->arena, deal_place(p->mesh, g.rank[k]), mb, VIEW_OWN);
      n += rows_from_view(&p->dims, &own, routing);
    }
    for (int k = 0; k < s->n_plan; k++) n_row[mb * s->n_plan + k] = known ? n : p->dims.n_row_expert;
    arena_release(p->arena, mark);
  }
}
