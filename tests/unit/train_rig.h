/* A run inside a test: configuration text -> plan -> exec, on tokens that follow from (sequence, position) alone. */
#ifndef ETALON_TEST_TRAIN_RIG_H
#define ETALON_TEST_TRAIN_RIG_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/metrics.h"
#include "train/feed.h"
#include "train/state.h"

/* Sizes that nothing divides, as in tests/parity/spine.yaml. */
#define RIG_ODD                                                                                                                            \
  "model: {model_type: mixtral, vocab_size: 97, hidden_size: 16, num_hidden_layers: 3, first_k_dense_replace: 1, num_attention_heads: "    \
  "4,\n"                                                                                                                                   \
  "        num_key_value_heads: 2, intermediate_size: 20, num_local_experts: 6, num_experts_per_tok: 2, initializer_range: 0.1,\n"         \
  "        router_aux_loss_coef: 0.02, router_z_loss_coef: 0.003}\n"                                                                       \
  "numerics: {window: 4, shards: 3}\n"                                                                                                     \
  "data: {seq_length: 13}\n"                                                                                                               \
  "train: {global_batch_size: 5, micro_batch_size: 2, train_iters: 6}\n"                                                                   \
  "optimizer: {lr: 1e-2}\n"

enum { RIG_MAX_SETS = 32 };
typedef struct Rig {
  Arena a;
  ConfigDoc doc;
  Device device;
  Job job;
  World *world; /* NULL: planned only */
  Exec *x;
  Err e;
} Rig;

#define RIG_MUST(r, call)                                                                                                                  \
  do {                                                                                                                                     \
    if (!(call)) fail_msg("%s", (r)->e.text);                                                                                              \
  } while (0)

static inline bool rig_read(Rig *r, const char *text, int world, const char *const *sets) {
  int n = 0;
  while (sets[n]) n++;
  return config_read_text(&r->doc, &r->a, "test.yaml", text, sets, n, &r->e) && config_resolve(&r->doc, world, &r->e);
}

/* What one rank of a world would do, without MPI. sets: "key=value", NULL at the end. */
static inline void rig_plan(Rig *r, const char *text, int world, int rank, int64_t n_valid, const char *const *sets) {
  static const char *const gemm[] = {[GEMM_AUTO] = "auto", [GEMM_ONEDNN] = "onednn", [GEMM_PLAIN] = "plain"};
  *r = (Rig){0};
  arena_open(&r->a, "rig", (size_t)1 << 30);
  RIG_MUST(r, rig_read(r, text, world, sets));
  const Config *c = &r->doc.c;
  RIG_MUST(r, device_open(&r->device, c->device.name, gemm[c->device.gemm], (int)c->device.threads, 7, &r->e));
  RIG_MUST(r, job_plan(&r->job, &r->a, c, world, rank, &r->device, n_valid, &r->e));
}

/* Collective: ready to run, with initial weights. */
static inline void rig_open(Rig *r, World *w, const char *text, int64_t n_valid, const char *const *sets) {
  rig_plan(r, text, world_size(w), world_rank(w), n_valid, sets);
  r->world = w;
  RIG_MUST(r, world_set_mesh(w, &r->a, &r->job.mesh, &r->e));
  RIG_MUST(r, job_open_exec(&r->job, w, &r->x, &r->e));
  state_init(r->x, &r->job);
}

static inline void rig_close(Rig *r) {
  exec_close(r->x);
  if (r->device.ops) device_close(&r->device);
  arena_close(&r->a);
}

static inline int32_t rig_token(const Rig *r, int64_t sequence, int64_t position) {
  RngKey key = {.seed = 11, .stream = (uint64_t)sequence, .purpose = RNG_TEST};
  return (int32_t)rng_below(key, (uint64_t)position, (uint64_t)r->doc.c.model.vocab_size);
}

/* Sequence s of the step is sequence first + s of the test's data. */
typedef struct RigFeed { const Rig *r; int64_t first; } RigFeed;
static inline bool rig_fetch(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  (void)e;
  const RigFeed *f = ctx;
  for (int64_t t = 0; t < f->r->job.train.deal.seq_length; t++) {
    token[t] = rig_token(f->r, f->first + seq, t);
    label[t] = rig_token(f->r, f->first + seq, t + 1);
  }
  return true;
}
static inline void rig_fill(Rig *r, int which, int64_t first) {
  RigFeed f = {r, first};
  RIG_MUST(r, feed_step(r->x, &r->job, which, rig_fetch, &f, &r->e));
}

static inline UpdateArgs rig_update(const Rig *r, int64_t t) {
  const Config *c = &r->doc.c;
  return (UpdateArgs){.lr = c->optimizer.lr,
                      .beta1 = c->optimizer.adam_beta1,
                      .beta2 = c->optimizer.adam_beta2,
                      .eps = c->optimizer.adam_eps,
                      .weight_decay = c->optimizer.weight_decay,
                      .clip_grad = c->optimizer.clip_grad,
                      .t = t};
}

/* Step t (from 1) on the t-th global batch. */
static inline StepResult rig_step(Rig *r, int64_t t) {
  UpdateArgs u = rig_update(r, t);
  StepResult result;
  rig_fill(r, EXEC_TRAIN, (t - 1) * r->job.train.deal.n_seq);
  exec_run(r->x, EXEC_TRAIN, &u, &result);
  return result;
}

static inline uint64_t rig_hash(Rig *r, TensorView v) {
  ArenaMark m = arena_mark(&r->a);
  uint64_t *hash = ARENA_NEW(&r->a, uint64_t, r->job.params.n_tensor);
  state_hash(r->x, &r->job, r->world, v, hash);
  uint64_t all = state_hash_all(&r->job, hash);
  arena_release(&r->a, m);
  return all;
}

/* Element of a piece, as a double. */
static inline double rig_real(const Rig *r, const void *data, int64_t i) {
  return dtype_get(data, job_real(&r->doc.c), i);
}

/* The world of an MPI test; the tests run, then the exit code is agreed on. */
static World *rig_world;
static inline int rig_main(int argc, char **argv, int (*run)(void)) {
  Arena a;
  Err e = {0};
  arena_open(&a, "world", (size_t)1 << 28);
  if (!world_open(&rig_world, &a, &argc, &argv, &e)) return fprintf(stderr, "%s\n", e.text), 1;
  if (run()) err_set(&e, ERR_BUG, "tests failed on rank %d", world_rank(rig_world));
  world_agree(rig_world, &e);
  return world_close(rig_world, &e);
}
#define RIG_SETS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
#endif
