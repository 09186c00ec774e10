#include "train/plan_world.h"

#include "plan/world.h"

static uint64_t job_key(const Job *j, uint64_t tokens) {
  uint64_t key = world_step_key(tokens, j->train.chunk, j->train.n_chunk, &j->train.sched, &j->train.options);
  return j->has_eval ? world_step_key(key, j->eval.chunk, j->eval.n_chunk, &j->eval.sched, &j->eval.options) : key;
}

static int find_class(WorldPlan *w, uint64_t key, int stage) {
  for (int i = 0; i < w->n_class; i++)
    if (w->cls[i].key == key && w->cls[i].stage == stage) return i;
  w->cls[w->n_class] = (RankClass){.key = key, .stage = stage, .rank = -1};
  return w->n_class++;
}

static void join_class(WorldPlan *w, int cls, const Job *j, int rank) {
  RankClass *c = &w->cls[cls];
  size_t states = world_state_bytes(&j->params, rank, &j->train.program[0].num, &j->train.options, &w->states_of[rank]);
  bool first = c->n++ == 0;
  if (first || states > c->states) c->states = states, c->rank = rank;
  if (first || states < c->states_least) c->states_least = states;
  w->class_of[rank] = cls;
}

/* All ranks of a stage that are given the same, declared once. */
static bool join_alike(WorldPlan *w, Arena *scratch, const WorldPlanArgs *args, const Places *p, int rank, Err *e) {
  ArenaMark mark = arena_mark(scratch);
  Job j;
  int stage = rank / p->n, place = rank % p->n;
  bool ok = job_declare(&j, scratch, args->c, args->world, rank, args->device, args->n_valid, e);
  int cls = ok ? find_class(w, job_key(&j, p->tokens[place]), stage) : -1;
  for (int i = place; i < p->n && ok; i++)
    if (p->given[i] == p->given[place]) join_class(w, cls, &j, stage * p->n + i);
  arena_release(scratch, mark);
  return ok;
}

bool world_plan(WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, Err *e) {
  ArenaMark mark = arena_mark(scratch);
  Job j;
  TRY(job_declare(&j, scratch, args->c, args->world, 0, args->device, args->n_valid, e));
  const Deal *deal[2] = {&j.train.deal, &j.eval.deal};
  Places p = world_places(a, &j.mesh, deal, j.has_eval ? 2 : 1, (int)args->c->model.num_local_experts,
                          args->c->layout.cp_comm_type != CP_COMM_ALLGATHER);
  *w = (WorldPlan){.mesh = j.mesh,
                   .deal = j.train.deal,
                   .class_of = ARENA_NEW(a, int, args->world),
                   .states_of = ARENA_NEW(a, uint64_t, args->world),
                   .cls = ARENA_NEW(a, RankClass, args->world)};
  arena_release(scratch, mark);
  for (int rank = 0; rank < args->world; rank++) w->class_of[rank] = -1;
  for (int rank = 0; rank < args->world; rank++)
    if (w->class_of[rank] < 0) TRY(join_alike(w, scratch, args, &p, rank, e));
  return true;
}

bool world_plan_job(const WorldPlan *w, Job *j, Arena *a, const WorldPlanArgs *args, int cls, Err *e) {
  TRY(job_declare(j, a, args->c, args->world, w->cls[cls].rank, args->device, args->n_valid, e));
  job_lower(j);
  return true;
}
