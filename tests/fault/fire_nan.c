/* A NaN in the first element of whatever any instruction writes: the step reports a fault on every rank, nothing is updated, and the search
 * names that instruction. A healthy step has nothing to find. */
#include "unit/train_rig.h"

static void all_views(Rig *r, uint64_t *hash) {
  static const StateView view[] = {VIEW_WEIGHT, VIEW_M, VIEW_V};
  for (int v = 0; v < 3; v++) hash[v] = rig_hash(r, view[v]);
}

static void arm(Rig *r, const char *name, int rank) {
  char spec[160];
  Err e = {0};
  snprintf(spec, sizeof spec, "exec.ins(%s)@%d=nan", name, rank);
  if (!fault_arm(world_fault(r->world), spec, world_rank(r->world), &e)) fail_msg("%s", e.text);
}
static void disarm(Rig *r) { fault_arm(world_fault(r->world), NULL, 0, &r->e); }

/* Does the instruction write numbers that a NaN could spoil? Weight gradients are sums of integers or added to what is there. */
static bool writes_reals(const Step *s, const Ins *i) {
  bool back = i->kind == INS_KERNEL && i->pass == PASS_BWD_X;
  if ((i->kind != INS_KERNEL && i->kind != INS_SUM) || (i->kind == INS_KERNEL && i->pass == PASS_BWD_W)) return false;
  const BufId *out = back ? i->d_in : i->out;
  for (int k = 0; k < (back ? MAX_IN : MAX_OUT); k++)
    if (out[k] != NO_BUF && s->buf[out[k]].kind <= BUF_GRAD && s->p->val[s->buf[out[k]].val].dtype == job_dtype(&(Config){0})) return true;
  return false;
}

static void one_nan(Rig *r, const char *name, int rank, const uint64_t *want) {
  char found[128];
  uint64_t have[3];
  arm(r, name, rank);
  StepResult result = rig_step(r, 2);
  all_views(r, have);
  if (!result.fault) fail_msg("%s: no fault; loss %g, norm %g", name, result.loss, result.grad_norm);
  if (memcmp(have, want, sizeof have)) fail_msg("%s: the state changed", name);
  UpdateArgs u = rig_update(r, 2);
  rig_fill(r, EXEC_TRAIN, r->job.train.deal.n_seq);
  int n = exec_find_nonfinite(r->x, &u, found, sizeof found);
  if (world_rank(r->world) == rank && strcmp(found, name)) fail_msg("%s: the search found \"%s\" (%d)", name, found, n);
  all_views(r, have);
  if (memcmp(have, want, sizeof have)) fail_msg("%s: the search changed the state", name);
  disarm(r);
}

static void sweep(const char *const *sets) {
  Rig r;
  char name[128];
  uint64_t want[3];
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  rig_step(&r, 1);
  all_views(&r, want);
  const Step *s = &r.job.train.step;
  int n_tried = 0, rank = world_size(rig_world) - 1; /* the larger share */
  for (int n = 0; n < s->n_ins; n++) {
    ins_name(s, &s->ins[n], name, sizeof name);
    if (!writes_reals(s, &s->ins[n])) continue;
    comm_bcast(rig_world, name, sizeof name, rank);
    one_nan(&r, name, rank, want);
    n_tried++;
  }
  if (n_tried < 60) fail_msg("%d instructions tried", n_tried);
  StepResult good = rig_step(&r, 2);
  assert_false(good.fault);
  rig_close(&r);
}

static void test_every_instruction(void **state) {
  (void)state;
  sweep(RIG_SETS("layout.ep=1"));
}
static void test_native(void **state) {
  (void)state;
  sweep(RIG_SETS("numerics.mode=native", world_size(rig_world) == 2 ? "layout.ep=2" : "layout.ep=1"));
}

static void test_healthy_step_has_nothing_to_find(void **state) {
  (void)state;
  Rig r;
  char found[128] = "x";
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("memory.guard=true"));
  UpdateArgs u = rig_update(&r, 1);
  uint64_t before[3], after[3];
  all_views(&r, before);
  rig_fill(&r, EXEC_TRAIN, 0);
  assert_int_equal(exec_find_nonfinite(r.x, &u, found, sizeof found), -1);
  assert_string_equal(found, "");
  all_views(&r, after);
  assert_memory_equal(before, after, sizeof before);
  rig_close(&r);
}

static int all_tests(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_instruction), cmocka_unit_test(test_native),
                                     cmocka_unit_test(test_healthy_step_has_nothing_to_find)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, all_tests); }
