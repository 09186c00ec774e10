/* Bytes touched on the painted slab against the plan, on layouts of every kind; steps of training, then of evaluation. In guard mode every buffer and workspace is
 * painted over its planned length, so that nothing hides. */
#include "parity/traffic_layouts.h"
#include "unit/train_rig.h"

static void assert_touched(Rig *r, const Touched *t, const char *what) {
  for (int g = REGION_P; g <= REGION_S; g++) {
    size_t measured = exec_touched(r->x, g), planned = touched_bytes(t, g);
    if (measured != planned)
      fail_msg("rank %d, %s: region %s: measured %zu bytes, planned %zu", world_rank(rig_world), what, region_name(g), measured, planned);
    assert_true(measured <= r->job.mem.bytes[g]);
  }
}

/* Of every layout: values of 4 bytes, and of 2 with sums of 4. */
static const char *const layout_type[] = {"numerics.dtype=fp32", "numerics.dtype=bf16"};
enum { N_LAYOUT_TYPE = sizeof layout_type / sizeof *layout_type };

static void run_layout(int i, const char *routing, const char *device, const char *dtype) {
  const char *sets[LAYOUT_SETS + 5];
  layout_sets(i, sets, (const char *[]){routing, device, dtype, "memory.guard=true", NULL});
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 7, sets);
  bool known = plan_routing_known((int)r.doc.c.moe.routing);
  Touched t = touched_new(&r.a);
  StepResult result;
  char what[96];
  snprintf(what, sizeof what, "layout %d, %s, %s", i, routing, dtype);
  const int64_t *train = plan_routed(&r.job.train.step, &r.a, &r.job.train.deal, (int)r.doc.c.moe.routing).n_row;
  const int64_t *eval = plan_routed(&r.job.eval.step, &r.a, &r.job.eval.deal, (int)r.doc.c.moe.routing).n_row;
  for (int64_t step = 1; step <= (known ? 1 : 2); step++) {
    rig_step(&r, step);
    plan_touch(&r.job.train.step, r.job.train.mb, known ? train : exec_rows(r.x, EXEC_TRAIN), &t);
    assert_touched(&r, &t, what);
  }
  rig_fill(&r, EXEC_EVAL, 0);
  exec_run(r.x, EXEC_EVAL, NULL, &result);
  plan_touch(&r.job.eval.step, r.job.eval.mb, known ? eval : exec_rows(r.x, EXEC_EVAL), &t);
  assert_touched(&r, &t, what);
  rig_close(&r);
}

static void each_layout(const char *routing, const char *device) {
  for (int i = 0; i < N_LAYOUT; i++)
    if (layout[i].ranks == world_size(rig_world))
      for (int k = 0; k < N_LAYOUT_TYPE; k++) run_layout(i, routing, device, layout_type[k]);
}
static void balanced(void **state) {
  (void)state;
  each_layout("moe.routing=balanced", "device.name=cpu");
}
static void all_to_one(void **state) {
  (void)state;
  each_layout("moe.routing=all_to_one", "device.gemm=plain");
}
static void learned(void **state) {
  (void)state;
  each_layout("moe.routing=learned", "device.name=cpu");
}

static int run(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(balanced), cmocka_unit_test(all_to_one), cmocka_unit_test(learned)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run); }
