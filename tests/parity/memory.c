/* What is measured is what was planned: bytes touched on the painted slab, region by region, against the plan for the same routing. */
#include "train/plan_verb.h"
#include "unit/train_rig.h"

/* In guard mode NaN bytes are written over every buffer and workspace, so that a value which happens to equal the paint cannot hide. */
static void assert_touched(Rig *r, const Touched *t, const char *what) {
  for (int g = REGION_P; g <= REGION_S; g++) {
    size_t measured = exec_touched(r->x, g), planned = touched_bytes(t, g);
    if (measured != planned) fail_msg("%s: region %s: measured %zu bytes, planned %zu", what, region_name(g), measured, planned);
    assert_true(measured <= r->job.mem.bytes[g]);
  }
}

/* What `etalon plan --routing` prints for this rank. */
static void assert_printed(Rig *r, const char *routing, const char *const *sets) {
  char *text = NULL;
  size_t n = 0;
  FILE *f = open_memstream(&text, &n);
  PlanArgs args = {.world = r->job.mesh.world, .rank = r->job.rank, .routing = routing};
  Rig again = {0};
  arena_open(&again.a, "plan", (size_t)1 << 30);
  RIG_MUST(&again, rig_read(&again, RIG_ODD, args.world, sets));
  RIG_MUST(&again, plan_verb(&again.a, &again.doc, &args, f, &again.e));
  fclose(f);
  const char *line = strstr(text, "touched with ");
  assert_non_null(line);
  size_t size[4];
  assert_int_equal(sscanf(strchr(line, ':'), ": P %zu F %zu W %zu S %zu", &size[0], &size[1], &size[2], &size[3]), 4);
  for (int g = REGION_P; g <= REGION_S; g++) assert_int_equal(size[g], exec_touched(r->x, g));
  free(text);
  arena_close(&again.a);
}

static void forced(const char *routing, const char *const *sets) {
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  Touched t = touched_new(&r.a);
  const int64_t *n_row = plan_routed(&r.job.train.step, &r.a, &r.job.train.deal, (int)r.doc.c.moe.routing).n_row;
  plan_touch(&r.job.train.step, r.job.train.mb, n_row, &t);
  rig_step(&r, 1);
  for (int i = 0; i < r.job.train.step.n_guard; i++) assert_int_equal(exec_rows(r.x, EXEC_TRAIN)[i], n_row[i]);
  assert_touched(&r, &t, routing);
  assert_printed(&r, routing, sets);
  rig_close(&r);
}

/* Without guard mode only kernels write: values fill their buffers, workspaces may stay below their bound. */
static void unguarded(void **state) {
  (void)state;
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("optimizer.shard=false"));
  Touched t = touched_new(&r.a);
  rig_step(&r, 1);
  plan_touch(&r.job.train.step, r.job.train.mb, exec_rows(r.x, EXEC_TRAIN), &t);
  for (int g = REGION_P; g <= REGION_S; g++) {
    size_t measured = exec_touched(r.x, g), planned = touched_bytes(&t, g);
    if (g == REGION_W ? measured > planned : measured != planned)
      fail_msg("region %s: measured %zu bytes, planned %zu", region_name(g), measured, planned);
  }
  rig_close(&r);
}

static const char *ep(void) { return world_size(rig_world) > 1 ? "layout.ep=2" : "layout.ep=1"; }

static void balanced(void **state) {
  (void)state;
  forced("balanced", RIG_SETS("moe.routing=balanced", "memory.guard=true", ep()));
  forced("balanced", RIG_SETS("moe.routing=balanced", "memory.guard=true", "train.global_batch_size=1", "optimizer.shard=false", ep()));
}
static void all_to_one(void **state) {
  (void)state;
  forced("all_to_one", RIG_SETS("moe.routing=all_to_one", "memory.guard=true", ep()));
  forced("all_to_one", RIG_SETS("moe.routing=all_to_one", "memory.guard=true", "schedule.name=all_forward", "numerics.dtype=fp64", ep()));
}
static void dense(void **state) {
  (void)state;
  forced("bound", RIG_SETS("model.model_type=llama", "model.num_local_experts=0", "model.first_k_dense_replace=0", "memory.guard=true"));
}

/* Learned rows are known afterwards; the plan of what came is what was touched, step after step, evaluation included. */
static void learned(void **state) {
  (void)state;
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 7, RIG_SETS("memory.guard=true", ep()));
  Touched t = touched_new(&r.a);
  StepResult result;
  for (int64_t i = 1; i <= 4; i++) {
    rig_step(&r, i);
    plan_touch(&r.job.train.step, r.job.train.mb, exec_rows(r.x, EXEC_TRAIN), &t);
    assert_touched(&r, &t, "learned");
  }
  rig_fill(&r, EXEC_EVAL, 0);
  exec_run(r.x, EXEC_EVAL, NULL, &result);
  plan_touch(&r.job.eval.step, r.job.eval.mb, exec_rows(r.x, EXEC_EVAL), &t);
  assert_touched(&r, &t, "evaluation");
  rig_close(&r);
}

/* A limit of exactly the plan runs; one byte less is refused, and the message says what would do. */
static void limits(void **state) {
  (void)state;
  Rig r, s;
  char set[64], least[64];
  rig_plan(&r, RIG_ODD, world_size(rig_world), world_rank(rig_world), 0, RIG_SETS(ep()));
  /* the plan of the rank that needs most is the limit of all */
  uint64_t most = r.job.mem.device;
  comm_allreduce_max_u64(rig_world, AXES_WORLD, &most, 1);
  snprintf(set, sizeof set, "memory.device_limit=%zu", (size_t)most);
  snprintf(least, sizeof least, "the smallest that does: %zu.", (size_t)most);
  rig_plan(&s, RIG_ODD, world_size(rig_world), world_rank(rig_world), 0, RIG_SETS(set, ep()));
  RIG_MUST(&s, job_check_limits(&s.job, rig_world, &s.e));
  rig_close(&s);
  snprintf(set, sizeof set, "memory.device_limit=%zu", (size_t)most - 1);
  Job j;
  Rig refused = {0};
  arena_open(&refused.a, "refused", (size_t)1 << 28);
  RIG_MUST(&refused, rig_read(&refused, RIG_ODD, world_size(rig_world), RIG_SETS(set, ep())));
  assert_true(job_plan(&j, &refused.a, &refused.doc.c, world_size(rig_world), world_rank(rig_world), &r.device, 0, &refused.e));
  assert_false(job_check_limits(&j, rig_world, &refused.e));
  assert_int_equal(refused.e.code, ERR_MEMORY);
  assert_non_null(strstr(refused.e.text, "memory.device_limit"));
  assert_non_null(strstr(refused.e.text, least));
  arena_close(&refused.a);
  rig_close(&r);
}

/* The pattern of routing changes nothing in the slab: it is cut for the bound. */
static void slab_ignores_routing(void **state) {
  (void)state;
  Rig a, b;
  rig_plan(&a, RIG_ODD, 4, 1, 0, RIG_SETS("layout.ep=4", "moe.routing=balanced"));
  rig_plan(&b, RIG_ODD, 4, 1, 0, RIG_SETS("layout.ep=4", "moe.routing=all_to_one"));
  assert_memory_equal(a.job.mem.bytes, b.job.mem.bytes, sizeof a.job.mem.bytes);
  rig_close(&a);
  rig_close(&b);
}

static int run(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(balanced),
                                     cmocka_unit_test(all_to_one),
                                     cmocka_unit_test(dense),
                                     cmocka_unit_test(unguarded),
                                     cmocka_unit_test(learned),
                                     cmocka_unit_test(limits),
                                     cmocka_unit_test(slab_ignores_routing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run); }
