#include "train/golden_verb.h"

#include <string.h>

#include "ckpt/golden_write.h"
#include "train/collect.h"
#include "train/feed.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/setup.h"
#include "train/state.h"
#include "train/weights.h"

typedef struct GoldenRun {
  World *world;
  Arena *arena;
  const Config *c;
  Setup s;
  TokenFile data;
  Sampler sampler;
  GoldenOut *out;
  Collect values;
  int64_t consumed;  /* samples before the first step */
  double *ce, *norm; /* [steps] */
} GoldenRun;

/* ---- configuration --------------------------------------------------------------------------------------------------------------- */
const char *const *golden_verb_sets(Arena *a, int n_step, int *n) {
  static const char *const fixed[] = {"numerics.dtype=fp64",         "device.gemm=auto",           "schedule.name=all_forward",
                                      "moe.aux_scope=global",        "moe.routing=learned",        "optimizer.lr_decay_style=constant",
                                      "optimizer.lr_warmup_iters=0", "optimizer.lr_decay_iters=0", "optimizer.lr_wsd_decay_iters=0"};
  enum { N_FIXED = sizeof fixed / sizeof *fixed };
  const char **set = ARENA_NEW(a, const char *, N_FIXED + 1);
  memcpy(set, fixed, sizeof fixed);
  set[N_FIXED] = arena_printf(a, "train.train_iters=%d", n_step);
  *n = N_FIXED + 1;
  return set;
}

static bool expressible(const Config *c, Err *e) {
  if (c->optimizer.lr_decay_style != DECAY_CONSTANT || c->optimizer.lr_warmup_iters)
    return err_set(e, ERR_CONFIG, "optimizer.lr_decay_style, optimizer.lr_warmup_iters: a golden file has one constant learning rate");
  if (c->model.num_local_experts && c->model.router_aux_loss_coef > 0 && c->moe.aux_scope != AUX_GLOBAL)
    return err_set(e, ERR_CONFIG, "moe.aux_scope: in a golden file the auxiliary loss is that of the whole batch; allowed: global");
  if (c->moe.routing != ROUTE_LEARNED) return err_set(e, ERR_CONFIG, "moe.routing: in a golden file the router chooses; allowed: learned");
  return true;
}

/* Keys that no family here reads have the oracle's defaults. */
static GoldenConfig config_of(const Config *c) {
  const ModelConfig *m = &c->model;
  GoldenConfig g = {.family = config_word(c, "model.model_type"),
                    .vocab = m->vocab_size,
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
                    .rope_theta = m->rope_theta,
                    .norm_eps = m->rms_norm_eps,
                    .tied = m->tie_word_embeddings,
                    .sliding_window = m->sliding_window,
                    .q_lora = 12,
                    .kv_lora = 8,
                    .rope_dim = 4,
                    .nope_dim = 6,
                    .v_dim = 6,
                    .n_group = 1,
                    .topk_group = 1,
                    .routed_scale = 1,
                    .norm_topk = m->norm_topk_prob,
                    .swiglu_limit = 7,
                    .swiglu_alpha = 1.702,
                    .aux_form = "switch",
                    .batch = c->train.global_batch_size,
                    .seq = c->data.seq_length,
                    .seed = c->train.seed % 1000000007,
                    .steps = c->train.train_iters,
                    .init_std = m->initializer_range,
                    .bias_std = 0.3,
                    .lr = c->optimizer.lr,
                    .beta1 = c->optimizer.adam_beta1,
                    .beta2 = c->optimizer.adam_beta2,
                    .eps = c->optimizer.adam_eps,
                    .weight_decay = c->optimizer.weight_decay,
                    .clip = c->optimizer.clip_grad};
  if (m->num_local_experts) g.aux_coeff = m->router_aux_loss_coef, g.z_coeff = m->router_z_loss_coef;
  return g;
}

static const char *numerics_of(const Config *c, Arena *a) {
  return arena_printf(a, "numerics.mode=%s numerics.dtype=%s numerics.window=%lld numerics.shards=%lld", config_word(c, "numerics.mode"),
                      config_word(c, "numerics.dtype"), (long long)c->numerics.window, (long long)c->numerics.shards);
}

/* ---- numbers out ----------------------------------------------------------------------------------------------------------------- */
static void add_piece(uint64_t *bits, const StatePiece *p, int64_t cols) {
  for (int64_t r = 0; r < p->n_row; r++)
    for (int64_t c = 0; c < p->n_col; c++) {
      double x = dtype_get(p->data, p->type, r * p->n_col + c);
      memcpy(&bits[(p->row + r) * cols + p->col + c], &x, sizeof x);
    }
}

/* Every tensor of a view. An element has one owner, so a sum of bit patterns brings all together. */
static bool put_tensors(GoldenRun *g, TensorView v, const char *group, Err *e) {
  Arena *a = g->arena;
  const Job *j = &g->s.job;
  ArenaMark mark = arena_mark(a);
  StatePiece *piece;
  int n = state_pieces(g->s.x, j, a, v, PIECES_OWNED, &piece);
  for (int t = 0; t < j->params.n_tensor; t++) {
    ArenaMark each = arena_mark(a);
    const Param *p = params_of_tensor(&j->params, t);
    int64_t dims[2] = {p->n_out, p->n_in}, size = p->n_out * p->n_in;
    uint64_t *bits = ARENA_NEW(a, uint64_t, size);
    for (int k = 0; k < n; k++)
      if (piece[k].tensor == t) add_piece(bits, &piece[k], p->n_in);
    comm_allreduce_u64(g->world, AXES_WORLD, bits, size);
    double *real = ARENA_NEW(a, double, size);
    memcpy(real, bits, (size_t)size * sizeof *real);
    golden_put_f64(g->out, arena_printf(a, "%s/%s", group, params_tensor_name(&j->params, a, t)), p->n_dim, dims + 2 - p->n_dim, real, e);
    arena_release(a, each);
  }
  arena_release(a, mark);
  return world_agree(g->world, e);
}

static void put_scalar(GoldenRun *g, const char *name, double v, Err *e) { golden_put_f64(g->out, name, 0, NULL, &v, e); }

static void put_losses(GoldenRun *g, const StepResult *r, Err *e) {
  RouterStats s = metrics_router(&g->s.job, r);
  put_scalar(g, "step1/loss/ce", r->loss, e);
  put_scalar(g, "step1/loss/aux", s.aux, e);
  put_scalar(g, "step1/loss/z", s.z, e);
  put_scalar(g, "step1/loss/total", r->loss + g->c->model.router_aux_loss_coef * s.aux + g->c->model.router_z_loss_coef * s.z, e);
}

/* A router's counts: how often each expert is among the choices. */
static void put_counts(GoldenRun *g, const Collected *idx, Err *e) {
  int64_t E = g->c->model.num_local_experts, *count = ARENA_NEW(g->arena, int64_t, E);
  for (int64_t i = 0; i < g->values.n_token * idx->width; i++) count[idx->bits[i]]++;
  golden_put_i64(g->out, arena_printf(g->arena, "step1/layers/%d/counts", idx->layer), 1, &E, count, e);
}

static void put_values(GoldenRun *g, Err *e) {
  Collect *c = &g->values;
  collect_gather(c, g->world);
  for (int i = 0; i < c->n; i++) {
    ArenaMark mark = arena_mark(g->arena);
    const Collected *x = &c->item[i];
    /* The oracle's shapes: [T, n] inside an MoE block, [batch, seq, n] outside. */
    bool moe = !strncmp(x->row->value, "moe.", 4);
    int64_t dims[3] = {moe ? c->n_token : g->c->train.global_batch_size, moe ? x->width : g->c->data.seq_length, x->width};
    const char *name = x->layer < 0 ? arena_printf(g->arena, "step1/%s", x->row->stored)
                                    : arena_printf(g->arena, "step1/layers/%d/%s", x->layer, x->row->stored);
    void *copy = ARENA_NEW(g->arena, uint64_t, c->n_token * x->width);
    memcpy(copy, x->bits, (size_t)(c->n_token * x->width) * sizeof(uint64_t));
    if (x->integer)
      golden_put_i64(g->out, name, 2, dims, copy, e);
    else
      golden_put_f64(g->out, name, moe ? 2 : 3, dims, copy, e);
    if (!strcmp(x->row->stored, "topk_idx")) put_counts(g, x, e);
    arena_release(g->arena, mark);
  }
}

typedef struct Stored {
  const int32_t *token, *label;
  int64_t seq;
} Stored;
static bool fetch_stored(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  (void)e;
  const Stored *s = ctx;
  memcpy(token, s->token + seq * s->seq, (size_t)s->seq * sizeof *token);
  memcpy(label, s->label + seq * s->seq, (size_t)s->seq * sizeof *label);
  return true;
}

/* ---- steps ----------------------------------------------------------------------------------------------------------------------- */
/* The whole batch of a step, on every rank; then the rank's share as input of exec. */
static bool feed(GoldenRun *g, int64_t step, Err *e) {
  ArenaMark mark = arena_mark(g->arena);
  int64_t B = g->c->train.global_batch_size, S = g->c->data.seq_length, dims[2] = {B, S};
  int32_t *token = ARENA_NEW(g->arena, int32_t, B * S), *label = ARENA_NEW(g->arena, int32_t, B * S);
  bool ok = true;
  for (int64_t b = 0; b < B && ok; b++) ok = sampler_fetch(&g->sampler, g->consumed + (step - 1) * B + b, token + b * S, label + b * S, e);
  TRY(world_agree(g->world, e));
  int64_t *wide = ARENA_NEW(g->arena, int64_t, B * S);
  for (int k = 0; k < 2; k++) {
    for (int64_t i = 0; i < B * S; i++) wide[i] = k ? label[i] : token[i];
    golden_put_i64(g->out, arena_printf(g->arena, "steps/%lld/%s", (long long)step, k ? "labels" : "tokens"), 2, dims, wide, e);
  }
  Stored stored = {token, label, S};
  feed_step(g->s.x, &g->s.job, EXEC_TRAIN, fetch_stored, &stored, e);
  arena_release(g->arena, mark);
  return world_agree(g->world, e);
}

static bool run_step(GoldenRun *g, int64_t step, Err *e) {
  const Config *c = g->c;
  StepResult r;
  TRY(feed(g, step, e));
  UpdateArgs u = update_args(c, c->optimizer.lr, step);
  exec_set_tap(g->s.x, step == 1 ? collect_tap : NULL, &g->values);
  exec_run(g->s.x, EXEC_TRAIN, &u, &r);
  if (r.fault)
    return err_set(e, ERR_NONFINITE, "step %lld: a loss or gradient is not finite or beyond its bound (loss %g, gradient norm %g)",
                   (long long)step, r.loss, r.grad_norm);
  g->ce[step - 1] = r.loss, g->norm[step - 1] = r.grad_norm;
  if (step > 1) return true;
  put_losses(g, &r, e);
  put_values(g, e);
  return put_tensors(g, TENSOR_GRAD, "step1/grads", e) && put_tensors(g, TENSOR_MASTER, "after_step1", e);
}

static bool run_steps(GoldenRun *g, Err *e) {
  int64_t n = g->c->train.train_iters;
  g->ce = ARENA_NEW(g->arena, double, n), g->norm = ARENA_NEW(g->arena, double, n);
  TRY(put_tensors(g, TENSOR_MASTER, "weights", e));
  for (int64_t step = 1; step <= n; step++) TRY(run_step(g, step, e));
  golden_put_f64(g->out, "train/ce", 1, &n, g->ce, e);
  golden_put_f64(g->out, "train/grad_norm", 1, &n, g->norm, e);
  return put_tensors(g, TENSOR_MASTER, "after_last", e);
}

static bool open_all(GoldenRun *g, const char *resume, Log *log, Err *e) {
  const Config *c = g->c;
  if (setup_tokens(&g->data, g->arena, c, c->data.train, e))
    sampler_open(&g->sampler, &g->data, c->data.seq_length, (uint64_t)c->train.seed, c->data.shuffle, e);
  TRY(world_agree(g->world, e));
  TRY(setup_open(&g->s, g->world, g->arena, c, 0, e));
  collect_open(&g->values, &g->s.job, g->world, g->arena);
  WeightsFrom from = {0};
  if (!resume)
    state_init(g->s.x, &g->s.job);
  else
    TRY(weights_load(g->s.x, &g->s.job, g->world, resume, &from, log, e));
  g->consumed = from.consumed_samples;
  weights_round(g->s.x, &g->s.job);
  return true;
}

static void say_changes(Log *log, const char *changes) {
  if (*changes)
    log_line(log,
             "note: not as the configuration says: %s. A golden file has one constant learning rate, the auxiliary loss of the whole batch "
             "and the "
             "router's own choices; it is in fp64 unless --set numerics.dtype says otherwise",
             changes);
}

bool golden_verb(World *w, Arena *a, const Config *c, const char *path, const char *resume, const char *changes, FILE *out, Err *e) {
  GoldenRun *g = ARENA_NEW(a, GoldenRun, 1);
  GoldenConfig config = config_of(c);
  Log log;
  log_open(&log, out, world_rank(w) == 0);
  *g = (GoldenRun){.world = w, .arena = a, .c = c};
  TRY(expressible(c, e));
  say_changes(&log, changes);
  bool ok = open_all(g, resume, &log, e);
  if (ok) {
    if (golden_create(&g->out, w, a, path, &config, numerics_of(c, a), e))
      ok = world_agree(w, e) && run_steps(g, e);
    else
      world_agree(w, e);
    ok = golden_finish(g->out, e);
  }
  if (ok)
    log_line(&log, "%s: %lld steps of %lld x %lld tokens, %d tensors; loss %.9g to %.9g; compare with it by `etalon check %s`", path,
             (long long)config.steps, (long long)config.batch, (long long)config.seq, g->s.job.params.n_tensor, g->ce[0],
             g->ce[config.steps - 1], path);
  setup_close(&g->s);
  if (g->data.map) token_file_close(&g->data);
  return ok;
}
