/* The straight-line second opinion against the PyTorch oracle: every llama and mixtral golden file, or those named on the command line. */
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/golden.h"
#include "golden/straight.h"

static const double TOLERANCE = 1e-11; /* relative L2, float64 against float64 */

typedef struct Bench {
  Arena a;
  Golden *g;
  Straight *s;
  double floor; /* per element: what a smaller tensor is compared with (a gradient that is zero by its formula is rounding in the file) */
  Err e;
} Bench;

#define MUST(b, call)                                                                                                                      \
  do {                                                                                                                                     \
    if (!(call)) fail_msg("%s", (b)->e.text);                                                                                              \
  } while (0)

static bool weight_of(void *ctx, const char *name, int64_t rows, int64_t cols, double *out, Err *e) {
  char path[512];
  snprintf(path, sizeof path, "weights/%s", name);
  return golden_read_f64(ctx, path, out, rows * cols, e);
}

static StraightConfig model_of(const GoldenConfig *c) {
  return (StraightConfig){.vocab = c->vocab,
                          .hidden = c->hidden,
                          .layers = c->layers,
                          .heads = c->heads,
                          .kv_heads = c->kv_heads,
                          .head_dim = c->head_dim,
                          .experts = strcmp(c->family, "llama") ? c->experts : 0,
                          .top_k = c->top_k,
                          .ffn = c->ffn,
                          .dense_ffn = c->dense_ffn,
                          .first_dense = c->first_dense,
                          .window = c->sliding_window,
                          .theta = c->rope_theta,
                          .eps = c->norm_eps,
                          .norm_topk = c->norm_topk,
                          .tied = c->tied,
                          .aux_coeff = c->aux_coeff,
                          .z_coeff = c->z_coeff};
}

static void near(const Bench *b, const char *file, const char *what, const double *x, const double *golden, int64_t n) {
  double diff = 0, size = 0, least = b->floor * b->floor * (double)n;
  for (int64_t i = 0; i < n; i++) {
    diff += (x[i] - golden[i]) * (x[i] - golden[i]);
    size += golden[i] * golden[i];
  }
  if (!(sqrt(diff) <= TOLERANCE * sqrt(fmax(size, least)))) fail_msg("%s: %s differs by %.3g, relative L2", file, what, sqrt(diff / size));
}

static void near_stored(Bench *b, const char *file, const char *path, const double *x, int64_t n) {
  ArenaMark m = arena_mark(&b->a);
  double *golden = ARENA_NEW(&b->a, double, n);
  MUST(b, golden_read_f64(b->g, path, golden, n, &b->e));
  near(b, file, path, x, golden, n);
  arena_release(&b->a, m);
}

static void check_params(Bench *b, const char *file, const char *group, bool grads) {
  int n, n_stored;
  StraightParam *p = straight_params(b->s, &n);
  golden_weights(b->g, &n_stored);
  assert_int_equal(n, n_stored); /* no tensor of the file is left unread */
  for (int i = 0; i < n; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", group, p[i].name);
    near_stored(b, file, path, grads ? p[i].grad : p[i].w, p[i].rows * p[i].cols);
  }
}

static const char *layer_path(char path[64], int64_t layer, const char *what) {
  snprintf(path, 64, "step1/layers/%lld/%s", (long long)layer, what);
  return path;
}

static void check_route(Bench *b, const char *file, int64_t layer, const StraightRoute *r, const GoldenConfig *c) {
  int64_t T = c->batch * c->seq, n = T * c->top_k;
  int64_t *golden = ARENA_NEW(&b->a, int64_t, n + c->experts);
  char p[64];
  MUST(b, golden_read_i64(b->g, layer_path(p, layer, "topk_idx"), golden, n, &b->e));
  MUST(b, golden_read_i64(b->g, layer_path(p, layer, "counts"), golden + n, c->experts, &b->e));
  for (int64_t i = 0; i < n; i++)
    if (r->choice[i] != golden[i])
      fail_msg("%s: layer %lld, choice %lld: %lld, not %lld", file, (long long)layer, (long long)i, (long long)r->choice[i],
               (long long)golden[i]);
  assert_memory_equal(r->counts, golden + n, (size_t)c->experts * sizeof *golden);
  near_stored(b, file, layer_path(p, layer, "topk_weight"), r->weight, n);
  near_stored(b, file, layer_path(p, layer, "router_logits"), r->logits, T * c->experts);
}

/* Root mean square of all gradients of the first step. */
static double gradient_size(Bench *b) {
  int n;
  double size = 0, count = 0;
  StraightParam *p = straight_params(b->s, &n);
  for (int i = 0; i < n; i++) {
    int64_t elements = p[i].rows * p[i].cols;
    for (int64_t j = 0; j < elements; j++) size += p[i].grad[j] * p[i].grad[j];
    count += (double)elements;
  }
  return sqrt(size / count);
}

static void check_step1(Bench *b, const char *file, const StraightStep *out) {
  const GoldenConfig *c = golden_config(b->g);
  int64_t T = c->batch * c->seq;
  near_stored(b, file, "step1/loss/ce", &out->ce, 1);
  near_stored(b, file, "step1/loss/aux", &out->aux, 1);
  near_stored(b, file, "step1/loss/z", &out->z, 1);
  near_stored(b, file, "step1/loss/total", &out->total, 1);
  near_stored(b, file, "step1/logits", out->logits, T * c->vocab);
  for (int64_t i = 0; i < c->layers; i++) {
    char path[64];
    near_stored(b, file, layer_path(path, i, "attn_out"), out->attn_out[i], T * c->hidden);
    near_stored(b, file, layer_path(path, i, "hidden"), out->hidden[i], T * c->hidden);
    assert_int_equal(out->route[i].choice != NULL, golden_has(b->g, layer_path(path, i, "topk_idx")));
    if (out->route[i].choice) check_route(b, file, i, &out->route[i], c);
  }
  b->floor = 1e-3 * gradient_size(b);
  check_params(b, file, "step1/grads", true);
  b->floor = 0;
}

static void check_file(Bench *b, const char *file) {
  MUST(b, golden_open(&b->g, &b->a, file, &b->e));
  const GoldenConfig *c = golden_config(b->g);
  StraightConfig model = model_of(c);
  StraightOptim optim = {c->lr, c->beta1, c->beta2, c->eps, c->weight_decay, c->clip};
  int64_t T = c->batch * c->seq;
  int64_t *tokens = ARENA_NEW(&b->a, int64_t, T), *labels = ARENA_NEW(&b->a, int64_t, T);
  double *ce = ARENA_NEW(&b->a, double, c->steps), *norm = ARENA_NEW(&b->a, double, c->steps);
  MUST(b, straight_open(&b->s, &b->a, &model, weight_of, b->g, &b->e));
  for (int64_t step = 1; step <= c->steps; step++) {
    ArenaMark m = arena_mark(&b->a);
    char path[64];
    StraightStep out;
    snprintf(path, sizeof path, "steps/%lld/tokens", (long long)step);
    MUST(b, golden_read_i64(b->g, path, tokens, T, &b->e));
    snprintf(path, sizeof path, "steps/%lld/labels", (long long)step);
    MUST(b, golden_read_i64(b->g, path, labels, T, &b->e));
    straight_step(b->s, &b->a, tokens, labels, c->batch, c->seq, &out);
    if (step == 1) check_step1(b, file, &out);
    ce[step - 1] = out.ce;
    norm[step - 1] = straight_update(b->s, &optim);
    if (step == 1) check_params(b, file, "after_step1", false);
    arena_release(&b->a, m);
  }
  check_params(b, file, "after_last", false);
  near_stored(b, file, "train/ce", ce, c->steps);
  near_stored(b, file, "train/grad_norm", norm, c->steps);
  golden_close(b->g);
}

static void one_file(void **state) {
  Bench b = {0};
  arena_open(&b.a, "straight", (size_t)64 << 20);
  check_file(&b, *state);
  arena_close(&b.a);
}

/* Without a valid label there is nothing to learn: loss and gradients are zero, not NaN. */
static void no_valid_label(void **state) {
  (void)state;
  Bench b = {0};
  arena_open(&b.a, "straight", (size_t)64 << 20);
  MUST(&b, golden_open(&b.g, &b.a, SOURCE_DIR "/tests/golden/mixtral.h5", &b.e));
  StraightConfig model = model_of(golden_config(b.g));
  MUST(&b, straight_open(&b.s, &b.a, &model, weight_of, b.g, &b.e));
  int64_t tokens[4] = {1, 2, 3, 4}, labels[4] = {-100, -100, -100, -100};
  StraightStep out;
  straight_step(b.s, &b.a, tokens, labels, 2, 2, &out);
  assert_int_equal(out.n_valid, 0);
  assert_true(out.ce == 0);
  StraightOptim plain = {.lr = 0, .eps = 1};
  assert_true(straight_update(b.s, &plain) == 0);
  golden_close(b.g);
  arena_close(&b.a);
}

int main(int argc, char **argv) {
  static const char *const MINE[] = {"llama", "mixtral"};
  enum { MAX = 64 };
  struct CMUnitTest tests[MAX + 1] = {cmocka_unit_test(no_valid_label)};
  glob_t found = {0};
  size_t n = 1;
  for (int i = 0; i < 2 && argc == 1; i++) {
    char pattern[512];
    snprintf(pattern, sizeof pattern, "%s/tests/golden/%s*.h5", SOURCE_DIR, MINE[i]);
    glob(pattern, i ? GLOB_APPEND : 0, NULL, &found);
  }
  char **file = argc > 1 ? argv + 1 : found.gl_pathv;
  size_t n_file = argc > 1 ? (size_t)argc - 1 : found.gl_pathc;
  if (argc == 1 && n_file < 4)
    return fprintf(stderr, "%zu golden files in %s/tests/golden; 4 or more are expected\n", n_file, SOURCE_DIR), 1;
  for (size_t i = 0; i < n_file && n <= MAX; i++) tests[n++] = (struct CMUnitTest){strrchr(file[i], '/'), one_file, NULL, NULL, file[i]};
  int rc = _cmocka_run_group_tests("straight", tests, n, NULL, NULL);
  globfree(&found);
  return rc;
}
