/* All stages of a schedule run against each other, in time. */
#include <stdio.h>
#include <string.h>

#include "schedule/schedule.h"

/* What has been done with a micro-batch on a virtual stage, and when it ended. */
typedef struct Cell {
  bool forward, taken /* the gradient has come in */, backward, weights;
  double up, down;
} Cell;
typedef struct Stage {
  const Schedule *s;
  int next;
  double clock, busy;
  int live;
  const Cell **grad; /* [n_grad] the cells of the previous stage that gradients were sent to */
  int n_grad;
} Stage;
typedef struct World {
  Stage *stage;
  int n_stage, n_mb, n_chunk, n_virtual;
  Cell *cell; /* [n_virtual][n_mb] */
} World;

static Cell *cell(const World *w, int v, int mb) { return &w->cell[v * w->n_mb + mb]; }

static const char *action_name(ActKind k) {
  static const char *const name[] = {[ACT_FWD] = "F", [ACT_BWD] = "B", [ACT_BWD_X] = "Bx", [ACT_BWD_W] = "Bw"};
  return name[k];
}
static bool refuse(ScheduleProof *proof, int stage, const Action *x, const char *what) {
  snprintf(proof->why, sizeof proof->why, "stage %d, %s of micro-batch %d, chunk %d: %s", stage, action_name(x->kind), x->mb, x->chunk,
           what);
  return false;
}

/* Is it what comes next in the life of this micro-batch, whoever waits? */
static bool in_order(const World *w, int i, const Action *x, ScheduleProof *proof) {
  if (x->mb < 0 || x->mb >= w->n_mb || x->chunk < 0 || x->chunk >= w->n_chunk) return refuse(proof, i, x, "there is none");
  const Cell *c = cell(w, x->chunk * w->n_stage + i, x->mb);
  if (x->kind == ACT_FWD) return c->forward ? refuse(proof, i, x, "a second time") : true;
  if (!c->forward) return refuse(proof, i, x, "before its forward");
  if (x->kind == ACT_BWD_W)
    return c->weights ? refuse(proof, i, x, "a second time") : c->backward ? true : refuse(proof, i, x, "before its other half");
  return c->backward ? refuse(proof, i, x, "a second time") : true;
}

/* When what the action waits for has come; negative: not yet. A backward takes its gradient in, then waits until the oldest that it sent has been taken. */
static double ready(const World *w, const Stage *st, const Action *x, int v, bool *moved) {
  if (x->kind == ACT_BWD_W) return 0;
  if (x->kind == ACT_FWD) return v == 0 ? 0 : cell(w, v - 1, x->mb)->forward ? cell(w, v - 1, x->mb)->up : -1;
  if (v < w->n_virtual - 1 && !cell(w, v + 1, x->mb)->backward) return -1;
  if (!cell(w, v, x->mb)->taken) cell(w, v, x->mb)->taken = *moved = true;
  if (v > 0 && st->n_grad >= SCHEDULE_GRAD_SENDS && !st->grad[st->n_grad - SCHEDULE_GRAD_SENDS]->taken) return -1;
  return v == w->n_virtual - 1 ? 0 : cell(w, v + 1, x->mb)->down;
}

static void perform(const World *w, int i, const Action *x, double at, ScheduleProof *proof) {
  Stage *st = &w->stage[i];
  int v = x->chunk * w->n_stage + i;
  double cost = x->kind == ACT_BWD ? 2 : 1;
  Cell *c = cell(w, v, x->mb);
  st->clock = (at > st->clock ? at : st->clock) + cost;
  st->busy += cost;
  if (x->kind == ACT_FWD) {
    c->forward = true, c->up = st->clock;
    if (++st->live > proof->peak_live[i]) proof->peak_live[i] = st->live;
  }
  if (x->kind == ACT_BWD || x->kind == ACT_BWD_X) {
    c->backward = true, c->down = st->clock;
    if (v > 0) st->grad[st->n_grad++] = cell(w, v - 1, x->mb);
  }
  if (x->kind == ACT_BWD || x->kind == ACT_BWD_W) c->weights = true, st->live--;
}

/* Performs the stage's actions until one has to wait. False: one is out of order. */
static bool advance(const World *w, int i, bool *moved, ScheduleProof *proof) {
  Stage *st = &w->stage[i];
  for (; st->next < st->s->n_act; st->next++) {
    const Action *x = &st->s->act[st->next];
    TRY(in_order(w, i, x, proof));
    double at = ready(w, st, x, x->chunk * w->n_stage + i, moved);
    if (at < 0) return true;
    perform(w, i, x, at, proof);
    *moved = true;
  }
  return true;
}

static bool complete(const World *w, bool forward_only, ScheduleProof *proof) {
  double busy = 0;
  for (int i = 0; i < w->n_stage; i++) {
    const Stage *st = &w->stage[i];
    if (st->next < st->s->n_act) return refuse(proof, i, &st->s->act[st->next], "waits for ever");
    if (st->clock > proof->span) proof->span = st->clock;
    busy += st->busy;
  }
  for (int v = 0; v < w->n_virtual; v++)
    for (int mb = 0; mb < w->n_mb; mb++)
      if (!cell(w, v, mb)->forward || (!forward_only && !cell(w, v, mb)->weights))
        return refuse(proof, v % w->n_stage, &(Action){cell(w, v, mb)->forward ? ACT_BWD_W : ACT_FWD, mb, v / w->n_stage}, "is missing");
  proof->bubble = 1 - busy / (proof->span * w->n_stage);
  return true;
}

bool schedule_prove_actions(ScheduleProof *proof, Arena *a, const Schedule *s, int n_stage, bool forward_only) {
  *proof = (ScheduleProof){0};
  CHECK(n_stage <= SCHEDULE_MAX_STAGE, "%d stages, at most %d", n_stage, SCHEDULE_MAX_STAGE);
  World w = {.n_stage = n_stage, .n_mb = s->n_mb, .n_chunk = s->n_chunk, .n_virtual = n_stage * s->n_chunk};
  w.stage = ARENA_NEW(a, Stage, n_stage);
  w.cell = ARENA_NEW(a, Cell, w.n_virtual * w.n_mb);
  for (int i = 0; i < n_stage; i++) w.stage[i] = (Stage){.s = &s[i], .grad = ARENA_NEW(a, const Cell *, s[i].n_act + 1)};
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < n_stage; i++) TRY(advance(&w, i, &moved, proof));
  }
  return complete(&w, forward_only, proof);
}

bool schedule_prove(ScheduleProof *proof, Arena *a, const char *name, int n_stage, int n_mb, int n_chunk) {
  Schedule *s = ARENA_NEW(a, Schedule, n_stage);
  Err e = {0};
  for (int i = 0; i < n_stage; i++)
    if (!schedule_build(&s[i], a, name, n_stage, i, n_mb, n_chunk, &e)) {
      *proof = (ScheduleProof){0};
      snprintf(proof->why, sizeof proof->why, "%.100s", e.text);
      return false;
    }
  return schedule_prove_actions(proof, a, s, n_stage, !strcmp(name, "forward"));
}
