#include "train/loop.h"

#include <string.h>

#include "base/timer.h"
#include "comm/watchdog.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/sample.h"
#include "train/saver.h"
#include "train/setup.h"
#include "train/stop.h"
#include "train/watch.h"

typedef struct Trainer {
  World *world;
  Arena *arena;
  const Config *c;
  Log log;
  TokenFile train, valid;
  bool has_valid;
  Sampler sampler;
  Setup s;
  Metrics metrics;
  Watch watch;
  Stop stop;
  Saver saver;
  Watchdog *watchdog;
  uint64_t hash[N_TENSOR_VIEW];
  int64_t hash_step;
  int64_t step, consumed;
  StateFrom from;      /* of a run that resumes */
  bool trained;        /* a step was run: there are gradients */
  const char *stopped; /* NULL, or why: somebody asked for it */
} Trainer;

/* ---- opening ------------------------------------------------------------------------------------------------------------------------------- */
static bool open_data(Trainer *t, Err *e) {
  const Config *c = t->c;
  TRY(setup_tokens(&t->train, t->arena, c, c->data.train, e));
  TRY(sampler_open(&t->sampler, &t->train, c->data.seq_length, (uint64_t)c->train.seed, c->data.shuffle, e));
  t->has_valid = c->data.valid && *c->data.valid;
  if (t->has_valid) TRY(setup_tokens(&t->valid, t->arena, c, c->data.valid, e));
  if (t->has_valid && valid_count(&t->valid, c->data.seq_length) == 0)
    return err_set(e, ERR_DATA, "%s: a validation file needs at least 2 tokens, it has %lld", c->data.valid, (long long)t->valid.n_token);
  return true;
}

static bool trainer_open(Trainer *t, Err *e) {
  if (open_data(t, e) && *t->c->train.sample_prompt) sample_possible(t->c, e);
  TRY(world_agree(t->world, e));
  return setup_open(&t->s, t->world, t->arena, t->c, t->has_valid ? valid_count(&t->valid, t->c->data.seq_length) : 0, e);
}

static void trainer_close(Trainer *t) {
  saver_close(&t->saver);
  watch_close(&t->watch);
  metrics_close(&t->metrics);
  setup_close(&t->s);
  token_file_close(&t->train);
  if (t->has_valid) token_file_close(&t->valid);
}

/* ---- one step --------------------------------------------------------------------------------------------------------------------------------- */
static bool fetch(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  const Trainer *t = ctx;
  return sampler_fetch(&t->sampler, t->consumed + seq, token, label, e);
}
static bool fill_batch(Trainer *t, Err *e) {
  feed_step(t->s.x, &t->s.job, EXEC_TRAIN, fetch, t, e);
  return world_agree(t->world, e);
}

static bool evaluate(Trainer *t, Err *e) {
  EvalResult r;
  pulse_doing(world_pulse(t->world), "evaluating");
  TRY(evaluate_run(t->s.x, &t->s.job, t->world, &t->valid, &t->stop, &r, e));
  t->stopped = r.stopped;
  if (r.stopped)
    metrics_event(&t->metrics, t->step, "evaluation given up", r.stopped);
  else
    metrics_eval(&t->metrics, t->step, r.loss, r.n_token);
  return true;
}

/* Gradients are still those of the step: an evaluation would end that. */
static void take_hash(Trainer *t) {
  ArenaMark mark = arena_mark(t->arena);
  uint64_t *hash = ARENA_NEW(t->arena, uint64_t, t->s.job.params.n_tensor);
  for (int v = 0; v < N_TENSOR_VIEW; v++)
    if (v != TENSOR_MASTER || state_has_masters(&t->s.job))
      state_hash(t->s.x, &t->s.job, t->world, v, hash), t->hash[v] = state_hash_all(&t->s.job, hash);
  arena_release(t->arena, mark);
  t->hash_step = t->step;
}
static void log_hash(Trainer *t) {
  if (t->hash_step != t->step) take_hash(t);
  metrics_hash(&t->metrics, t->step, t->hash[TENSOR_WEIGHT], t->trained ? &t->hash[TENSOR_GRAD] : NULL, t->hash[TENSOR_M],
               t->hash[TENSOR_V], state_has_masters(&t->s.job) ? &t->hash[TENSOR_MASTER] : NULL);
}

static bool every(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/* Nothing was updated, so the step can be run again to find out where it went wrong; the rank and instruction that come first are named. */
static bool say_fault(Trainer *t, int64_t it, const UpdateArgs *u, Err *e) {
  char bad[128], where[192] = "every value is finite, so a gradient is too large for its sum";
  TRY(fill_batch(t, e));
  uint64_t mine = exec_find_nonfinite(t->s.x, u, bad, sizeof bad), first = mine;
  comm_allreduce_max_u64(t->world, AXES_WORLD, &first, 1);
  if (first) snprintf(where, sizeof where, "the first value that is not comes from %s on rank %d", bad, world_rank(t->world));
  if (mine == first)
    err_set(e, ERR_NONFINITE,
            "step %lld: a loss or gradient is not finite or beyond its bound: %s; the weights are those of step %lld. Lower optimizer.lr, "
            "or set optimizer.on_nonfinite: skip",
            (long long)it, where, (long long)t->step);
  return world_agree(t->world, e);
}

static bool train_step(Trainer *t, Err *e) {
  const Config *c = t->c;
  int64_t it = t->step + 1;
  pulse_step(world_pulse(t->world), it);
  pulse_doing(world_pulse(t->world), "reading data");
  fault_at(world_fault(t->world), FAULT_TRAIN_STEP, NULL);
  TRY(fill_batch(t, e));
  UpdateArgs u = update_args(c, lr_at(c, it), it);
  StepResult r;
  TRY(watch_before(&t->watch, it, e));
  exec_run(t->s.x, EXEC_TRAIN, &u, &r);
  if (r.fault && c->optimizer.on_nonfinite == NONFINITE_STOP) return say_fault(t, it, &u, e);
  t->step = it, t->trained = true;
  t->consumed += c->train.global_batch_size;
  metrics_step(&t->metrics, &r, it, t->consumed, u.lr);
  watch_after(&t->watch, &r, it);
  bool last = it == c->train.train_iters;
  if (last) take_hash(t);
  if (every(it, c->log.hash_interval)) log_hash(t);
  if (every(it, c->train.replica_check_interval)) TRY(state_check_replicas(t->s.x, &t->s.job, t->world, e));
  if (t->has_valid && (last || every(it, c->train.eval_interval))) TRY(evaluate(t, e));
  if (every(it, c->checkpoint.save_interval) || (last && c->checkpoint.save_final)) TRY(saver_save(&t->saver, it, t->consumed, e));
  return saver_border(&t->saver, e);
}

static bool train_loop(Trainer *t, Err *e) {
  int64_t iters = t->c->train.train_iters;
  while (!t->stopped && t->step < iters) {
    TRY(train_step(t, e));
    if (!t->stopped && t->step < iters) t->stopped = stop_requested(&t->stop, t->world);
  }
  if (t->stopped) TRY(saver_save(&t->saver, t->step, t->consumed, e));
  TRY(saver_finish(&t->saver, e));
  watch_end(&t->watch);
  if (!t->stopped) return true;
  return err_set(e, ERR_RESUME, "stopped at step %lld because %s; resume with --resume %s", (long long)t->step, t->stopped,
                 t->c->checkpoint.dir);
}

static void say_hello(const Trainer *t, Log *log) {
  const Config *c = t->c;
  const Mesh *m = &t->s.job.mesh;
  int64_t total = 0;
  for (int i = 0; i < t->s.job.params.n; i++)
    total += t->s.job.params.param[i].group == PGROUP_MIRROR
                 ? 0
                 : t->s.job.params.param[i].n_out * t->s.job.params.param[i].n_in * t->s.job.params.param[i].n_expert;
  log_line(log,
           "etalon: %lld parameters, %d ranks (pp %d x dp %d x cp %d x tp %d; experts: edp %d x ep %d x etp %d), %d micro-batches of %lld "
           "x %lld tokens, %s %s, window %lld, shards %lld, %s, gemm %s %s",
           (long long)total, m->world, m->size[AXIS_PP], m->size[AXIS_DP], m->size[AXIS_CP], m->size[AXIS_TP], m->size[AXIS_EDP],
           m->size[AXIS_EP], m->size[AXIS_ETP], t->s.job.train.deal.n_mb, (long long)t->s.job.train.deal.micro_batch,
           (long long)c->data.seq_length, c->numerics.mode == NUM_CANONICAL ? "canonical" : "native", dtype_name(job_dtype(c)),
           (long long)c->numerics.window, (long long)model_shards(c), t->s.device.name, t->s.device.gemm_name, t->s.device.gemm_version);
  log_line(log, "memory per rank: device %s (P %s, F %s, W %s, S %s), host %s; data: %lld tokens, %lld samples an epoch",
           bytes_text(t->arena, t->s.job.mem.device), bytes_text(t->arena, t->s.job.mem.bytes[REGION_P]),
           bytes_text(t->arena, t->s.job.mem.bytes[REGION_F]), bytes_text(t->arena, t->s.job.mem.bytes[REGION_W]),
           bytes_text(t->arena, t->s.job.mem.bytes[REGION_S]), bytes_text(t->arena, t->s.job.mem.host), (long long)t->train.n_token,
           (long long)t->sampler.n_sample);
}

static bool load(Trainer *t, const char *path, Err *e) {
  TRY(state_load(t->s.x, &t->s.job, t->world, path, &t->from, &t->log, e));
  t->step = t->from.step, t->consumed = t->from.consumed;
  if (t->step >= t->c->train.train_iters)
    log_line(&t->log, "nothing left to train: train.train_iters is %lld", (long long)t->c->train.train_iters);
  return true;
}

static bool run(Trainer *t, const char *resume, Err *e) {
  TRY(watchdog_open(&t->watchdog, t->world, t->arena, t->c->train.hang_seconds, e));
  TRY(saver_look(&t->saver, t->world, t->arena, t->c, resume, &t->log, e));
  TRY(trainer_open(t, e));
  say_hello(t, &t->log);
  pulse_doing(world_pulse(t->world), resume ? "loading a checkpoint" : "making initial weights");
  if (resume)
    TRY(load(t, resume, e));
  else
    state_init(t->s.x, &t->s.job);
  stop_open(&t->stop, t->c->train.stop_file, t->c->train.max_minutes);
  TRY(saver_open(&t->saver, t->world, t->s.x, &t->s.job, &t->metrics, t->step, &t->log, e));
  TRY(metrics_open(&t->metrics, &t->log, &t->s.job, t->world, t->step, e));
  TRY(watch_open(&t->watch, &t->s, &t->metrics, &t->log, t->step, e));
  metrics_begin(&t->metrics, &t->from);
  if (t->step >= t->c->train.train_iters && t->has_valid) TRY(evaluate(t, e)); /* its last evaluation may have been given up */
  TRY(train_loop(t, e));
  log_hash(t);
  return !*t->c->train.sample_prompt || sample_trained(&t->s, &t->log, e);
}

bool train_run(World *w, Arena *a, const Config *c, const char *resume, Err *e) {
  Trainer *t = ARENA_NEW(a, Trainer, 1);
  *t = (Trainer){.world = w, .arena = a, .c = c, .hash_step = -1};
  log_open(&t->log, stdout, world_rank(w) == 0);
  bool ok = run(t, resume, e);
  Err unheard = {0};
  saver_finish(&t->saver, &unheard); /* a run that ends badly still ends the save that is under way */
  trainer_close(t);
  watchdog_close(t->watchdog);
  return ok;
}
