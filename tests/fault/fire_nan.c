/* A NaN in the first element of whatever any instruction writes: the step reports a fault on every rank, nothing is updated, and the search
 * names that instruction. A healthy step has nothing to find. */
#include "unit/train_rig.h"

static void all_views(Rig *r, uint64_t *hash) {
  static const TensorView view[] = {TENSOR_WEIGHT, TENSOR_M, TENSOR_V};
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

/* The rank with the NaN finds it, and of all ranks it is the one to believe. */
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
  uint64_t mine = exec_find_nonfinite(r->x, &u, found, sizeof found), first = mine;
  comm_allreduce_max_u64(r->world, AXES_WORLD, &first, 1);
  if (world_rank(r->world) == rank && (strcmp(found, name) || mine != first)) fail_msg("%s: the search found \"%s\"", name, found);
  all_views(r, have);
  if (memcmp(have, want, sizeof have)) fail_msg("%s: the search changed the state", name);
  disarm(r);
}

static int list_names(const Step *s, char (*name)[128]) {
  int n = 0;
  for (int i = 0; i < s->n_ins; i++)
    if (writes_reals(s, &s->ins[i])) ins_name(s, &s->ins[i], name[n++], 128);
  return n;
}

/* Every instruction of the last rank, which has the larger share. */
static void sweep(const char *const *sets) {
  Rig r;
  uint64_t want[3];
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  rig_step(&r, 1);
  all_views(&r, want);
  const Step *s = &r.job.train.step;
  int rank = world_size(rig_world) - 1, n_name = 0;
  char(*name)[128] = arena_alloc(&r.a, (size_t)s->n_ins + 1, 128);
  if (world_rank(rig_world) == rank) n_name = list_names(s, name);
  comm_bcast(rig_world, &n_name, sizeof n_name, rank);
  if (n_name < 40) fail_msg("%d instructions", n_name);
  for (int i = 0; i < n_name; i++) {
    char one[128];
    memcpy(one, name[i < s->n_ins ? i : 0], sizeof one);
    comm_bcast(rig_world, one, sizeof one, rank);
    if (r.job.mesh.size[AXIS_TP] > 1 && !strncmp(one, "embed", 5)) continue;
    one_nan(&r, one, rank, want);
  }
  StepResult good = rig_step(&r, 2);
  assert_false(good.fault);
  rig_close(&r);
}

static void test_canonical(void **state) {
  (void)state;
  sweep(RIG_SETS("layout.ep=2", "train.micro_batch_size=3", "model.num_hidden_layers=2"));
}
static void test_native(void **state) {
  (void)state;
  sweep(RIG_SETS("numerics.mode=native", "layout.ep=2", "optimizer.shard=false", "train.micro_batch_size=3", "model.num_hidden_layers=2"));
}
/* Where the vocabulary is cut, rows of tokens that are another rank's are written but never read. */
static void test_tensor(void **state) {
  (void)state;
  sweep(RIG_SETS("layout.tp=2", "model.num_hidden_layers=2", "train.global_batch_size=2"));
}
static void test_pipeline(void **state) {
  (void)state;
  sweep(RIG_SETS("layout.pp=2", "model.num_hidden_layers=2", "train.global_batch_size=3"));
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
  assert_int_equal(exec_find_nonfinite(r.x, &u, found, sizeof found), 0);
  assert_string_equal(found, "");
  all_views(&r, after);
  assert_memory_equal(before, after, sizeof before);
  rig_close(&r);
}

static int all_tests(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_canonical), cmocka_unit_test(test_native), cmocka_unit_test(test_tensor),
                                     cmocka_unit_test(test_pipeline), cmocka_unit_test(test_healthy_step_has_nothing_to_find)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, all_tests); }
