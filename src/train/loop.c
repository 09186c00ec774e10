#include "train/loop.h"

#include <string.h>

#include "base/timer.h"
#include "gemm.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/state.h"
#include "train/stop.h"

typedef struct Trainer {
  World *world; Arena *arena;
  const Config *c; const char *config_text;
  Log log;
  TokenFile train, valid; bool has_valid;
  Sampler sampler;
  Device device;
  Job job; Exec *x;
  Metrics metrics; Stop stop;
  int64_t step, consumed, saved_step;
} Trainer;

/* ---- opening ------------------------------------------------------------------------------------------------------------------------------- */
static TokenFormat format_of(DataFormat f) {
  static const TokenFormat format[] = {[DATA_AUTO] = TOK_AUTO, [DATA_MEGATRON] = TOK_MEGATRON, [DATA_U16] = TOK_U16, [DATA_U32] = TOK_U32, [DATA_TEXT] = TOK_TEXT};
  return format[f];
}

static bool open_data(Trainer *t, Err *e) {
  const Config *c = t->c;
  TRY(token_file_open(&t->train, t->arena, c->data.train, format_of(c->data.format), c->model.vocab_size, e));
  TRY(sampler_open(&t->sampler, &t->train, c->data.seq_length, (uint64_t)c->train.seed, c->data.shuffle, e));
  t->has_valid = c->data.valid && *c->data.valid;
  if (t->has_valid) TRY(token_file_open(&t->valid, t->arena, c->data.valid, format_of(c->data.format), c->model.vocab_size, e));
  return true;
}

static bool open_device(Trainer *t, Err *e) {
  static const char *const gemm[] = {[GEMM_AUTO] = "auto", [GEMM_ONEDNN] = "onednn", [GEMM_PLAIN] = "plain"};
  return device_open(&t->device, t->c->device.name, gemm[t->c->device.gemm], (int)t->c->device.threads, (uint64_t)t->c->train.seed + (uint64_t)world_rank(t->world), e);
}

/* Canonical mode rests on products of 64 rows being row independent: tried on the model's widths before anything is trained. */
static bool self_test(const Trainer *t, Err *e) {
  if (t->c->numerics.mode != NUM_CANONICAL) return true;
  const ModelConfig *m = &t->c->model;
  const int64_t width[][2] = {{m->hidden_size, m->hidden_size}, {config_ffn_expert(m), m->hidden_size}, {m->hidden_size, config_ffn_expert(m)}, {m->vocab_size, m->hidden_size}};
  for (size_t i = 0; i < sizeof width / sizeof *width; i++)
    for (int trans = 0; trans < 2; trans++) {
      char why[512];
      int N = (int)width[i][0], K = (int)width[i][1];
      GemmShape s = {.M = ROW_BLOCK, .N = N, .K = K, .trans_b = trans, .lda = K, .ldb = trans ? K : N, .ldc = N, .f64 = job_dtype(t->c) == DT_F64};
      if (!gemm_self_test(t->device.gemm, &s, why, sizeof why))
        return err_set(e, ERR_CONFIG, "numerics.mode: canonical needs products whose rows do not depend on each other; the GEMM provider \"%s\" fails its self-test (%s): set device.gemm: plain or numerics.mode: native",
                       t->device.gemm_name, why);
    }
  return true;
}

/* Ranks of other processors or libraries would break the promise silently. */
static bool same_machine(Trainer *t, Err *e) {
  char mine[256] = {0}, first[256];
  snprintf(mine, sizeof mine, "%.100s|%.64s|%.64s", t->device.isa, t->device.gemm_name, t->device.gemm_version);
  memcpy(first, mine, sizeof first);
  comm_bcast(t->world, first, sizeof first, 0);
  if (t->c->numerics.mode == NUM_CANONICAL && strcmp(mine, first))
    err_set(e, ERR_CONFIG, "numerics.mode: canonical needs one instruction set and one GEMM library on all ranks; rank 0 has %s, rank %d has %s; use equal machines or numerics.mode: native",
            first, world_rank(t->world), mine);
  return world_agree(t->world, e);
}

static bool trainer_open(Trainer *t, Err *e) {
  if (open_data(t, e) && open_device(t, e)) self_test(t, e);
  TRY(world_agree(t->world, e));
  TRY(same_machine(t, e));
  int64_t n_valid = t->has_valid ? valid_count(&t->valid, t->c->data.seq_length) : 0;
  if (job_plan(&t->job, t->arena, t->c, world_size(t->world), world_rank(t->world), &t->device, n_valid, e)) {
    world_set_mesh(t->world, t->arena, &t->job.mesh, e);
  }
  TRY(world_agree(t->world, e));
  job_open_exec(&t->job, t->world, &t->x, e);
  return world_agree(t->world, e);
}

static void trainer_close(Trainer *t) {
  metrics_close(&t->metrics);
  exec_close(t->x);
  if (t->device.ops) device_close(&t->device);
  token_file_close(&t->train);
  if (t->has_valid) token_file_close(&t->valid);
}

/* ---- one step --------------------------------------------------------------------------------------------------------------------------------- */
static bool fetch(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  const Trainer *t = ctx;
  return sampler_fetch(&t->sampler, t->consumed + seq, token, label, e);
}
static bool fill_batch(Trainer *t, Err *e) {
  feed_step(t->x, &t->job, EXEC_TRAIN, fetch, t, e);
  return world_agree(t->world, e);
}

static bool save(Trainer *t, Err *e) {
  if (t->saved_step == t->step) return true;
  TRY(state_save(t->x, &t->job, t->world, t->config_text, t->step, t->consumed, e));
  t->saved_step = t->step, metrics_event(&t->metrics, t->step, "checkpoint", t->c->checkpoint.dir);
  return true;
}

static bool evaluate(Trainer *t, Err *e) {
  EvalResult r;
  TRY(evaluate_run(t->x, &t->job, t->world, &t->valid, &r, e));
  metrics_eval(&t->metrics, t->step, r.loss, r.n_token);
  return true;
}

static void log_hash(Trainer *t) {
  uint64_t all[N_VIEW];
  ArenaMark mark = arena_mark(t->arena);
  uint64_t *hash = ARENA_NEW(t->arena, uint64_t, t->job.params.n_tensor);
  for (int v = 0; v < N_VIEW; v++) state_hash(t->x, &t->job, t->world, v, hash), all[v] = state_hash_all(&t->job, hash);
  arena_release(t->arena, mark);
  metrics_hash(&t->metrics, t->step, all[VIEW_WEIGHT], all[VIEW_GRAD], all[VIEW_M], all[VIEW_V]);
}

static bool every(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

static bool train_step(Trainer *t, Err *e) {
  const Config *c = t->c;
  TRY(fill_batch(t, e));
  int64_t it = t->step + 1;
  UpdateArgs u = {.lr = lr_at(c, it), .beta1 = c->optimizer.adam_beta1, .beta2 = c->optimizer.adam_beta2, .eps = c->optimizer.adam_eps,
                  .weight_decay = c->optimizer.weight_decay, .clip_grad = c->optimizer.clip_grad, .t = it};
  StepResult r;
  exec_run(t->x, EXEC_TRAIN, &u, &r);
  if (r.fault && c->optimizer.on_nonfinite == NONFINITE_STOP)
    return err_set(e, ERR_NONFINITE, "step %lld: a loss or gradient is not finite or beyond its bound (loss %g, gradient norm %g); the weights are those of step %lld. Lower optimizer.lr, or set optimizer.on_nonfinite: skip",
                   (long long)it, r.loss, r.grad_norm, (long long)t->step);
  t->step = it;
  t->consumed += c->train.global_batch_size;
  metrics_step(&t->metrics, &r, it, t->consumed, u.lr);
  if (every(it, c->log.hash_interval)) log_hash(t);
  if (every(it, c->train.replica_check_interval)) TRY(state_check_replicas(t->x, &t->job, t->world, e));
  bool last = it == c->train.train_iters;
  if (t->has_valid && (last || every(it, c->train.eval_interval))) TRY(evaluate(t, e));
  if (every(it, c->checkpoint.save_interval) || (last && c->checkpoint.save_final)) TRY(save(t, e));
  return true;
}

static bool train_loop(Trainer *t, Err *e) {
  while (t->step < t->c->train.train_iters) {
    TRY(train_step(t, e));
    const char *why = t->step < t->c->train.train_iters ? stop_requested(&t->stop, t->world) : NULL;
    if (!why) continue;
    TRY(save(t, e));
    return err_set(e, ERR_RESUME, "stopped at step %lld because %s; resume with --resume %s", (long long)t->step, why, t->c->checkpoint.dir);
  }
  return true;
}

static void say_hello(const Trainer *t, Log *log) {
  const Config *c = t->c;
  const Mesh *m = &t->job.mesh;
  int64_t total = 0;
  for (int i = 0; i < t->job.params.n; i++) total += t->job.params.param[i].group == PGROUP_MIRROR ? 0 : t->job.params.param[i].n_out * t->job.params.param[i].n_in * t->job.params.param[i].n_expert;
  log_line(log, "etalon: %lld parameters, %d ranks (pp %d x dp %d x cp %d x tp %d; experts: edp %d x ep %d x etp %d), %d micro-batches of %lld x %lld tokens, %s %s, window %lld, shards %lld, %s, gemm %s %s",
           (long long)total, m->world, m->size[AXIS_PP], m->size[AXIS_DP], m->size[AXIS_CP], m->size[AXIS_TP], m->size[AXIS_EDP], m->size[AXIS_EP], m->size[AXIS_ETP], t->job.train.deal.n_mb, (long long)t->job.train.deal.micro_batch,
           (long long)c->data.seq_length, c->numerics.mode == NUM_CANONICAL ? "canonical" : "native", dtype_name(job_dtype(c)), (long long)c->numerics.window,
           (long long)model_shards(c), t->device.name, t->device.gemm_name, t->device.gemm_version);
  log_line(log, "memory per rank: device %s (P %s, F %s, W %s, S %s), host %s; data: %lld tokens, %lld samples an epoch", bytes_text(t->arena, t->job.mem.device),
           bytes_text(t->arena, t->job.mem.bytes[REGION_P]), bytes_text(t->arena, t->job.mem.bytes[REGION_F]), bytes_text(t->arena, t->job.mem.bytes[REGION_W]),
           bytes_text(t->arena, t->job.mem.bytes[REGION_S]), bytes_text(t->arena, t->job.mem.host), (long long)t->train.n_token, (long long)t->sampler.n_sample);
}

static bool run(Trainer *t, const char *resume, Err *e) {
  TRY(trainer_open(t, e));
  say_hello(t, &t->log);
  if (resume) TRY(state_load(t->x, &t->job, t->world, resume, &t->step, &t->consumed, &t->log, e));
  else state_init(t->x, &t->job);
  t->saved_step = resume ? t->step : -1;
  stop_open(&t->stop, t->c->train.stop_file, t->c->train.max_minutes);
  TRY(metrics_open(&t->metrics, &t->log, &t->job, t->world, t->step, e));
  TRY(train_loop(t, e));
  log_hash(t);
  return true;
}

bool train_run(World *w, Arena *a, const Config *c, const char *config_text, const char *resume, Err *e) {
  Trainer *t = ARENA_NEW(a, Trainer, 1);
  *t = (Trainer){.world = w, .arena = a, .c = c, .config_text = config_text};
  log_open(&t->log, stdout, world_rank(w) == 0);
  bool ok = run(t, resume, e);
  trainer_close(t);
  return ok;
}
