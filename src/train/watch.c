#include "train/watch.h"

#include "train/router_log.h"

static bool every(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

static bool hashes_values(const Watch *w, int64_t it) { return w->s->c->log.hash_values && every(it, w->s->c->log.hash_interval); }

/* The first step of a run also builds what is built once: it is not typical, unless it is the only one. */
static bool profiles(const Watch *w, int64_t it) {
  return w->s->c->train.profile && (it > w->first || w->first == w->s->c->train.train_iters);
}

static bool records(const Watch *w) { return *w->s->c->moe.record != 0; }
static bool replays(const Watch *w) { return w->s->c->moe.routing == ROUTE_REPLAY; }

static bool has_trace(const Watch *w) { return *w->s->c->train.trace != 0; }
static int64_t trace_number(const Watch *w, int64_t it) {
  return it - w->first + 1 - w->s->c->train.trace_start;
} /* 0: the first traced step */
static bool traces(const Watch *w, int64_t it) {
  return has_trace(w) && trace_number(w, it) >= 0 && trace_number(w, it) < w->s->c->train.trace_steps;
}

static void observe(void *ctx, const Step *s, int ins, double begin, double end) {
  Watch *w = ctx;
  if (s != &w->s->job.train.step) return;
  if (profiles(w, w->it)) profile_add(&w->profile, w->s, ins, end - begin);
  if (traces(w, w->it)) trace_add(&w->trace, w->it, ins, begin, end);
}

bool watch_open(Watch *w, Setup *s, Metrics *m, Log *log, int64_t done, Err *e) {
  *w = (Watch){.s = s, .m = m, .log = log, .first = done + 1};
  value_hash_open(&w->values, s);
  if (s->c->train.profile) profile_open(&w->profile, s);
  if (has_trace(w)) trace_open(&w->trace, s, log, s->c->train.trace_steps, s->c->train.trace, e);
  TRY(world_agree(s->world, e));
  if (records(w)) TRY(record_open(&w->record, s, log, done, e));
  if (replays(w)) replay_open(&w->replay, s, done, e);
  return world_agree(s->world, e);
}

bool watch_before(Watch *w, int64_t it, Err *e) {
  w->it = it;
  w->taps.n = 0;
  if (hashes_values(w, it)) {
    value_hash_clear(&w->values, w->s);
    tap_mux_add(&w->taps, value_hash_tap, &w->values);
  }
  if (records(w)) {
    record_clear(&w->record);
    tap_mux_add(&w->taps, record_tap, &w->record);
  }
  tap_mux_set(&w->taps, w->s->x);
  if (replays(w)) {
    replay_read(&w->replay, it, e);
    TRY(world_agree(w->s->world, e));
    exec_set_replay(w->s->x, w->replay.layer);
  }
  if (traces(w, it) && trace_number(w, it) == 0) trace_clock(&w->trace, w->s, 0);
  exec_set_observer(w->s->x, profiles(w, it) || traces(w, it) ? observe : NULL, w);
  if (profiles(w, it)) profile_begin(&w->profile);
  return true;
}

static void write_trace(Watch *w, int64_t it) {
  const char *path = w->s->c->train.trace;
  w->traced = true;
  trace_clock(&w->trace, w->s, 1);
  if (trace_write(&w->trace, w->s, w->log, path)) metrics_event(w->m, it, "trace", path);
}

void watch_after(Watch *w, const StepResult *r, int64_t it) {
  const Config *c = w->s->c;
  if (profiles(w, it)) profile_end(&w->profile);
  exec_set_observer(w->s->x, NULL, NULL);
  exec_set_tap(w->s->x, NULL, NULL);
  exec_set_replay(w->s->x, NULL);
  if (records(w)) record_write(&w->record, w->s, it);
  if (hashes_values(w, it)) value_hash_write(&w->values, w->s, w->m, it);
  if (every(it, c->log.hash_interval)) tensor_hash_write(w->s, w->m, it);
  if (every(it, c->log.router_interval)) router_log_write(w->m, r, it);
  if (traces(w, it) && trace_number(w, it) + 1 == c->train.trace_steps) write_trace(w, it);
}

void watch_end(Watch *w) {
  if (w->s->c->train.profile) profile_print(&w->profile, w->s, w->log);
  if (w->trace.n && !w->traced) write_trace(w, w->it); /* the run ends before it has all its steps */
  if (has_trace(w) && !w->trace.n)
    log_line(w->log, "note: train.trace: no step was traced: this run began at step %lld and train.trace_start is %lld",
             (long long)w->first, (long long)w->s->c->train.trace_start);
}

void watch_close(Watch *w) {
  record_close(&w->record);
  replay_close(&w->replay);
  trace_close(&w->trace);
}
