#include "train/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/timer.h"
#include "train/ins_class.h"

enum { V_NS, V_CALLS, V_KFLOP, V_WORK, MOST_ROWS = 40 };

void profile_open(Profile *p, const Setup *s) {
  const Step *step = &s->job.train.step;
  *p = (Profile){.rows = named_open(s->arena, step->n_ins), .row_of = ARENA_NEW(s->arena, int, step->n_ins)};
  for (int n = 0; n < step->n_ins; n++) {
    char name[128];
    p->row_of[n] = (int)(named_at(&p->rows, ins_class(step, &step->ins[n], name, sizeof name)) - p->rows.row);
  }
}

void profile_begin(Profile *p) {
  p->began = timer_now();
  if (p->ended > 0) p->between += p->began - p->ended;
}

void profile_add(Profile *p, const Setup *s, int ins, double seconds) {
  const Step *step = &s->job.train.step;
  NamedRow *r = &p->rows.row[p->row_of[ins]];
  r->v[V_NS] += (uint64_t)(seconds * 1e9);
  r->v[V_CALLS]++;
  r->v[V_KFLOP] += (uint64_t)(ins_flops(step, &step->ins[ins], s->job.train.mb, exec_rows(s->x, EXEC_TRAIN)) * 1e-3);
}

void profile_end(Profile *p) {
  p->ended = timer_now();
  p->step += p->ended - p->began;
  p->n_step++;
}

/* ---- table ----------------------------------------------------------------------------------------------------------------------- */
static int by_time(const void *a, const void *b) {
  const NamedRow *x = a, *y = b;
  return x->v[V_NS] < y->v[V_NS] ? 1 : x->v[V_NS] > y->v[V_NS] ? -1 : strcmp(x->name, y->name);
}

/* All per step and rank. */
typedef struct Scale {
  double per, total_ms;
} Scale;
static void print_row(Log *log, const char *name, const char *kind, const uint64_t *v, Scale s) {
  double ms = (double)v[V_NS] * 1e-6 * s.per, kflop = (double)v[V_KFLOP] * s.per;
  if (kflop > 0)
    log_line(log, "%-28s %-14s %6.1f%% %11.3f %9.0f %9.2f", name, kind, 100 * ms / s.total_ms, ms, (double)v[V_CALLS] * s.per,
             kflop / ms * 1e-3);
  else
    log_line(log, "%-28s %-14s %6.1f%% %11.3f %9.0f         -", name, kind, 100 * ms / s.total_ms, ms, (double)v[V_CALLS] * s.per);
}

static void print_kinds(Log *log, const NamedList *all, Scale s) {
  uint64_t sum[N_WORK][NAMED_VALUES] = {0};
  for (int i = 0; i < all->n; i++)
    for (int k = 0; k < V_WORK; k++) sum[all->row[i].v[V_WORK]][k] += all->row[i].v[k];
  for (int k = 0; k < N_WORK; k++) print_row(log, work_name(k), "all", sum[k], s);
}

/* The kind of work is a property of the name: it is not summed but looked up. */
static NamedList sum_ranks(Profile *p, Setup *s) {
  const Step *step = &s->job.train.step;
  for (int n = 0; n < step->n_ins; n++) p->rows.row[p->row_of[n]].v[V_WORK] = 0;
  NamedList all = named_sum(s->world, s->arena, &p->rows), kind = named_open(s->arena, step->n_ins + all.n);
  for (int n = 0; n < step->n_ins; n++) {
    char name[128];
    named_at(&kind, ins_class(step, &step->ins[n], name, sizeof name))->v[0] = (uint64_t)ins_work(step, &step->ins[n]) + 1;
  }
  /* A name that this rank does not have is another stage's: the largest over ranks is its kind. */
  uint64_t *work = ARENA_NEW(s->arena, uint64_t, all.n + 1);
  for (int i = 0; i < all.n; i++) work[i] = named_at(&kind, all.row[i].name)->v[0];
  comm_allreduce_max_u64(s->world, AXES_WORLD, work, all.n);
  for (int i = 0; i < all.n; i++) all.row[i].v[V_WORK] = work[i] ? work[i] - 1 : 0;
  return all;
}

void profile_print(Profile *p, Setup *s, Log *log) {
  if (!p->n_step) return;
  ArenaMark mark = arena_mark(s->arena);
  NamedList all = sum_ranks(p, s);
  uint64_t ns[3] = {(uint64_t)(p->step * 1e9), (uint64_t)(p->between * 1e9), 0};
  for (int i = 0; i < all.n; i++) ns[2] += all.row[i].v[V_NS];
  comm_allreduce_u64(s->world, AXES_WORLD, ns, 2);
  int n = world_size(s->world);
  Scale scale = {1.0 / n / p->n_step, (double)(ns[0] + ns[1]) * 1e-6 / n / p->n_step};
  qsort(all.row, (size_t)all.n, sizeof *all.row, by_time);
  log_line(log, "profile: %d steps, mean of %d ranks, per step", p->n_step, n);
  log_line(log, "%-28s %-14s %7s %11s %9s %9s", "op and pass", "kind", "share", "ms", "calls", "GFLOP/s");
  uint64_t rest[NAMED_VALUES] = {0}, outside[NAMED_VALUES] = {0}, between[NAMED_VALUES] = {0};
  for (int i = 0; i < all.n; i++) {
    if (i < MOST_ROWS)
      print_row(log, all.row[i].name, work_name((WorkKind)all.row[i].v[V_WORK]), all.row[i].v, scale);
    else
      for (int k = 0; k < V_WORK; k++) rest[k] += all.row[i].v[k];
  }
  if (all.n > MOST_ROWS) print_row(log, arena_printf(s->arena, "(%d others)", all.n - MOST_ROWS), "", rest, scale);
  print_kinds(log, &all, scale);
  outside[V_NS] = ns[0] > ns[2] ? ns[0] - ns[2] : 0, between[V_NS] = ns[1];
  print_row(log, "(between instructions)", "", outside, scale);
  print_row(log, "(between steps)", "", between, scale);
  arena_release(s->arena, mark);
}
