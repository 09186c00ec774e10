/* The gradient of the whole model in FP64: against finite differences of its own loss, and against the straight-line second opinion. */
#include <math.h>

#include "golden/straight.h"
#include "unit/train_rig.h"

/* ---- finite differences -------------------------------------------------------------------------------------------------------------- */
static double total_loss(Rig *r) {
  UpdateArgs u = {.lr = 0, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .t = 1};
  StepResult result;
  exec_run(r->x, EXEC_TRAIN, &u, &result);
  assert_false(result.fault);
  RouterStats s = metrics_router(&r->job, &result);
  const ModelConfig *m = &r->doc.c.model;
  return result.loss + m->router_aux_loss_coef * s.aux + m->router_z_loss_coef * s.z;
}

/* d total / d x by Richardson's extrapolation of two central differences: error O(h^4). */
static double slope(Rig *r, double *x, double h) {
  double at = *x, d[2];
  for (int i = 0; i < 2; i++) {
    double step = i ? h / 2 : h;
    *x = at + step;
    double up = total_loss(r);
    *x = at - step;
    d[i] = (up - total_loss(r)) / (2 * step);
  }
  *x = at;
  return (4 * d[1] - d[0]) / 3;
}

/* The elements of a piece that are tried: its largest gradient, and one more. */
static int tried(const double *grad, int64_t n, int piece, int64_t *out) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (fabs(grad[i]) > fabs(grad[best])) best = i;
  out[0] = best, out[1] = (piece * 7919 + 3) % n;
  return 2;
}

/* Half of the labels of one sequence do not count. */
static void check_slopes(const char *const *sets) {
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  rig_fill(&r, EXEC_TRAIN, 0);
  for (int i = 0; i < 6; i++) exec_labels(r.x, EXEC_TRAIN)[13 + i] = -100;
  total_loss(&r);
  StatePiece *grad, *weight;
  int n = state_pieces(r.x, &r.job, &r.a, TENSOR_GRAD, PIECES_OWNED, &grad),
      m = state_pieces(r.x, &r.job, &r.a, TENSOR_WEIGHT, PIECES_OWNED, &weight), n_far = 0;
  assert_int_equal(n, m);
  for (int k = 0; k < n; k++) {
    int64_t size = grad[k].n_row * grad[k].n_col, element[2];
    double *g = grad[k].data, *w = weight[k].data;
    int count = tried(g, size, k, element);
    for (int i = 0; i < count; i++) {
      double s = slope(&r, &w[element[i]], 2e-5), error = fabs(s - g[element[i]]);
      if (error <= 1e-8 + 1e-6 * fabs(s)) continue;
      print_message("%s[%lld]: gradient %.12g, slope %.12g\n", params_tensor_name(&r.job.params, &r.a, grad[k].tensor),
                    (long long)element[i], g[element[i]], s);
      n_far++;
    }
  }
  assert_int_equal(n_far, 0);
  rig_close(&r);
}
static void slopes_learned(void **state) {
  (void)state;
  check_slopes(RIG_SETS("numerics.dtype=fp64", "train.global_batch_size=2", "numerics.shards=1", "model.num_hidden_layers=2",
                        "train.micro_batch_size=1"));
}
static void slopes_tied_window_global(void **state) {
  (void)state;
  check_slopes(RIG_SETS("numerics.dtype=fp64", "train.global_batch_size=2", "numerics.shards=1", "model.num_hidden_layers=2",
                        "model.tie_word_embeddings=true", "model.sliding_window=5", "model.norm_topk_prob=false", "moe.aux_scope=global",
                        "schedule.name=all_forward", "model.router_aux_loss_coef=0.5", "train.micro_batch_size=1"));
}

/* ---- second opinion ------------------------------------------------------------------------------------------------------------------ */
static bool weight_of(void *ctx, const char *name, int64_t rows, int64_t cols, double *out, Err *e) {
  Rig *r = ctx;
  StatePiece *piece;
  int64_t found = 0;
  int n = state_pieces(r->x, &r->job, &r->a, TENSOR_WEIGHT, PIECES_OWNED, &piece);
  for (int k = 0; k < n; k++) {
    const StatePiece *p = &piece[k];
    if (strcmp(name, params_tensor_name(&r->job.params, &r->a, p->tensor))) continue;
    for (int64_t i = 0; i < p->n_row * p->n_col; i++)
      out[(p->row + i / p->n_col) * cols + p->col + i % p->n_col] = ((const double *)p->data)[i];
    found += p->n_row * p->n_col;
  }
  return found == rows * cols || err_set(e, ERR_BUG, "%s: %lld of %lld elements", name, (long long)found, (long long)(rows * cols));
}

static StraightConfig straight_config(const Config *c) {
  const ModelConfig *m = &c->model;
  return (StraightConfig){.vocab = m->vocab_size,
                          .hidden = m->hidden_size,
                          .layers = m->num_hidden_layers,
                          .heads = m->num_attention_heads,
                          .kv_heads = m->num_key_value_heads,
                          .head_dim = m->head_dim,
                          .experts = m->num_local_experts,
                          .top_k = m->num_experts_per_tok,
                          .ffn = config_ffn_expert(m),
                          .dense_ffn = m->intermediate_size,
                          .first_dense = m->first_k_dense_replace,
                          .window = m->sliding_window,
                          .theta = m->rope_theta,
                          .eps = m->rms_norm_eps,
                          .norm_topk = m->norm_topk_prob,
                          .tied = m->tie_word_embeddings,
                          .aux_coeff = m->router_aux_loss_coef,
                          .z_coeff = m->router_z_loss_coef};
}

static void same_tensors(Rig *r, Straight *s, TensorView v, int64_t step) {
  int n_param;
  StraightParam *p = straight_params(s, &n_param);
  assert_int_equal(n_param, r->job.params.n_tensor);
  StatePiece *piece;
  int n = state_pieces(r->x, &r->job, &r->a, v, PIECES_OWNED, &piece);
  for (int i = 0; i < n_param; i++) {
    double diff = 0, size = 0;
    for (int k = 0; k < n; k++) {
      const StatePiece *q = &piece[k];
      if (strcmp(p[i].name, params_tensor_name(&r->job.params, &r->a, q->tensor))) continue;
      const double *other = v == TENSOR_GRAD ? p[i].grad : v == TENSOR_M ? p[i].m : v == TENSOR_V ? p[i].v : p[i].w;
      for (int64_t j = 0; j < q->n_row * q->n_col; j++) {
        double y = other[(q->row + j / q->n_col) * p[i].cols + q->col + j % q->n_col];
        diff += (((double *)q->data)[j] - y) * (((double *)q->data)[j] - y), size += y * y;
      }
    }
    if (!(sqrt(diff) <= 1e-11 * sqrt(size)))
      fail_msg("step %lld: view %d of %s differs by %.3g, relative L2", (long long)step, v, p[i].name, sqrt(diff / size));
  }
}

static void compare(const char *const *sets) {
  Rig r;
  Straight *s;
  rig_open(&r, rig_world, RIG_ODD, 0, sets);
  const Config *c = &r.doc.c;
  StraightConfig model = straight_config(c);
  RIG_MUST(&r, straight_open(&s, &r.a, &model, weight_of, &r, &r.e));
  int64_t B = c->train.global_batch_size, S = c->data.seq_length, token[B * S], label[B * S];
  for (int64_t t = 1; t <= 3; t++) {
    UpdateArgs u = rig_update(&r, t);
    StraightOptim o = {u.lr, u.beta1, u.beta2, u.eps, u.weight_decay, u.clip_grad};
    StraightStep out;
    StepResult mine;
    rig_fill(&r, EXEC_TRAIN, t * B);
    exec_labels(r.x, EXEC_TRAIN)[t] = -100; /* the count of labels differs from that of tokens */
    for (int64_t i = 0; i < B * S; i++) token[i] = exec_tokens(r.x, EXEC_TRAIN)[i], label[i] = exec_labels(r.x, EXEC_TRAIN)[i];
    exec_run(r.x, EXEC_TRAIN, &u, &mine);
    straight_step(s, &r.a, token, label, B, S, &out);
    double norm = straight_update(s, &o);
    assert_int_equal(mine.n_valid, out.n_valid);
    assert_true(fabs(mine.loss - out.ce) <= 1e-11 * out.ce);
    assert_true(fabs(mine.grad_norm - norm) <= 1e-11 * norm);
    RouterStats stat = metrics_router(&r.job, &mine);
    assert_true(fabs(stat.aux - out.aux) <= 1e-11 * out.aux && fabs(stat.z - out.z) <= 1e-10 * out.z);
    for (int v = 0; v < N_TENSOR_VIEW; v++) same_tensors(&r, s, v, t);
  }
  rig_close(&r);
}

#define ORACLE_OF_BATCH "numerics.dtype=fp64", "moe.aux_scope=global", "schedule.name=all_forward"
static void straight_odd_heads(void **state) {
  (void)state;
  compare(RIG_SETS(ORACLE_OF_BATCH, "model.num_attention_heads=6", "model.num_key_value_heads=3", "model.head_dim=4",
                   "model.num_local_experts=5", "model.num_experts_per_tok=3", "model.moe_intermediate_size=11",
                   "model.norm_topk_prob=false", "train.global_batch_size=3"));
}
static void straight_tied_window(void **state) {
  (void)state;
  compare(RIG_SETS(ORACLE_OF_BATCH, "model.tie_word_embeddings=true", "model.sliding_window=4", "model.num_experts_per_tok=1",
                   "model.norm_topk_prob=false", "train.global_batch_size=2", "optimizer.clip_grad=0.05", "model.rope_theta=500"));
}
static void straight_dense(void **state) {
  (void)state;
  compare(RIG_SETS("numerics.dtype=fp64", "model.model_type=llama", "model.num_local_experts=0", "model.first_k_dense_replace=0",
                   "train.global_batch_size=2", "model.num_key_value_heads=1", "optimizer.weight_decay=0.3"));
}

static int run(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(slopes_learned), cmocka_unit_test(slopes_tied_window_global),
                                     cmocka_unit_test(straight_odd_heads), cmocka_unit_test(straight_tied_window),
                                     cmocka_unit_test(straight_dense)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run); }
