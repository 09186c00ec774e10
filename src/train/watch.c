#include "train/watch.h"

#include "train/router_log.h"

static bool every(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

static bool hashes_values(const Watch *w, int64_t it) { return w->s->c->log.hash_values && every(it, w->s->c->log.hash_interval); }

bool watch_open(Watch *w, Session *s, Metrics *m, Err *e) {
  (void)e;
  *w = (Watch){.s = s, .m = m};
  value_hash_open(&w->values, s);
  return true;
}

void watch_before(Watch *w, int64_t it) {
  w->taps.n = 0;
  if (hashes_values(w, it)) {
    value_hash_clear(&w->values, w->s);
    tap_mux_add(&w->taps, value_hash_tap, &w->values);
  }
  tap_mux_set(&w->taps, w->s->x);
}

bool watch_after(Watch *w, const StepResult *r, int64_t it, Err *e) {
  (void)e;
  exec_set_tap(w->s->x, NULL, NULL);
  if (hashes_values(w, it)) value_hash_write(&w->values, w->s, w->m, it);
  if (every(it, w->s->c->log.hash_interval)) tensor_hash_write(w->s, w->m, it);
  if (every(it, w->s->c->log.router_interval)) router_log_write(w->m, r, it);
  return true;
}
