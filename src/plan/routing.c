/* Routed rows without running: for forced routings the router's own formula (kernel.h, RouteArgs), else bounds. */
#include "config/config.h"
#include "plan/plan.h"
#include "program/op_passes.h"

bool plan_routing_known(int routing) { return routing == ROUTE_BALANCED || routing == ROUTE_ALL_TO_ONE; }

/* Multiples of n among the integers below x, shifted by e: how many y in [0, x) have y mod n == e. */
static int64_t below(int64_t x, int64_t n, int64_t e) { return x / n + (x % n > e); }

int64_t plan_window_rows(int routing, int n_expert, int top_k, int64_t first, int64_t n, int e) {
  if (routing == ROUTE_ALL_TO_ONE) return e < top_k ? n : 0;
  return below((first + n) * top_k, n_expert, e) - below(first * top_k, n_expert, e);
}

/* received [most windows of a member][most experts + 1] */
static void count_source(const Dims *d, const TokenView *t, int routing, int32_t *received) {
  int most = counts_experts(d);
  for (int w = 0; w < t->n_window; w++) {
    int64_t n = t->window_start[w + 1] - t->window_start[w];
    int32_t *row = received + w * (most + 1);
    for (int e = 0; e < d->n_expert_here; e++)
      row[e] = (int32_t)plan_window_rows(routing, d->n_expert, d->top_k, t->window_number[w], n, d->first_expert + e);
    row[most] = (int32_t)n;
  }
}
static void count_sent(const Dims *d, const TokenView *t, int routing, int32_t *sent) {
  for (int w = 0; w < t->n_window; w++)
    for (int e = 0; e < d->n_expert; e++)
      sent[e] +=
          (int32_t)plan_window_rows(routing, d->n_expert, d->top_k, t->window_number[w], t->window_start[w + 1] - t->window_start[w], e);
}

static void count_forced(const Program *p, const Deal *deal, int routing, int mb, int32_t *plan) {
  const Dims *d = &p->dims;
  AxisSet experts = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP);
  int n = mesh_group_size(p->mesh, experts), self = mesh_group_self(p->mesh, p->rank, experts);
  for (int k = 0; k < n; k++) {
    ArenaMark mark = arena_mark(p->arena);
    TokenView own = deal_view(deal, p->arena, deal_place(p->mesh, mesh_group_rank(p->mesh, p->rank, experts, k)), mb, VIEW_OWN);
    count_source(d, &own, routing, plan + (counts_received(d, plan, k, 0) - plan));
    if (k == self) count_sent(d, &own, routing, plan + (counts_sent(d, plan) - plan));
    arena_release(p->arena, mark);
  }
}

static int smaller(int a, int b) { return a < b ? a : b; }
/* No routing sends more than this: every own row to others as far as there are others, and others' rows to as many experts here as a token can meet. */
static void count_bound(const Program *p, const Deal *deal, int mb, int32_t *plan) {
  const Dims *d = &p->dims;
  AxisSet experts = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP);
  int n = mesh_group_size(p->mesh, experts), self = mesh_group_self(p->mesh, p->rank, experts);
  int away = smaller(d->top_k, d->n_expert - d->n_expert_here), home = d->top_k - away;
  int32_t *sent = plan + (counts_sent(d, plan) - plan);
  for (int k = 0; k < n; k++) {
    int32_t *row = plan + (counts_received(d, plan, k, 0) - plan);
    int32_t tokens = (int32_t)deal_count(deal, deal_place(p->mesh, mesh_group_rank(p->mesh, p->rank, experts, k)), mb, VIEW_OWN).n_token;
    for (int e = 0; e < smaller(k == self ? home : d->top_k, d->n_expert_here); e++) row[e] = tokens;
    for (int e = 0; e < d->n_expert && k == self; e++) {
      bool here = e >= d->first_expert && e < d->first_expert + d->n_expert_here;
      int *left = here ? &home : &away;
      sent[e] = *left > 0 ? tokens : 0;
      *left -= *left > 0;
    }
  }
}
/* A row for everybody: as many messages as any routing makes. */
static void count_ones(const Program *p, int32_t *plan) {
  const Dims *d = &p->dims;
  for (int k = 0; k < d->n_ep * d->n_etp; k++)
    for (int e = 0; e < d->n_expert_here; e++) plan[counts_received(d, plan, k, 0) - plan + e] = 1;
  for (int e = 0; e < d->n_expert; e++) plan[counts_sent(d, plan) - plan + e] = 1;
}

Routed plan_routed(const Step *s, Arena *a, const Deal *deal, int routing) {
  const Program *p = s->p;
  Routed r = {.n_row = ARENA_NEW(a, int64_t, s->n_guard + 1), .plan = ARENA_NEW(a, const int32_t *, s->n_guard + 1)};
  for (int mb = 0; mb < s->n_mb && s->n_plan; mb++) {
    int32_t *plan = ARENA_NEW(a, int32_t, counts_width(&p->dims));
    bool known = plan_routing_known(routing);
    if (known)
      count_forced(p, deal, routing, mb, plan);
    else if (routing == PLAN_ONE_ROW)
      count_ones(p, plan);
    else
      count_bound(p, deal, mb, plan);
    int64_t n = known ? op_desc[OP_EXCHANGE_COUNTS].plan_rows(&(OpCall){.p = p, .out = {plan}}) : p->dims.n_row_expert;
    for (int k = 0; k < s->n_plan; k++) r.n_row[mb * s->n_plan + k] = n, r.plan[mb * s->n_plan + k] = plan;
  }
  return r;
}

void plan_rows(const Step *s, const Deal *deal, int routing, int64_t *n_row) {
  ArenaMark mark = arena_mark(s->p->arena);
  Routed r = plan_routed(s, s->p->arena, deal, routing);
  for (int i = 0; i < s->n_guard; i++) n_row[i] = r.n_row[i];
  arena_release(s->p->arena, mark);
}
