/* One list stands for a class of ranks: against lists built for every rank, instruction by instruction and buffer by buffer. */
#include "train/plan_world.h"
#include "plan/world.h"
#include "unit/draw_world.h"
#include "unit/train_rig.h"

static void assert_buffers(const Step *class, const Step *rank, int n) {
  assert_int_equal(class->n_buf, rank->n_buf);
  for (int i = 0; i < class->n_buf; i++) {
    const Buf *x = &class->buf[i], *y = &rank->buf[i];
    assert_string_equal(x->label, y->label);
    assert_true(x->kind == y->kind && x->region == y->region && x->val == y->val && x->first == y->first && x->last == y->last);
    if (x->region != REGION_P && (x->bytes != y->bytes || x->offset != y->offset))
      fail_msg("rank %d: buffer %s: %zu bytes at %zu, its class has %zu at %zu", n, x->label, y->bytes, y->offset, x->bytes, x->offset);
  }
}
static void assert_same_list(const Step *class, const Step *rank, int n) {
  assert_int_equal(class->n_ins, rank->n_ins);
  assert_memory_equal(class->ins, rank->ins, (size_t) class->n_ins * sizeof *class->ins);
  assert_buffers(class, rank, n);
}

static int check_world(int world, int64_t n_valid, const char *const *sets) {
  Rig r = {0};
  arena_open(&r.a, "rig", (size_t)1 << 32);
  RIG_MUST(&r, rig_read(&r, RIG_ODD, world, sets));
  RIG_MUST(&r, device_open(&r.device, "cpu", "plain", 1, 7, &r.e));
  WorldPlanArgs args = {&r.doc.c, world, &r.device, n_valid};
  WorldPlan w;
  Arena scratch;
  arena_open(&scratch, "scratch", (size_t)1 << 32);
  RIG_MUST(&r, world_plan(&w, &r.a, &scratch, &args, &r.e));
  int members = 0;
  for (int i = 0; i < w.n_class; i++) {
    Job class;
    RIG_MUST(&r, world_plan_job(&w, &class, &r.a, &args, i, &r.e));
    size_t most = 0, least = SIZE_MAX;
    for (int rank = 0; rank < world; rank++) {
      if (w.class_of[rank] != i) continue;
      Job j;
      ArenaMark mark = arena_mark(&scratch);
      RIG_MUST(&r, job_plan(&j, &scratch, &r.doc.c, world, rank, &r.device, n_valid, &r.e));
      assert_same_list(&class.train.step, &j.train.step, rank);
      assert_same_list(&class.eval.step, &j.eval.step, rank);
      for (int g = REGION_F; g < N_REGION; g++) assert_int_equal(class.mem.bytes[g], j.mem.bytes[g]);
      size_t states = world_state_bytes(&j.params, rank, &j.train.program[0].num, &j.train.options, NULL);
      assert_int_equal(j.mem.bytes[REGION_P] - states, class.mem.bytes[REGION_P] - w.cls[i].states);
      most = states > most ? states : most, least = states < least ? states : least;
      members++;
      arena_release(&scratch, mark);
    }
    assert_int_equal(most, w.cls[i].states);
    assert_int_equal(least, w.cls[i].states_least);
  }
  assert_int_equal(members, world);
  int n = w.n_class;
  arena_close(&scratch);
  rig_close(&r);
  return n;
}

static void classes_stand_for_ranks(void **state) {
  (void)state;
  assert_int_equal(check_world(1, 3, RIG_SETS("layout.ep=1")), 1);
  check_world(6, 3, RIG_SETS("layout.tp=3", "layout.ep=3", "layout.etp=2", "optimizer.shard_parameters=true"));
  check_world(8, 3, RIG_SETS("layout.pp=2", "layout.tp=2", "layout.cp=2", "layout.ep=4"));
  /* two key heads over four ranks that hold as many tokens each: heads tell them apart */
  check_world(4, 4, RIG_SETS("layout.cp=4", "layout.cp_comm_type=a2a", "data.seq_length=16", "numerics.window=2"));
  /* in a ring it matters beside whom a rank stands */
  check_world(6, 3, RIG_SETS("layout.cp=6", "layout.cp_comm_type=p2p", "numerics.mode=native", "numerics.window=2"));
  check_world(12, 3, RIG_SETS("layout.pp=2", "layout.tp=2", "layout.ep=3", "model.tie_word_embeddings=true", "numerics.mode=native"));
}
/* Sizes that everything divides: a class a stage. */
static void regular_worlds_have_few_classes(void **state) {
  (void)state;
  const char *even = "train.global_batch_size=16";
  int n = check_world(16, 16,
                      RIG_SETS("layout.pp=2", "layout.tp=2", "layout.ep=2", even, "data.seq_length=16", "numerics.shards=2",
                               "model.vocab_size=64", "model.intermediate_size=16", "model.num_hidden_layers=2",
                               "model.first_k_dense_replace=0"));
  assert_int_equal(n, 2);
}

static void worlds_at_random(void **state) {
  (void)state;
  enum { DRAWN = 24 };
  Draw d = draw_open(6);
  for (int n = 0; n < DRAWN;) {
    Arena a;
    const char *set[DRAWN_SETS];
    arena_open(&a, "sets", 1 << 20);
    int ranks = draw_world(&d, &a, set);
    if (ranks) check_world(ranks, 1 + n % 5, set), n++;
    arena_close(&a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(classes_stand_for_ranks), cmocka_unit_test(regular_worlds_have_few_classes),
                                     cmocka_unit_test(worlds_at_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
