/* All stages of a schedule run against each other, in time. */
#include "schedule/schedule.h"

typedef struct Stage { Schedule s; int next; double clock, busy; int live; } Stage;
typedef struct World { Stage *stage; int n_stage, n_mb, n_chunk, n_virtual; double *up, *down; /* [n_virtual][n_mb] when the forward / backward of it ended; 0: not yet */ } World;

static double *cell(double *table, const World *w, int v, int mb) { return &table[v * w->n_mb + mb]; }

/* When the inputs of the stage's next action are there; negative: not yet. */
static double ready(const World *w, const Action *x, int v) {
  if (x->kind == ACT_FWD) {
    double at = v ? *cell(w->up, w, v - 1, x->mb) : 1e-9;
    return at > 0 ? at : -1;
  }
  if (*cell(w->up, w, v, x->mb) == 0) return -1;
  if (x->kind == ACT_BWD_W) return *cell(w->down, w, v, x->mb) > 0 ? 0 : -1;
  double at = v < w->n_virtual - 1 ? *cell(w->down, w, v + 1, x->mb) : 1e-9;
  return at > 0 ? at : -1;
}

static bool advance(World *w, int i, ScheduleProof *proof) {
  Stage *st = &w->stage[i];
  if (st->next == st->s.n_act) return false;
  const Action *x = &st->s.act[st->next];
  int v = x->chunk * w->n_stage + i;
  double at = ready(w, x, v), cost = x->kind == ACT_BWD ? 2 : 1;
  if (at < 0) return false;
  st->clock = (at > st->clock ? at : st->clock) + cost;
  st->busy += cost;
  st->next++;
  if (x->kind == ACT_FWD) {
    *cell(w->up, w, v, x->mb) = st->clock;
    if (++st->live > proof->peak_live[i]) proof->peak_live[i] = st->live;
  }
  if (x->kind == ACT_BWD || x->kind == ACT_BWD_X) *cell(w->down, w, v, x->mb) = st->clock;
  if (x->kind == ACT_BWD || x->kind == ACT_BWD_W) st->live--;
  return true;
}

bool schedule_prove(ScheduleProof *proof, Arena *a, const char *name, int n_stage, int n_mb, int n_chunk) {
  *proof = (ScheduleProof){0};
  Err e = {0};
  World w = {.n_stage = n_stage, .n_mb = n_mb, .n_chunk = n_chunk, .n_virtual = n_stage * n_chunk};
  if (n_stage > (int)(sizeof proof->peak_live / sizeof *proof->peak_live)) return false;
  w.stage = ARENA_NEW(a, Stage, n_stage);
  w.up = ARENA_NEW(a, double, w.n_virtual * n_mb);
  w.down = ARENA_NEW(a, double, w.n_virtual * n_mb);
  for (int i = 0; i < n_stage; i++) TRY(schedule_build(&w.stage[i].s, a, name, n_stage, i, n_mb, n_chunk, &e));
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < n_stage; i++)
      while (advance(&w, i, proof)) moved = true;
  }
  double busy = 0;
  for (int i = 0; i < n_stage; i++) {
    if (w.stage[i].next < w.stage[i].s.n_act || w.stage[i].live) return false;
    if (w.stage[i].clock > proof->span) proof->span = w.stage[i].clock;
    busy += w.stage[i].busy;
  }
  proof->bubble = 1 - busy / (proof->span * n_stage);
  return true;
}
