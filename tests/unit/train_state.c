/* Initial values, the gradient norm, replicas, and what happens to experts without a row. Two ranks. */
#include <math.h>

#include "base/hash.h"
#include "exec/exec_state.h"
#include "unit/train_rig.h"

static int self(void) { return world_rank(rig_world); }

/* ---- initial values ------------------------------------------------------------------------------------------------------------------ */
/* The whole model on every rank, by logical element: owned pieces meet through sums of bit patterns. */
static uint64_t *gather_bits(Rig *r, TensorView v, int64_t *first /* [n_tensor + 1] */) {
  StatePiece *piece;
  const ParamSet *ps = &r->job.params;
  for (int i = 0; i < ps->n_tensor; i++) first[i + 1] = first[i] + params_of_tensor(ps, i)->n_out * params_of_tensor(ps, i)->n_in;
  uint64_t *bits = ARENA_NEW(&r->a, uint64_t, first[ps->n_tensor]);
  int n = state_pieces(r->x, &r->job, &r->a, v, PIECES_OWNED, &piece);
  for (int k = 0; k < n; k++) {
    const StatePiece *p = &piece[k];
    int64_t cols = params_of_tensor(ps, p->tensor)->n_in;
    for (int64_t i = 0; i < p->n_row * p->n_col; i++) {
      uint32_t b;
      memcpy(&b, (const float *)p->data + i, sizeof b);
      bits[first[p->tensor] + (p->row + i / p->n_col) * cols + p->col + i % p->n_col] += b;
    }
  }
  comm_allreduce_u64(r->world, AXES_WORLD, bits, first[ps->n_tensor]);
  return bits;
}
static double real_of(uint64_t bits) {
  uint32_t b = (uint32_t)bits;
  float f;
  memcpy(&f, &b, sizeof f);
  return f;
}

/* Distinct over tensors, hence over experts and ranks; of the right size; gains 1. */
static void initial_values_are_distinct(void **state) {
  (void)state;
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("layout.ep=2"));
  int n = r.job.params.n_tensor;
  int64_t *first = ARENA_NEW(&r.a, int64_t, n + 1);
  uint64_t *bits = gather_bits(&r, TENSOR_WEIGHT, first);
  for (int i = 0; i < n; i++) {
    int64_t size = first[i + 1] - first[i];
    const Param *p = params_of_tensor(&r.job.params, i);
    double sum = 0, square = 0;
    for (int64_t k = first[i]; k < first[i + 1]; k++) sum += real_of(bits[k]), square += real_of(bits[k]) * real_of(bits[k]);
    if (p->kind == PARAM_NORM)
      assert_true(sum == (double)size && square == (double)size);
    else
      assert_true(fabs(sum / (double)size) < 5 * 0.1 / sqrt((double)size) &&
                  fabs(square / (double)size - 0.01) < 5 * 0.01 * sqrt(2.0 / (double)size));
    for (int j = 0; j < i && p->kind != PARAM_NORM; j++)
      if (params_of_tensor(&r.job.params, j)->kind != PARAM_NORM)
        for (int64_t k = 0; k < 8; k++) assert_true(bits[first[i] + k] != bits[first[j] + k]);
  }
  rig_close(&r);
}

static void initial_values_do_not_know_the_layout(void **state) {
  (void)state;
  static const char *const layout[][3] = {{"layout.ep=1", "numerics.shards=3", NULL},
                                          {"layout.ep=2", "numerics.shards=3", NULL},
                                          {"layout.ep=2", "numerics.shards=1", NULL},
                                          {"layout.ep=1", "optimizer.shard=false", NULL}};
  uint64_t hash[4];
  for (int i = 0; i < 4; i++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0, layout[i]);
    hash[i] = rig_hash(&r, TENSOR_WEIGHT);
    assert_true(rig_hash(&r, TENSOR_M) != hash[i]);
    rig_close(&r);
  }
  for (int i = 1; i < 4; i++) assert_true(hash[i] == hash[0]);
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("train.seed=1235"));
  assert_true(rig_hash(&r, TENSOR_WEIGHT) != hash[0]);
  rig_close(&r);
}

/* ---- the gradient norm --------------------------------------------------------------------------------------------------------------- */
/* Puts `value` into the accumulator of element 0 of tensor `t`, where this rank holds it. */
static void put_gradient(Rig *r, int t, double value) {
  const ParamSet *ps = &r->job.params;
  const Step *s = &r->job.train.step;
  for (int g = 0; g < N_PGROUP; g++)
    for (int k = 0; k < ps->n_seg[g]; k++)
      if (ps->seg[g][k].tensor == t && ps->seg[g][k].row == 0 && ps->seg[g][k].col == 0)
        ((int64_t *)exec_state(r->x, g, STATE_ACCUM))[ps->seg[g][k].flat] = llrint(ldexp(value, s->p->num.shift));
}
static int tensor_called(Rig *r, const char *name) {
  for (int i = 0; i < r->job.params.n_tensor; i++)
    if (!strcmp(params_tensor_name(&r->job.params, &r->a, i), name)) return i;
  fail_msg("no tensor %s", name);
  return -1;
}
static int expert_tensor(Rig *r, int layer, int expert) {
  return tensor_called(r, arena_printf(&r->a, "model.layers.%d.block_sparse_moe.experts.%d.w1.weight", layer, expert));
}
/* Runs the NORM instruction alone. */
static double norm_of(Rig *r, double clip, double *factor) {
  StepRun *run = &r->x->run[EXEC_TRAIN];
  UpdateArgs u = {.clip_grad = clip};
  r->x->update = &u;
  r->x->result.n_valid = 1;
  r->x->env.fault = exec_ptr(r->x, run->s, run->s->stat);
  *r->x->env.fault = 0;
  for (int i = 0; i < run->s->n_ins; i++)
    if (run->s->ins[i].kind == INS_NORM) ins_norm(r->x, run, &run->s->ins[i]);
  *factor = r->x->norm_clip;
  return r->x->result.grad_norm;
}

/* Expert gradients of norm sqrt(20) on one rank and 10 on the other: sqrt(120) in all. */
static void norm_adds_the_experts_of_all_ranks(void **state) {
  (void)state;
  static const char *const layout[][3] = {{"layout.ep=2"}, {"layout.ep=1"}, {"layout.ep=2", "optimizer.shard=false"}};
  for (int i = 0; i < 3; i++) {
    Rig r;
    double factor;
    rig_open(&r, rig_world, RIG_ODD, 0, layout[i]);
    put_gradient(&r, expert_tensor(&r, 1, 0), 2), put_gradient(&r, expert_tensor(&r, 2, 1), 4);
    put_gradient(&r, expert_tensor(&r, 1, 3), 6), put_gradient(&r, expert_tensor(&r, 2, 5), 8);
    assert_true(fabs(norm_of(&r, 0, &factor) - 10.954451150103322) < 1e-12 && factor == 1);
    rig_close(&r);
  }
}

/* Shared gradients 4 x 3.0, expert gradients 4 x 4.0: sqrt(36 + 64) = 10; shared ones are on both ranks and count once. */
static void norm_has_both_halves(void **state) {
  (void)state;
  static const char *const shared[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                       "model.layers.2.block_sparse_moe.gate.weight", "lm_head.weight"};
  static const char *const layout[][3] = {{"layout.ep=2"}, {"layout.ep=1"}, {"layout.ep=2", "optimizer.shard=false"}};
  for (int i = 0; i < 3; i++) {
    Rig r;
    double factor;
    rig_open(&r, rig_world, RIG_ODD, 0, layout[i]);
    for (int k = 0; k < 4; k++)
      put_gradient(&r, tensor_called(&r, shared[k]), 3), put_gradient(&r, expert_tensor(&r, 1 + k / 2, k + 1), -4);
    assert_true(norm_of(&r, 2.5, &factor) == 10);
    assert_true(fabs(factor - 0.25) < 1e-6);
    norm_of(&r, 20, &factor);
    assert_true(factor == 1);
    rig_close(&r);
  }
}

/* All ranks report one norm and one loss, whatever the layout and the micro-batches. */
static void results_are_the_same_everywhere(void **state) {
  (void)state;
  static const char *const run[][4] = {{"layout.ep=1", "train.micro_batch_size=1"},
                                       {"layout.ep=2", "train.micro_batch_size=2"},
                                       {"layout.ep=2", "train.micro_batch_size=3", "optimizer.shard=false"}};
  uint64_t first[3];
  for (int i = 0; i < 3; i++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0, run[i]);
    StepResult s = rig_step(&r, 1);
    uint64_t bits[3], high[3], low[3];
    memcpy(bits, (double[]){s.loss, s.grad_norm, s.loss_sum}, sizeof bits);
    assert_true(s.grad_norm > 0 && s.loss > 3 && s.n_valid == 65);
    for (int k = 0; k < 3; k++) high[k] = bits[k], low[k] = ~bits[k];
    comm_allreduce_max_u64(rig_world, AXES_WORLD, high, 3);
    comm_allreduce_max_u64(rig_world, AXES_WORLD, low, 3);
    for (int k = 0; k < 3; k++) assert_true(high[k] == bits[k] && low[k] == ~bits[k]);
    if (i == 0) memcpy(first, bits, sizeof bits);
    assert_memory_equal(first, bits, sizeof bits);
    rig_close(&r);
  }
}

/* ---- replicas ------------------------------------------------------------------------------------------------------------------------ */
static void flip_weight(Rig *r, ParamGroupId g) { ((uint32_t *)exec_state(r->x, g, STATE_WEIGHT))[5] ^= 1; }
static void replicas(void **state) {
  (void)state;
  for (int ep = 1; ep <= 2; ep++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS(ep == 1 ? "layout.ep=1" : "layout.ep=2"));
    rig_step(&r, 1);
    RIG_MUST(&r, state_check_replicas(r.x, &r.job, rig_world, &r.e));
    if (self() == 1) flip_weight(&r, PGROUP_EXPERT);
    Err e = {0};
    bool same = state_check_replicas(r.x, &r.job, rig_world, &e);
    assert_int_equal(same, ep == 2); /* with ep 2 an expert has one owner: nobody to differ from */
    if (!same) assert_non_null(strstr(e.text, "experts.0.w1"));
    if (self() == 1) flip_weight(&r, PGROUP_EXPERT), flip_weight(&r, PGROUP_SHARD);
    Err d = {0};
    assert_false(state_check_replicas(r.x, &r.job, rig_world, &d));
    assert_int_equal(d.code, ERR_MISMATCH);
    assert_non_null(strstr(d.text, "model.embed_tokens.weight"));
    rig_close(&r);
  }
}

/* ---- experts without rows, routers --------------------------------------------------------------------------------------------------- */
/* Experts from n_used on get no row: their gradients are exact zeros, and their moments and weights still move. */
static void check_unused(int n_expert, int n_used, const char *const *sets) {
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  int64_t *first = ARENA_NEW(&r.a, int64_t, r.job.params.n_tensor + 1), lo, hi;
  exec_owned(r.x, PGROUP_EXPERT, &lo, &hi);
  float *m = exec_state(r.x, PGROUP_EXPERT, STATE_M), *v = exec_state(r.x, PGROUP_EXPERT, STATE_V);
  for (int64_t i = 0; i < hi - lo; i++) m[i] = 0.5f, v[i] = 0.25f;
  uint64_t *before = gather_bits(&r, TENSOR_WEIGHT, first);
  rig_step(&r, 3);
  uint64_t *grad = gather_bits(&r, TENSOR_GRAD, first), *after = gather_bits(&r, TENSOR_WEIGHT, first);
  uint64_t *m1 = gather_bits(&r, TENSOR_M, first), *v1 = gather_bits(&r, TENSOR_V, first);
  double step = 0.9 * 0.5 / (1 - pow(0.9, 3)) / (sqrt(0.95 * 0.25 / (1 - pow(0.95, 3))) + 1e-8);
  for (int layer = 1; layer <= 2; layer++)
    for (int e = 0; e < n_expert; e++) {
      int t = expert_tensor(&r, layer, e);
      int64_t n_zero = 0;
      for (int64_t i = first[t]; i < first[t + 1]; i++) {
        n_zero += grad[i] == 0;
        if (e < n_used) continue;
        double w = real_of(before[i]);
        assert_true(fabs(real_of(m1[i]) - 0.45) < 1e-7 && fabs(real_of(v1[i]) - 0.2375) < 1e-7);
        assert_true(fabs(real_of(after[i]) - (w - 0.01 * 0.1 * w - 0.01 * step)) < 1e-6);
      }
      assert_int_equal(n_zero, e < n_used ? 0 : first[t + 1] - first[t]);
    }
  rig_close(&r);
}
static void experts_without_rows_step_too(void **state) {
  (void)state;
#define IDLE "layout.ep=2", "moe.routing=all_to_one", "optimizer.clip_grad=0"
  check_unused(6, 1, RIG_SETS(IDLE, "model.num_experts_per_tok=1"));
  check_unused(
      18, 6,
      RIG_SETS(IDLE, "model.num_experts_per_tok=6", "model.num_local_experts=18", "model.hidden_size=64", "model.intermediate_size=43"));
  check_unused(18, 6,
               RIG_SETS(IDLE, "model.num_experts_per_tok=6", "model.num_local_experts=18", "device.gemm=plain", "numerics.mode=native"));
}

/* A router without any auxiliary loss learns from the main loss, on every layout. */
static void routers_learn_from_the_main_loss(void **state) {
  (void)state;
  for (int ep = 1; ep <= 2; ep++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0,
             RIG_SETS(ep == 1 ? "layout.ep=1" : "layout.ep=2", "model.router_aux_loss_coef=0", "model.router_z_loss_coef=0"));
    int64_t *first = ARENA_NEW(&r.a, int64_t, r.job.params.n_tensor + 1);
    rig_step(&r, 1);
    uint64_t *grad = gather_bits(&r, TENSOR_GRAD, first);
    for (int layer = 1; layer <= 2; layer++) {
      int t = tensor_called(&r, arena_printf(&r.a, "model.layers.%d.block_sparse_moe.gate.weight", layer));
      for (int64_t i = first[t]; i < first[t + 1]; i++) assert_true(grad[i] != 0);
    }
    rig_close(&r);
  }
}

/* Uniform scores and balanced counts: the load-balancing loss is 1 in each layer, whatever k. */
static void aux_loss_is_one_at_balance(void **state) {
  (void)state;
  static const char *const k[] = {"model.num_experts_per_tok=1", "model.num_experts_per_tok=2", "model.num_experts_per_tok=6"};
  static const char *const scope[] = {"moe.aux_scope=sequence", "moe.aux_scope=global"};
  for (int i = 0; i < 6; i++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0,
             RIG_SETS(k[i % 3], scope[i / 3], "schedule.name=all_forward", "layout.ep=2", "moe.routing=balanced", "data.seq_length=12"));
    const ParamSet *ps = &r.job.params;
    float *w = exec_state(r.x, PGROUP_TOKEN, STATE_WEIGHT);
    for (int p = 0; p < ps->n; p++)
      if (ps->param[p].kind == PARAM_ROUTER) memset(w + ps->param[p].flat, 0, (size_t)ps->param[p].expert_stride * sizeof *w);
    StepResult s = rig_step(&r, 1);
    RouterStats stat = metrics_router(&r.job, &s);
    assert_int_equal(stat.n_layer, 2);
    assert_true(fabs(stat.aux - 2) < 1e-6 && fabs(stat.load_max - 1) < 1e-12);
    assert_true(fabs(stat.z - 2 * log(6) * log(6)) < 1e-5);
    rig_close(&r);
  }
}

/* ---- nothing to learn from; two runs ------------------------------------------------------------------------------------------------- */
static void no_label_moves_nothing(void **state) {
  (void)state;
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("layout.ep=2", "memory.guard=true"));
  rig_step(&r, 1);
  uint64_t before[N_TENSOR_VIEW];
  for (int v = 0; v < N_TENSOR_VIEW; v++) before[v] = rig_hash(&r, v);
  rig_fill(&r, EXEC_TRAIN, 5);
  for (int64_t i = 0; i < deal_rank(&r.job.train.deal, r.job.place.dp).n * 13; i++) exec_labels(r.x, EXEC_TRAIN)[i] = -100;
  UpdateArgs u = rig_update(&r, 2);
  StepResult s;
  exec_run(r.x, EXEC_TRAIN, &u, &s);
  assert_true(s.n_valid == 0 && s.loss == 0 && s.grad_norm == 0 && !s.fault);
  for (int v = 0; v < N_TENSOR_VIEW; v++)
    if (v != TENSOR_GRAD) assert_true(rig_hash(&r, v) == before[v]);
  rig_close(&r);
}

static void two_runs_in_one_process_agree(void **state) {
  (void)state;
  uint64_t hash[2][N_TENSOR_VIEW];
  for (int i = 0; i < 2; i++) {
    Rig r;
    rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("layout.ep=2"));
    for (int64_t t = 1; t <= 3; t++) rig_step(&r, t);
    for (int v = 0; v < N_TENSOR_VIEW; v++) hash[i][v] = rig_hash(&r, v);
    rig_close(&r);
  }
  assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
}

static int run(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(initial_values_are_distinct),        cmocka_unit_test(initial_values_do_not_know_the_layout),
      cmocka_unit_test(norm_adds_the_experts_of_all_ranks), cmocka_unit_test(norm_has_both_halves),
      cmocka_unit_test(results_are_the_same_everywhere),    cmocka_unit_test(replicas),
      cmocka_unit_test(experts_without_rows_step_too),      cmocka_unit_test(routers_learn_from_the_main_loss),
      cmocka_unit_test(aux_loss_is_one_at_balance),         cmocka_unit_test(no_label_moves_nothing),
      cmocka_unit_test(two_runs_in_one_process_agree)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run); }
