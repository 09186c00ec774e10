/* The simulation: times by hand; worlds of every kind run to their end; what is planted in their lists is found and named. */
#include "config/config.h"
#include "parity/traffic_layouts.h"
#include "train/plan_sim.h"
#include "unit/draw_world.h"
#include "unit/train_rig.h"

static const SimCost cost = {
    .flops = 1e9, .memory = 1e10, .bandwidth = {1e8, 1e8, 1e8, 1e8, 1e8, 1e8, 1e8}, .latency = {1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5}};

/* ---- by hand ------------------------------------------------------------------------------------------------------------------------------ */
static void assert_time(const SimTime *t, double compute, double transfer, double calls, double stages, double end) {
  const double got[] = {t->compute, t->transfer, t->wait_calls, t->wait_stages, t->end}, want[] = {compute, transfer, calls, stages, end};
  for (int i = 0; i < 5; i++)
    if (got[i] < want[i] - 1e-12 || got[i] > want[i] + 1e-12) fail_msg("time %d: %.17g, not %.17g", i, got[i], want[i]);
}

/* Two stages of two ranks: stage 0 sends after 1 and 2 s, 0.5 s on the way; then each stage adds up over its pair; stage 1 answers. */
static void times_by_hand(void **state) {
  (void)state;
  Arena a;
  Mesh m;
  Err e = {0};
  arena_open(&a, "simulate", 1 << 22);
  assert_true(mesh_init(&m, 4, 2, 2, 1, 1, 1, 1, &e));
  const AxisSet pp = AXIS_BIT(AXIS_PP), dp = AXIS_BIT(AXIS_DP);
  SimEvent up[2] = {{.kind = SIM_SEND, .axes = pp, .name = "up", .before = 1, .seconds = 0.5, .peer = 1, .tag = 7, .sent = 80},
                    {.kind = SIM_RECV, .axes = pp, .name = "up", .peer = 0, .tag = 7, .received = 80}};
  SimEvent down[2] = {{.kind = SIM_SEND, .axes = pp, .name = "down", .before = 3, .seconds = 0.25, .peer = 0, .tag = 8, .sent = 8},
                      {.kind = SIM_RECV, .axes = pp, .name = "down", .peer = 1, .tag = 8, .received = 8}};
  SimEvent sum = {
      .kind = SIM_CALL, .axes = dp, .name = "sum", .call = CALL_ALLREDUCE, .before = 0.5, .seconds = 0.125, .sent = 8, .received = 8};
  SimEvent first[3] = {up[0], sum, down[1]}, late[3] = {up[0], sum, down[1]}, second[3] = {up[1], sum, down[0]};
  late[0].before = 2;
  SimList list[3] = {{.n = 3, .event = first, .after = 1}, {.n = 3, .event = late}, {.n = 3, .event = second}};
  SimWorld w = {.mesh = &m, .list = list, .list_of = (const int[]){0, 1, 2, 2}};
  SimReport r;
  assert_true(simulate(&r, &a, &w, &e));
  /* stage 0 meets at 2.5, is done at 2.625; stage 1 receives at 1.5 and 2.5, meets at 3, is done at 3.125, its answer arrives at 6.375 */
  assert_time(&r.rank[0], 2.5, 0.125, 1, 3.75, 7.375);
  assert_time(&r.rank[1], 2.5, 0.125, 0, 3.75, 6.375);
  assert_time(&r.rank[2], 3.5, 0.125, 1, 1.5, 6.125);
  assert_time(&r.rank[3], 3.5, 0.125, 0, 2.5, 6.125);
  assert_true(r.seconds == r.rank[0].end);
  assert_int_equal(r.n_call, 2);
  assert_int_equal(r.n_message, 4);
  assert_false(r.pairs);
  arena_close(&a);
}

/* ---- worlds ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct Lists {
  Rig r;
  Arena scratch;
  WorldPlanArgs args;
  WorldPlan plan;
  SimWorld w;
} Lists;
static void lists_open_at(Lists *l, int world, int routing, bool exact, const SimCost *c, const char *const *sets) {
  *l = (Lists){0};
  arena_open(&l->r.a, "lists", (size_t)1 << 34);
  arena_open(&l->scratch, "scratch", (size_t)1 << 34);
  RIG_MUST(&l->r, rig_read(&l->r, RIG_ODD, world, sets));
  RIG_MUST(&l->r, device_open(&l->r.device, "cpu", "plain", 1, 7, &l->r.e));
  l->args = (WorldPlanArgs){&l->r.doc.c, world, &l->r.device, 0};
  RIG_MUST(&l->r, world_plan(&l->plan, &l->r.a, &l->scratch, &l->args, &l->r.e));
  RIG_MUST(&l->r, sim_world(&l->w, &l->plan, &l->r.a, &l->scratch, &l->args, routing, c, exact, &l->r.e));
}
static void lists_open(Lists *l, int world, int routing, bool exact, const char *const *sets) {
  lists_open_at(l, world, routing, exact, &cost, sets);
}
static void lists_close(Lists *l) {
  arena_close(&l->scratch);
  rig_close(&l->r);
}

static void every_layout_runs_to_its_end(void **state) {
  (void)state;
  for (int i = 0; i < N_LAYOUT; i++) {
    const char *sets[LAYOUT_SETS + 1];
    Lists l;
    SimReport r;
    layout_sets(i, sets, (const char *[]){NULL});
    lists_open(&l, layout[i].ranks, i % 2 ? ROUTE_ALL_TO_ONE : ROUTE_BALANCED, true, sets);
    if (!simulate(&r, &l.r.a, &l.w, &l.r.e)) fail_msg("layout %d: %s", i, l.r.e.text);
    assert_true(r.pairs);
    for (int rank = 0; rank < layout[i].ranks; rank++) {
      const SimTime *t = &r.rank[rank];
      double sum = t->compute + t->transfer + t->wait_calls + t->wait_stages;
      assert_true(sum > t->end * (1 - 1e-9) && sum < t->end * (1 + 1e-9) && t->compute > 0);
    }
    lists_close(&l);
  }
}

#define EVEN                                                                                                                               \
  "layout.pp=2", "layout.tp=2", "layout.ep=2", "train.global_batch_size=16", "data.seq_length=16", "numerics.shards=2",                    \
      "model.vocab_size=64", "model.num_local_experts=4", "model.intermediate_size=16", "model.num_hidden_layers=2",                       \
      "model.first_k_dense_replace=0"
/* A list a class of ranks, and one a rank: the same calls and the same times, to the last bit. */
static void assert_classes(int world, int routing, const char *what, const char *const *sets) {
  Lists l[2];
  SimReport r[2];
  for (int exact = 0; exact < 2; exact++) {
    lists_open(&l[exact], world, routing, exact, sets);
    if (!simulate(&r[exact], &l[exact].r.a, &l[exact].w, &l[exact].r.e)) fail_msg("%s: %s", what, l[exact].r.e.text);
  }
  assert_true(r[1].pairs && (r[0].pairs == (r[0].n_call == 0)));
  assert_int_equal(r[0].n_call, r[1].n_call);
  assert_int_equal(r[0].n_message, r[1].n_message);
  for (int rank = 0; rank < world; rank++) {
    double flops[2];
    for (int exact = 0; exact < 2; exact++) flops[exact] = l[exact].w.list[l[exact].w.list_of[rank]].flops;
    if (flops[0] != flops[1]) fail_msg("%s, rank %d: %.17g flop by its class's list, %.17g by its own", what, rank, flops[0], flops[1]);
    if (memcmp(&r[0].rank[rank], &r[1].rank[rank], sizeof(SimTime)))
      print_message(
          "%s, rank %d: ends at %.17g s by its class's list, at %.17g s by its own; computes %.17g, %.17g; transfers %.17g, %.17g", what,
          rank, r[0].rank[rank].end, r[1].rank[rank].end, r[0].rank[rank].compute, r[1].rank[rank].compute, r[0].rank[rank].transfer,
          r[1].rank[rank].transfer);
  }
  assert_true(r[0].seconds == r[1].seconds);
  assert_memory_equal(r[0].axes_seconds, r[1].axes_seconds, sizeof r[0].axes_seconds);
  for (int exact = 0; exact < 2; exact++) lists_close(&l[exact]);
}
static const struct {
  int ranks;
  const char *const *set;
} worlds[] = {
    {16, RIG_SETS(EVEN)},
    {16, RIG_SETS(EVEN, "optimizer.shard_parameters=true")},
    {16, RIG_SETS("layout.pp=2", "layout.tp=2", "layout.ep=2", "train.global_batch_size=8")},
    {12, RIG_SETS("layout.cp=6", "layout.tp=2", "layout.ep=4", "data.seq_length=48", "model.sliding_window=5")},
    {4, RIG_SETS("layout.cp=4", "data.seq_length=32", "model.sliding_window=9", "model.model_type=llama", "model.num_local_experts=0")},
    {12, RIG_SETS("layout.cp=3", "layout.tp=1", "layout.ep=4", "optimizer.shard_parameters=true")},
    {12, RIG_SETS("layout.cp=6", "layout.cp_comm_type=p2p", "numerics.mode=native", "data.seq_length=48", "model.sliding_window=9")},
    {18, RIG_SETS("layout.tp=3", "layout.ep=6", "layout.etp=3", "numerics.dtype=bf16", "train.global_batch_size=11")},
    {24, RIG_SETS("layout.cp=4", "layout.cp_comm_type=a2a", "layout.ep=3", "optimizer.shard=false", "train.global_batch_size=13")},
    {20, RIG_SETS("layout.pp=2", "layout.ep=5", "model.tie_word_embeddings=true", "schedule.name=zero_bubble", "numerics.mode=native")},
};
static void classes_take_the_time_of_their_ranks(void **state) {
  (void)state;
  char what[64];
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
    for (int k = 0; k < 2; k++) {
      snprintf(what, sizeof what, "world %zu, %s", i, k ? "all to one" : "balanced");
      assert_classes(worlds[i].ranks, k ? ROUTE_ALL_TO_ONE : ROUTE_BALANCED, what, worlds[i].set);
    }
  for (int i = 0; i < N_LAYOUT; i++) {
    const char *sets[LAYOUT_SETS + 2];
    layout_sets(i, sets, (const char *[]){"train.global_batch_size=8", NULL});
    snprintf(what, sizeof what, "layout %d", i);
    assert_classes(layout[i].ranks, ROUTE_BALANCED, what, sets);
  }
}

enum { DRAWN = 48 };
static void worlds_at_random(void **state) {
  (void)state;
  Draw d = draw_open(5);
  for (int n = 0; n < DRAWN;) {
    Arena a;
    const char *set[DRAWN_SETS];
    arena_open(&a, "sets", 1 << 20);
    int ranks = draw_world(&d, &a, set);
    char *what = arena_printf(&a, "%d ranks", ranks);
    for (int i = 0; set[i]; i++) what = arena_printf(&a, "%s %s", what, set[i]);
    if (ranks) assert_classes(ranks, n % 2 ? ROUTE_ALL_TO_ONE : ROUTE_BALANCED, what, set), n++;
    arena_close(&a);
  }
}

/* ---- planted ------------------------------------------------------------------------------------------------------------------------------- */
static SimList *list_at(Lists *l, int rank) { return (SimList *)(uintptr_t)&l->w.list[l->w.list_of[rank]]; }
static int find(const SimList *x, SimKind kind, int nth) {
  for (int i = 0; i < x->n; i++)
    if (x->event[i].kind == kind && nth-- == 0) return i;
  fail_msg("no such event");
  return -1;
}
static void drop(SimList *x, int i) {
  memmove(x->event + i, x->event + i + 1, (size_t)(x->n - i - 1) * sizeof *x->event);
  x->n--;
}
static void received_bytes(Lists *l) { list_at(l, 7)->event[find(list_at(l, 7), SIM_RECV, 0)].received++; }
static void tag(Lists *l) { list_at(l, 7)->event[find(list_at(l, 7), SIM_RECV, 0)].tag += 1000; }
static void no_send(Lists *l) { drop(list_at(l, 3), find(list_at(l, 3), SIM_SEND, 0)); }
static void no_receive(Lists *l) { drop(list_at(l, 7), find(list_at(l, 7), SIM_RECV, 1)); }
static void no_call(Lists *l) { drop(list_at(l, 5), find(list_at(l, 5), SIM_CALL, 9)); }
/* The first call and the next one over the same axes change places. */
static void order(Lists *l) {
  SimList *x = list_at(l, 2);
  int i = find(x, SIM_CALL, 2), k = i + 1;
  while (x->event[k].axes != x->event[i].axes || !strcmp(x->event[k].name, x->event[i].name)) k++;
  SimEvent swap = x->event[i];
  x->event[i] = x->event[k], x->event[k] = swap;
}
static void sent_to_a_member(Lists *l) {
  SimEvent *v = &list_at(l, 6)->event[find(list_at(l, 6), SIM_CALL, 4)];
  uint64_t *to = (uint64_t *)(uintptr_t)v->to, *from = (uint64_t *)(uintptr_t)v->from;
  int member = to[0] ? 0 : 1;
  to[member]++, from[member]++, v->sent++, v->received++; /* in sum they agree */
}

static const struct {
  void (*plant)(Lists *l);
  const char *says[3];
} planted[] = {
    {received_bytes, {"rank 3 sends", "send.L01.hidden mb0", "rank 7 receives"}},
    {tag, {"wait for ever", "rank 7 in recv.stage.in mb0, which nobody has sent", "rank 4"}},
    {no_send, {"wait for ever", "rank 7 in recv.stage.in mb0, which nobody has sent", NULL}},
    {no_receive, {"rank", NULL, NULL}},
    {no_call, {"wait for ever", "rank 5 in head.in mb0", NULL}},
    {order, {"rank 2 in", NULL, NULL}},
    {sent_to_a_member, {"rank 6 in", "bytes sent and bytes received", NULL}},
};
static void planted_faults_are_found(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
    Lists l;
    SimReport r;
    lists_open(&l, 8, ROUTE_BALANCED, true, RIG_SETS("layout.pp=2", "layout.tp=2", "layout.ep=4"));
    planted[i].plant(&l);
    assert_false(simulate(&r, &l.r.a, &l.w, &l.r.e));
    assert_int_equal(l.r.e.code, ERR_BUG);
    for (int k = 0; k < 3 && planted[i].says[k]; k++)
      if (!strstr(l.r.e.text, planted[i].says[k])) fail_msg("fault %zu: \"%s\" is not in: %s", i, planted[i].says[k], l.r.e.text);
    lists_close(&l);
  }
}

/* ---- costs --------------------------------------------------------------------------------------------------------------------------------- */
static void costs_are_read(void **state) {
  (void)state;
  Lists l;
  SimCost c;
  lists_open(&l, 1, ROUTE_BALANCED, true, RIG_SETS("layout.ep=1"));
  assert_true(sim_cost(&c, &l.scratch, l.args.c, &l.r.device, NULL, &l.r.e));
  assert_true(c.flops > 0 && c.memory > 0);
  assert_true(
      sim_cost(&c, &l.scratch, l.args.c, &l.r.device, "flops=1e12,memory=2e11,bandwidth=3e9,tp.bandwidth=4e10,ep.latency=0", &l.r.e));
  assert_true(c.flops == 1e12 && c.memory == 2e11 && c.bandwidth[AXIS_PP] == 3e9 && c.bandwidth[AXIS_TP] == 4e10 &&
              c.latency[AXIS_EP] == 0);
  assert_true(c.bandwidth[AXIS_ETP] == 3e9 && c.latency[AXIS_EDP] > 0);
  const char *const wrong[] = {"flop=1", "flops", "flops=-1", "flops=0", "xp.bandwidth=1", "flops=1;memory=2", "tp.flops=3"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    Err e = {0};
    assert_false(sim_cost(&c, &l.scratch, l.args.c, &l.r.device, wrong[i], &e));
    assert_int_equal(e.code, ERR_CONFIG);
    assert_non_null(strstr(e.text, "--cost"));
  }
  lists_close(&l);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(times_by_hand),
                                     cmocka_unit_test(every_layout_runs_to_its_end),
                                     cmocka_unit_test(classes_take_the_time_of_their_ranks),
                                     cmocka_unit_test(worlds_at_random),
                                     cmocka_unit_test(planted_faults_are_found),
                                     cmocka_unit_test(costs_are_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
