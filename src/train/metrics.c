#include "train/metrics.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/timer.h"
#include "gemm.h"
#include "train/lr.h"
#include "train/version.h"

/* FLOP/s of one square product of the job's type, repeated for about `seconds` on this rank's thread while all ranks do the same. */
static double gemm_peak(const Job *j, double seconds) {
  enum { N = 512 };
  GemmType type = job_gemm(j->c);
  GemmShape s = {.M = N, .N = N, .K = N, .trans_b = true, .lda = N, .ldb = N, .ldc = N, .type = type};
  ArenaMark mark = arena_mark(j->arena);
  size_t n = (size_t)N * N, in = gemm_in_size(type);
  void *A = arena_alloc(j->arena, n, in), *B = arena_alloc(j->arena, n, in), *C = arena_alloc(j->arena, n, gemm_out_size(type));
  void *scratch = arena_alloc(j->arena, gemm_scratch(j->device->gemm, &s) + 64, 1);
  double best = 0, end = timer_now() + seconds;
  while (timer_now() < end) {
    double t = timer_now();
    gemm_run(j->device->gemm, &s, 0, A, B, C, scratch);
    double rate = 2.0 * N * N * N / (timer_now() - t);
    if (rate > best) best = rate;
  }
  arena_release(j->arena, mark);
  return best * j->device->threads;
}

/* Ranks beyond the cores of the host share them: the peak is that of the cores. */
static double world_peak(const Job *j, World *w) {
  double mine = gemm_peak(j, 0.05);
  uint64_t mflops = (uint64_t)(mine * 1e-6);
  comm_allreduce_u64(w, AXES_WORLD, &mflops, 1);
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  double busy = (double)world_local_size(w) * j->device->threads;
  return (double)mflops * 1e6 * (busy > (double)cores ? (double)cores / busy : 1);
}

static double world_flops(const Job *j, World *w) {
  int64_t *n_row = ARENA_NEW(j->arena, int64_t, j->train.step.n_guard + 1);
  plan_rows(&j->train.step, &j->train.deal, ROUTE_BALANCED, n_row);
  uint64_t mflops = (uint64_t)(plan_flops(&j->train.step, j->train.mb, n_row).sum * 1e-6);
  comm_allreduce_u64(w, AXES_WORLD, &mflops, 1);
  return (double)mflops * 1e6;
}

/* Does a line have no end? A run that was killed in the middle of one leaves it so. */
static bool is_torn(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return false;
  FILE *f = fopen(path, "rb");
  bool torn = f && fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n';
  if (f) fclose(f);
  return torn;
}

static FILE *json_open(const char *path, Err *e) {
  bool torn = is_torn(path);
  FILE *f = fopen(path, "a");
  if (!f) err_set(e, ERR_CONFIG, "log.metrics: cannot write \"%s\": %m; give a path whose directory exists", path);
  if (f && torn) fputc('\n', f);
  return f;
}

bool metrics_open(Metrics *m, Log *log, const Job *j, World *w, int64_t first_it, Err *e) {
  *m = (Metrics){.log = log,
                 .job = j,
                 .world = w,
                 .model_flops = world_flops(j, w),
                 .peak_flops = world_peak(j, w),
                 .first_it = first_it,
                 .last_it = first_it};
  const char *path = j->c->log.metrics;
  if (log->speaks && path && *path) m->json = json_open(path, e);
  if (log->speaks) tensorboard_open(&m->tb, j->arena, j->c->log.tensorboard, e);
  TRY(world_agree(w, e));
  m->start = m->last = timer_now();
  return true;
}

static void json_close(Metrics *m) {
  if (m->json) fclose(m->json);
  m->json = NULL;
}

void metrics_line_end(Metrics *m) {
  bool fails = fault_fails(world_fault(m->world), FAULT_LOG_WRITE, NULL);
  if (fflush(m->json) == 0 && !ferror(m->json) && !fails) return;
  const char *why = fails ? "a test said so" : strerror(errno);
  log_line(m->log, "warning: log.metrics: %s cannot be written: %s; the run goes on without it", m->job->c->log.metrics, why);
  json_close(m);
}

static void board_flush(Metrics *m) {
  if (tensorboard_flush(&m->tb)) return;
  const char *why = strerror(errno);
  log_line(m->log, "warning: log.tensorboard: %s cannot be written: %s; the run goes on without it", m->job->c->log.tensorboard, why);
}

void metrics_close(Metrics *m) {
  json_close(m);
  tensorboard_close(&m->tb);
}

RouterStats metrics_router(const Job *j, const StepResult *r) {
  RouterStats s = {0};
  const ModelConfig *m = &j->c->model;
  int E = (int)m->num_local_experts;
  double n_token = (double)(j->train.deal.n_seq * j->train.deal.seq_length), grid = 1.0 / (double)(1ull << r->stat_shift);
  for (int l = 0; l < m->num_hidden_layers; l++) {
    if (!config_layer_is_moe(m, l)) continue;
    const uint64_t *word = r->stat + model_stat(m, l);
    double most = 0, sum = 0, aux = 0;
    for (int x = 0; x < E; x++) {
      double count = (double)word[2 + x];
      most = count > most ? count : most;
      sum += count;
      aux += count * (double)(int64_t)word[2 + E + x] * grid;
    }
    double per_batch = E / ((double)m->num_experts_per_tok * n_token * n_token) * aux,
           per_sequence = (double)(int64_t)word[1] * grid / (double)j->train.deal.n_seq;
    s.aux += j->c->moe.aux_scope == AUX_SEQUENCE ? per_sequence : per_batch;
    s.z += (double)(int64_t)word[0] * grid * 1024 / n_token;
    if (sum > 0 && most * E / sum > s.load_max) s.load_max = most * E / sum;
    s.n_layer++;
  }
  return s;
}

/* A number of iteration `it`, wherever numbers go. NaN and infinity have no place in JSON: null. */
static void put_number(Metrics *m, int64_t it, const char *name, double v) {
  tensorboard_put(&m->tb, it, name, v);
  if (!m->json) return;
  if (isfinite(v))
    fprintf(m->json, ",\"%s\":%.9g", name, v);
  else
    fprintf(m->json, ",\"%s\":null", name);
}

/* Means over the steps since the last line. */
typedef struct Pace {
  double seconds, pass_seconds, rate, mfu;
} Pace;
static Pace pace_of(const Metrics *m, int64_t it, double now) {
  double n = (double)(it - m->last_it > 0 ? it - m->last_it : 1), seconds = (now - m->last) / n;
  return (Pace){.seconds = seconds,
                .pass_seconds = m->pass_seconds / n,
                .rate = (double)(m->job->train.deal.n_seq * m->job->train.deal.seq_length) / seconds,
                .mfu = m->model_flops / seconds / m->peak_flops};
}
static void pace_restart(Metrics *m, int64_t it, double now) { m->last = now, m->last_it = it, m->pass_seconds = 0; }

static void put_step(Metrics *m, const StepResult *r, const RouterStats *s, int64_t it, int64_t consumed, double lr, Pace p) {
  if (m->json) fprintf(m->json, "{\"iteration\":%lld,\"consumed_samples\":%lld", (long long)it, (long long)consumed);
  put_number(m, it, "lm loss", r->loss);
  put_number(m, it, "load_balancing_loss", s->aux);
  put_number(m, it, "z_loss", s->z);
  put_number(m, it, "learning-rate", lr);
  put_number(m, it, "grad-norm", r->grad_norm);
  if (m->json) fprintf(m->json, ",\"skipped\":%d,\"tokens\":%lld", r->fault || !r->n_valid, (long long)r->n_valid);
  put_number(m, it, "throughput/tokens_per_sec", p.rate);
  put_number(m, it, "tflops", p.mfu * m->peak_flops * 1e-12);
  put_number(m, it, "mfu", p.mfu);
  put_number(m, it, "iteration-time", p.seconds);
  put_number(m, it, "forward-backward-time", p.pass_seconds);
  put_number(m, it, "moe/load_max_over_mean", s->load_max);
  board_flush(m);
  if (!m->json) return;
  fprintf(m->json, ",\"memory/device\":%zu,\"memory/host\":%zu,\"time\":%.3f}\n", m->job->mem.device, m->job->mem.host, timer_unix());
  metrics_line_end(m);
}

static void put_text(Metrics *m, const char *name, const char *text) {
  fprintf(m->json, ",\"%s\":\"", name);
  text_json(m->json, text);
  fputc('"', m->json);
}

void metrics_begin(Metrics *m, const StateFrom *from) {
  if (!m->json) return;
  ArenaMark mark = arena_mark(m->job->arena);
  fprintf(m->json, "{\"event\":\"run\",\"first_iteration\":%lld,\"ranks\":%d", (long long)from->step + 1, m->job->mesh.world);
  put_text(m, "code", version_text());
  put_text(m, "numerics", state_numerics(m->job, m->job->arena));
  if (*from->file) put_text(m, "resumed_from", from->file), put_text(m, "changes", from->changes);
  fprintf(m->json, ",\"time\":%.3f}\n", timer_unix());
  metrics_line_end(m);
  arena_release(m->job->arena, mark);
}

static char *time_left(Arena *a, double seconds) {
  long s = (long)(seconds + 0.5);
  return s >= 3600 ? arena_printf(a, "%ldh%02ldm", s / 3600, s / 60 % 60) : arena_printf(a, "%ldm%02lds", s / 60, s % 60);
}

void metrics_step(Metrics *m, const StepResult *r, int64_t it, int64_t consumed, double lr) {
  const Config *c = m->job->c;
  double now = timer_now();
  m->pass_seconds += r->pass_seconds;
  int64_t interval = c->log.interval > 0 ? c->log.interval : 1;
  if (it % interval && it != c->train.train_iters) {
    log_bar(m->log, (double)it / (double)c->train.train_iters, "");
    return;
  }
  Pace p = pace_of(m, it, now);
  RouterStats s = metrics_router(m->job, r);
  ArenaMark mark = arena_mark(m->job->arena);
  Arena *a = m->job->arena;
  char *load = s.n_layer ? arena_printf(a, " | load %.2f", s.load_max) : arena_printf(a, "%s", "");
  log_line(m->log, "step %lld/%lld | loss %.4f | lr %.2e | grad norm %.3f | %.0f tokens/s | %.1f GFLOP/s %.0f%% of peak%s | %s | left %s%s",
           (long long)it, (long long)c->train.train_iters, r->loss, lr, r->grad_norm, p.rate, m->model_flops / p.seconds * 1e-9,
           100 * p.mfu, load, bytes_text(a, m->job->mem.device), time_left(a, p.seconds * (double)(c->train.train_iters - it)),
           r->fault      ? " | NOT FINITE, skipped"
           : !r->n_valid ? " | no label counts, skipped"
                         : "");
  log_bar(m->log, (double)it / (double)c->train.train_iters, "");
  arena_release(a, mark);
  put_step(m, r, &s, it, consumed, lr, p);
  pace_restart(m, it, timer_now());
}

void metrics_eval(Metrics *m, int64_t it, double loss, int64_t n_token) {
  log_line(m->log, "step %lld | validation loss %.6f over %lld tokens", (long long)it, loss, (long long)n_token);
  if (m->json) fprintf(m->json, "{\"iteration\":%lld", (long long)it);
  put_number(m, it, "lm loss validation", loss);
  board_flush(m);
  if (m->json) fprintf(m->json, ",\"validation_tokens\":%lld}\n", (long long)n_token), metrics_line_end(m);
  pace_restart(m, it, timer_now());
}

void metrics_hash(Metrics *m, int64_t it, uint64_t weight, const uint64_t *grad, uint64_t moment1, uint64_t moment2,
                  const uint64_t *master) {
  char text[32] = "", json[2][48] = {"", ""}, gradients[24] = "none";
  if (grad) {
    snprintf(gradients, sizeof gradients, "%016llx", (unsigned long long)*grad);
    snprintf(json[0], sizeof json[0], ",\"gradients\":\"%s\"", gradients);
  }
  if (master) {
    snprintf(text, sizeof text, " masters %016llx", (unsigned long long)*master);
    snprintf(json[1], sizeof json[1], ",\"masters\":\"%016llx\"", (unsigned long long)*master);
  }
  log_line(m->log, "step %lld | hash weights %016llx gradients %s moments %016llx %016llx%s", (long long)it, (unsigned long long)weight,
           gradients, (unsigned long long)moment1, (unsigned long long)moment2, text);
  if (!m->json) return;
  fprintf(m->json, "{\"iteration\":%lld,\"hash\":{\"weights\":\"%016llx\"%s,\"m\":\"%016llx\",\"v\":\"%016llx\"%s}}\n", (long long)it,
          (unsigned long long)weight, json[0], (unsigned long long)moment1, (unsigned long long)moment2, json[1]);
  metrics_line_end(m);
}

void metrics_event(Metrics *m, int64_t it, const char *event, const char *detail) {
  log_line(m->log, "step %lld | %s%s%s", (long long)it, event, *detail ? ": " : "", detail);
  if (!m->json) return;
  fprintf(m->json, "{\"iteration\":%lld,\"event\":\"%s\",\"event_detail\":\"", (long long)it, event);
  text_json(m->json, detail);
  fputs("\"}\n", m->json);
  metrics_line_end(m);
}
