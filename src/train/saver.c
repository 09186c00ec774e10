#include "train/saver.h"

#include "base/timer.h"

static CkptPolicy policy_of(const Saver *s) {
  const Config *c = s->job->c;
  return (CkptPolicy){.keep_last = (int)c->checkpoint.keep_last,
                      .compress = (int)c->checkpoint.compress,
                      .others = c->checkpoint.overwrite ? CKPT_OTHERS_GO : CKPT_OTHERS_PASSED,
                      .own = s->saved_step};
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
    int n_set;
    o.bytes += (size_t)(bound[self + 1] - bound[self]) * state_saved_bytes(j, g, &n_set);
    o.n_piece += 3 * n_set * (int64_t)ps->n_seg[g];
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

/* ---- the directory ----------------------------------------------------------------------------------------------------------------------- */
/* A signal can make any run save; these do so by themselves. */
static bool is_going_to_save(const Config *c) {
  int64_t interval = c->checkpoint.save_interval;
  return c->checkpoint.save_final || (interval > 0 && interval <= c->train.train_iters) || c->train.max_minutes > 0 || *c->train.stop_file;
}
static bool is_in_the_way(const Saver *s, const Config *c) { return s->there.n > 0 && !s->there.own && !c->checkpoint.overwrite; }

bool saver_look(Saver *s, World *w, Arena *a, const Config *c, const char *resume, Log *log, Err *e) {
  const char *dir = c->checkpoint.dir;
  *s = (Saver){.there = ckpt_look(w, a, dir, resume)};
  if (!is_in_the_way(s, c)) return true;
  if (is_going_to_save(c))
    return err_set(
        e, ERR_CONFIG,
        "checkpoint.dir: \"%s\" holds checkpoints of another run, up to step %lld: continue that one with --resume %s, name another "
        "checkpoint.dir, or have them deleted with checkpoint.overwrite: true",
        dir, (long long)s->there.last, dir);
  log_line(log, "note: checkpoint.dir: \"%s\" holds checkpoints of another run: this one will not save, not even when it is asked to stop",
           dir);
  return true;
}

static bool try_directory(Saver *s, Err *e) {
  Err why = {0};
  if (ckpt_try_directory(s->world, s->job->arena, s->job->c->checkpoint.dir, &why)) return true;
  return err_set(e, ERR_CONFIG, "checkpoint.dir: %.1500s; name a directory that all ranks can write, or set checkpoint.save_final: false",
                 why.text);
}

static void note_later(const Saver *s, int64_t step, Log *log) {
  const Config *c = s->job->c;
  if (s->there.own && s->there.last > step)
    log_line(log, "note: later checkpoints in \"%s\", up to step %lld, are of a run that this one leaves behind: %s", c->checkpoint.dir,
             (long long)s->there.last,
             c->checkpoint.overwrite ? "its first save deletes them" : "its saves replace or delete them as they pass their steps");
}

bool saver_open(Saver *s, World *w, Exec *x, const Job *j, Metrics *m, int64_t step, Log *log, Err *e) {
  CkptDir there = s->there;
  *s = (Saver){.world = w, .x = x, .job = j, .metrics = m, .there = there, .saved_step = there.own ? step : -1};
  size_t bytes;
  saver_plan(j, &bytes, e);
  TRY(world_agree(w, e));
  if (is_going_to_save(j->c) && step < j->c->train.train_iters) {
    TRY(try_directory(s, e));
    note_later(s, step, log);
  }
  if (!bytes) return true;
  Owned o = owned_of(j);
  ckpt_room_open(&s->room, o.bytes, o.n_piece, o.n_tensor);
  log_line(log, "checkpoints are written in the background: %s of host memory per rank for a copy of the state",
           bytes_text(j->arena, bytes));
  return true;
}

/* ---- saving -------------------------------------------------------------------------------------------------------------------------------- */
static void say_saved(Saver *s, int64_t step, const char *how, double seconds) {
  ArenaMark mark = arena_mark(s->job->arena);
  const char *file = ckpt_path(s->job->arena, s->job->c->checkpoint.dir, step);
  const char *text = seconds < 0 ? file : arena_printf(s->job->arena, "%s (training stood still for %.3f s)", file, seconds);
  metrics_event(s->metrics, step, how, text);
  arena_release(s->job->arena, mark);
}

static bool save_now(Saver *s, const StateSave *now, double begin, Err *e) {
  const Config *c = s->job->c;
  CkptPolicy policy = policy_of(s);
  TRY(ckpt_save(s->world, s->job->arena, c->checkpoint.dir, &now->meta, now->set, N_SAVED, &policy, e));
  say_saved(s, now->meta.step, "checkpoint", timer_now() - begin);
  return true;
}

static void save_behind(Saver *s, const StateSave *now, double begin) {
  const Config *c = s->job->c;
  CkptPolicy policy = policy_of(s);
  s->task = ckpt_task_begin(s->world, &s->room, c->checkpoint.dir, &now->meta, now->set, N_SAVED, &policy);
  s->task_step = now->meta.step;
  say_saved(s, now->meta.step, "checkpoint begun", timer_now() - begin);
}

bool saver_save(Saver *s, int64_t step, int64_t consumed, Err *e) {
  double begin = timer_now();
  if (s->saved_step == step) return true;
  if (is_in_the_way(s, s->job->c))
    return err_set(e, ERR_CKPT, "the state of step %lld is not saved: checkpoint.dir: \"%s\" holds checkpoints of another run",
                   (long long)step, s->job->c->checkpoint.dir);
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
  if (e->code == ERR_NONE) say_saved(s, s->task_step, "checkpoint", -1);
  return e->code == ERR_NONE;
}
bool saver_border(Saver *s, Err *e) { return go_on(s, false, e); }
bool saver_finish(Saver *s, Err *e) { return go_on(s, true, e); }

void saver_close(Saver *s) {
  CHECK(!s->task, "a save is under way");
  if (s->room.data) ckpt_room_close(&s->room);
}
