#include "train/saver.h"

#include "base/timer.h"

static CkptPolicy policy_of(const Config *c) {
  return (CkptPolicy){.keep_last = (int)c->checkpoint.keep_last, .compress = (int)c->checkpoint.compress};
}

bool saver_open(Saver *s, World *w, Exec *x, const Job *j, const char *config_text, Metrics *m, int64_t saved_step, Err *e) {
  *s = (Saver){.world = w, .x = x, .job = j, .config_text = config_text, .metrics = m, .saved_step = saved_step};
  if (!j->c->checkpoint.async) return true;
  ArenaMark mark = arena_mark(j->arena);
  StateSave now;
  state_open_save(x, j, j->arena, config_text, 0, 0, &now);
  ckpt_room_open(&s->room, now.set, N_SAVED);
  arena_release(j->arena, mark);
  size_t limit = (size_t)j->c->memory.host_limit, all = j->mem.host + s->room.bytes;
  if (limit && all > limit)
    err_set(
        e, ERR_MEMORY,
        "memory.host_limit: %zu bytes do not hold the copy of the state for checkpoint.async, %zu bytes, beside %zu others; the smallest "
        "that does: %zu, or set checkpoint.async: false",
        limit, s->room.bytes, j->mem.host, all);
  TRY(world_agree(w, e));
  log_line(m->log, "checkpoints are written in the background: %s of host memory per rank for a copy of the state",
           bytes_text(j->arena, s->room.bytes));
  return true;
}

static void say_saved(Saver *s, int64_t step, const char *how, double seconds) {
  ArenaMark mark = arena_mark(s->job->arena);
  const char *dir = s->job->c->checkpoint.dir;
  metrics_event(s->metrics, step, how, arena_printf(s->job->arena, "%s (training stood still for %.3f s)", dir, seconds));
  arena_release(s->job->arena, mark);
}

static bool save_now(Saver *s, const StateSave *now, double begin, Err *e) {
  const Config *c = s->job->c;
  CkptPolicy policy = policy_of(c);
  TRY(ckpt_save(s->world, s->job->arena, c->checkpoint.dir, &now->meta, now->set, N_SAVED, &policy, e));
  say_saved(s, now->meta.step, "checkpoint", timer_now() - begin);
  return true;
}

static void save_behind(Saver *s, const StateSave *now, double begin) {
  const Config *c = s->job->c;
  CkptPolicy policy = policy_of(c);
  s->task = ckpt_task_begin(s->world, &s->room, c->checkpoint.dir, &now->meta, now->set, N_SAVED, &policy);
  s->task_step = now->meta.step;
  say_saved(s, now->meta.step, "checkpoint begun", timer_now() - begin);
}

bool saver_save(Saver *s, int64_t step, int64_t consumed, Err *e) {
  double begin = timer_now();
  if (s->saved_step == step) return true;
  TRY(saver_finish(s, e));
  ArenaMark mark = arena_mark(s->job->arena);
  StateSave now;
  state_open_save(s->x, s->job, s->job->arena, s->config_text, step, consumed, &now);
  bool ok = true;
  if (s->job->c->checkpoint.async)
    save_behind(s, &now, begin);
  else
    ok = save_now(s, &now, begin, e);
  if (ok) s->saved_step = step;
  arena_release(s->job->arena, mark);
  return ok;
}

static bool go_on(Saver *s, bool wait, Err *e) {
  if (!s->task || !ckpt_task_poll(s->task, wait, e)) return true;
  s->task = NULL;
  if (e->code == ERR_NONE) metrics_event(s->metrics, s->task_step, "checkpoint", s->job->c->checkpoint.dir);
  return e->code == ERR_NONE;
}
bool saver_border(Saver *s, Err *e) { return go_on(s, false, e); }
bool saver_finish(Saver *s, Err *e) { return go_on(s, true, e); }

void saver_close(Saver *s) {
  CHECK(!s->task, "a save is under way");
  if (s->room.bytes) ckpt_room_close(&s->room);
}
