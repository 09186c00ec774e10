#include "train/saver.h"

#include "base/timer.h"

static CkptPolicy policy_of(const Config *c) {
  return (CkptPolicy){.keep_last = (int)c->checkpoint.keep_last, .compress = (int)c->checkpoint.compress};
}

/* What a rank owns, and into how many pieces that can fall at most. */
typedef struct Owned {
  size_t bytes;
  int64_t n_piece, n_tensor;
} Owned;
static Owned owned_of(const Job *j) {
  const ParamSet *ps = &j->params;
  ArenaMark mark = arena_mark(j->arena);
  Owned o = {.n_tensor = N_SAVED * (int64_t)ps->n_tensor};
  for (int g = 0; g < N_PGROUP; g++) {
    int n = mesh_group_size(&j->mesh, pgroup_axes(g)), self = mesh_group_self(&j->mesh, j->rank, pgroup_axes(g));
    int64_t *bound = ARENA_NEW(j->arena, int64_t, n + 1);
    params_bounds(ps, g, n, bound);
    o.bytes += N_SAVED * (size_t)(bound[self + 1] - bound[self]) * dtype_size(job_dtype(j->c));
    o.n_piece += 3 * N_SAVED * (int64_t)ps->n_seg[g];
  }
  arena_release(j->arena, mark);
  return o;
}

bool saver_plan(const Job *j, size_t *bytes, Err *e) {
  Owned o = owned_of(j);
  *bytes = j->c->checkpoint.async ? ckpt_room_bytes(o.bytes, o.n_piece, o.n_tensor) : 0;
  size_t limit = (size_t)j->c->memory.host_limit, all = j->mem.host + *bytes;
  if (!limit || all <= limit) return true;
  return err_set(e, ERR_MEMORY,
                 "memory.host_limit: %zu bytes do not hold the copy of the state for checkpoint.async, %zu bytes, beside %zu others; the "
                 "smallest that does: %zu, or set checkpoint.async: false",
                 limit, *bytes, j->mem.host, all);
}

bool saver_open(Saver *s, World *w, Exec *x, const Job *j, Metrics *m, int64_t saved_step, Err *e) {
  *s = (Saver){.world = w, .x = x, .job = j, .metrics = m, .saved_step = saved_step};
  size_t bytes;
  saver_plan(j, &bytes, e);
  TRY(world_agree(w, e));
  if (!bytes) return true;
  Owned o = owned_of(j);
  ckpt_room_open(&s->room, o.bytes, o.n_piece, o.n_tensor);
  log_line(m->log, "checkpoints are written in the background: %s of host memory per rank for a copy of the state",
           bytes_text(j->arena, bytes));
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
  pulse_doing(world_pulse(s->world), "saving a checkpoint");
  TRY(saver_finish(s, e));
  ArenaMark mark = arena_mark(s->job->arena);
  StateSave now;
  state_open_save(s->x, s->job, s->job->arena, step, consumed, &now);
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
  if (s->room.data) ckpt_room_close(&s->room);
}
