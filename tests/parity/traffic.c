/* Bytes and messages that a step sends, by axis set: planned against counted, with no difference, on layouts of every kind. */
#include "parity/traffic_layouts.h"
#include "program/op_passes.h"
#include "train/plan_verb.h"
#include "unit/train_rig.h"

static Traffic counted(void) {
  Traffic t = {.n = 0};
  t.n = comm_traffic(rig_world, t.of, TRAFFIC_MAX);
  return t;
}
static CommTraffic of_axes(const Traffic *t, AxisSet axes) {
  for (int i = 0; i < t->n; i++)
    if (t->of[i].axes == axes) return t->of[i];
  return (CommTraffic){.axes = axes};
}
static void assert_traffic(const Traffic *planned, const Traffic *before, const Traffic *after, const char *what) {
  for (AxisSet axes = 1; axes < N_AXIS_SET; axes++) {
    CommTraffic plan = of_axes(planned, axes), from = of_axes(before, axes), to = of_axes(after, axes);
    if (plan.bytes != to.bytes - from.bytes || plan.messages != to.messages - from.messages)
      fail_msg("rank %d, %s, axes 0x%x: planned %llu bytes in %llu messages, counted %llu in %llu", world_rank(rig_world), what, axes,
               (unsigned long long)plan.bytes, (unsigned long long)plan.messages, (unsigned long long)(to.bytes - from.bytes),
               (unsigned long long)(to.messages - from.messages));
  }
}

/* Counts of every exchange as they were in the run. */
typedef struct Record {
  Rig *r;
  Routed routed;
} Record;
static void record_counts(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  (void)n_row;
  Record *rec = ctx;
  int number = s->plan_number[i->chunk][v], at = i->mb * s->n_plan + number;
  if (number < 0) return;
  size_t bytes = value_row_bytes(s->chunk[i->chunk], v, false);
  int32_t *copy = arena_alloc(&rec->r->a, bytes, 1);
  memcpy(copy, data, bytes);
  rec->routed.plan[at] = copy;
}

static TrafficArgs traffic_args(Rig *r, int which, Routed routed) {
  const JobStep *s = which == EXEC_TRAIN ? &r->job.train : &r->job.eval;
  return (TrafficArgs){.s = &s->step,
                       .mb = s->mb,
                       .routed = routed,
                       .k = device_kernels(&r->device, job_dtype(&r->doc.c)),
                       .zero1 = r->doc.c.optimizer.shard};
}

static Traffic measure(Rig *r, int which, Traffic *before) {
  UpdateArgs u = rig_update(r, 1);
  StepResult result;
  rig_fill(r, which, 0);
  *before = counted();
  exec_run(r->x, which, which == EXEC_TRAIN ? &u : NULL, &result);
  assert_false(result.fault);
  return counted();
}

/* "dp.cp" */
static AxisSet axes_named(const char *text) {
  AxisSet axes = 0;
  for (const char *at = text; *at; at += strcspn(at, "."), at += *at == '.')
    for (int i = 0; i < N_AXIS; i++)
      if (strlen(axis_name(i)) == strcspn(at, ".") && !strncmp(at, axis_name(i), strlen(axis_name(i)))) axes |= AXIS_BIT(i);
  return axes;
}
/* What `etalon plan --routing R --rank r` prints is what was planned here. */
static void assert_printed(const Rig *r, const Traffic *planned, const char *routing, const char *const *sets) {
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  PlanArgs args = {.world = r->job.mesh.world, .rank = r->job.rank, .routing = routing};
  Rig again = {0};
  int n = 0;
  arena_open(&again.a, "plan", (size_t)1 << 30);
  RIG_MUST(&again, rig_read(&again, RIG_ODD, args.world, sets));
  RIG_MUST(&again, plan_verb(&again.a, &again.doc, &args, f, &again.e));
  fclose(f);
  for (const char *line = strstr(text, "sends over "); line; line = strstr(line + 1, "sends over "), n++) {
    char axes[64];
    unsigned long long bytes, messages;
    assert_int_equal(sscanf(line, "sends over %63s %llu bytes in %llu messages", axes, &bytes, &messages), 3);
    CommTraffic want = of_axes(planned, axes_named(axes));
    assert_int_equal(want.bytes, bytes);
    assert_int_equal(want.messages, messages);
  }
  assert_int_equal(n, planned->n);
  free(text);
  arena_close(&again.a);
}

/* The counts that plan_routed works out are those of the run; the traffic that follows from them too. */
static Traffic forced(Rig *r, int which, const char *what) {
  Step *s = which == EXEC_TRAIN ? &r->job.train.step : &r->job.eval.step;
  const Deal *deal = which == EXEC_TRAIN ? &r->job.train.deal : &r->job.eval.deal;
  Routed routed = plan_routed(s, &r->a, deal, (int)r->doc.c.moe.routing);
  Record rec = {r, {NULL, ARENA_NEW(&r->a, const int32_t *, s->n_guard + 1)}};
  TrafficArgs t = traffic_args(r, which, routed);
  Traffic planned = plan_traffic(&r->a, &t), before, after;
  exec_set_tap(r->x, record_counts, &rec);
  after = measure(r, which, &before);
  assert_traffic(&planned, &before, &after, what);
  for (int i = 0; i < s->n_guard; i++) {
    assert_int_equal(exec_rows(r->x, which)[i], routed.n_row[i]);
    assert_memory_equal(rec.routed.plan[i], routed.plan[i], (size_t)counts_width(&s->p->dims) * sizeof(int32_t));
  }
  return planned;
}

/* Learned: below the bound, and exactly what the recorded counts say. */
static void learned(Rig *r, const char *what) {
  Step *s = &r->job.train.step;
  Routed most = plan_routed(s, &r->a, &r->job.train.deal, ROUTE_LEARNED), ones = plan_routed(s, &r->a, &r->job.train.deal, PLAN_ONE_ROW);
  Record rec = {r, {NULL, ARENA_NEW(&r->a, const int32_t *, s->n_guard + 1)}};
  exec_set_tap(r->x, record_counts, &rec);
  Traffic before, after = measure(r, EXEC_TRAIN, &before);
  rec.routed.n_row = (int64_t *)(uintptr_t)exec_rows(r->x, EXEC_TRAIN);
  TrafficArgs t = traffic_args(r, EXEC_TRAIN, rec.routed), bytes = traffic_args(r, EXEC_TRAIN, most),
              messages = traffic_args(r, EXEC_TRAIN, ones);
  Traffic planned = plan_traffic(&r->a, &t), at_most = plan_traffic(&r->a, &bytes), in_most = plan_traffic(&r->a, &messages);
  assert_traffic(&planned, &before, &after, what);
  for (int i = 0; i < planned.n; i++) {
    assert_true(planned.of[i].bytes <= of_axes(&at_most, planned.of[i].axes).bytes);
    assert_true(planned.of[i].messages <= of_axes(&in_most, planned.of[i].axes).messages);
  }
}

/* Of every layout: values of 4 bytes, and of 2 with sums of 4. */
static const char *const layout_type[] = {"numerics.dtype=fp32", "numerics.dtype=bf16"};
enum { N_LAYOUT_TYPE = sizeof layout_type / sizeof *layout_type };

static void one_layout(int i, const char *routing, const char *dtype) {
  const char *sets[LAYOUT_SETS + 4];
  layout_sets(i, sets, (const char *[]){routing, dtype, NULL});
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 7, sets);
  char what[96];
  snprintf(what, sizeof what, "layout %d, %s, %s", i, routing, dtype);
  if (r.doc.c.moe.routing == ROUTE_LEARNED)
    learned(&r, what);
  else {
    Traffic planned = forced(&r, EXEC_TRAIN, what);
    assert_printed(&r, &planned, strchr(routing, '=') + 1, sets);
    forced(&r, EXEC_EVAL, what);
  }
  rig_close(&r);
}
static void each_layout(const char *routing) {
  for (int i = 0; i < N_LAYOUT; i++)
    if (layout[i].ranks == world_size(rig_world))
      for (int k = 0; k < N_LAYOUT_TYPE; k++) one_layout(i, routing, layout_type[k]);
}
static void balanced(void **state) {
  (void)state;
  each_layout("moe.routing=balanced");
}
static void all_to_one(void **state) {
  (void)state;
  each_layout("moe.routing=all_to_one");
}
static void by_router(void **state) {
  (void)state;
  each_layout("moe.routing=learned");
}

static int run(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(balanced), cmocka_unit_test(all_to_one), cmocka_unit_test(by_router)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run); }
