/* Ranks that hold the same weights are found when they do not, whichever axis makes them replicas: TP for gains and routers, DP x CP for the rest of a dense layer,
 * expert data parallelism, the stages that share a tied embedding. Two ranks. */
#include "unit/train_rig.h"

typedef struct Case {
  const char *layout;
  ParamGroupId group;
  const char *tensor; /* NULL: nobody else holds it */
} Case;
static const Case row[] = {
    {"layout.tp=2", PGROUP_TOKEN, "input_layernorm"},
    {"layout.tp=2", PGROUP_SHARD, NULL},
    {"layout.cp=2", PGROUP_SHARD, "embed_tokens"},
    {"layout.cp=2", PGROUP_TOKEN, "input_layernorm"},
    {"layout.cp=2", PGROUP_EXPERT, "experts.0.w1"},
    {"layout.pp=2", PGROUP_MIRROR, "embed_tokens"},
    {"layout.pp=2", PGROUP_TOKEN, NULL},
    {"layout.ep=2", PGROUP_EXPERT, NULL},
};

static void a_flipped_bit_is_found(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    Rig r;
    Err e = {0};
    rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS(row[i].layout, "model.tie_word_embeddings=true"));
    rig_step(&r, 1);
    RIG_MUST(&r, state_check_replicas(r.x, &r.job, rig_world, &r.e));
    if (world_rank(rig_world) == 1) ((uint32_t *)exec_state(r.x, row[i].group, STATE_WEIGHT))[5] ^= 1;
    bool same = state_check_replicas(r.x, &r.job, rig_world, &e);
    if (same != (row[i].tensor == NULL))
      fail_msg("%s, group %s: %s", row[i].layout, pgroup_name(row[i].group), same ? "not found" : e.text);
    if (row[i].tensor) {
      assert_int_equal(e.code, ERR_MISMATCH);
      assert_non_null(strstr(e.text, row[i].tensor));
    }
    rig_close(&r);
  }
}

static int run_group(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_flipped_bit_is_found)};
  return cmocka_run_group_tests_name("replicas", tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run_group); }
