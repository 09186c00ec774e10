/* The plan of a whole world: a list for each class of ranks that do the same work, and where every rank belongs. No MPI. */
#ifndef ETALON_PLAN_WORLD_VERB_H
#define ETALON_PLAN_WORLD_VERB_H
#include "train/job.h"

typedef struct RankClass {
  uint64_t key;
  int stage, n, rank;               /* ranks in it; the one with the most parameter state, which stands for all */
  size_t states, states_least;      /* bytes of that rank's parameter states, of the smallest in the class */
} RankClass;
typedef struct WorldPlan {
  Mesh mesh; Deal deal;             /* of training */
  int *class_of;                    /* [world] */
  uint64_t *states_of;              /* [world] equal numbers, equal bytes of every parameter state */
  RankClass *cls; int n_class;
} WorldPlan;

typedef struct WorldPlanArgs { const Config *c; int world; Device *device; int64_t n_valid; } WorldPlanArgs;
/* Ranks into classes, by stage. Lives in `a`; `scratch` is given back. ERR_CONFIG. */
bool world_plan(WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, Err *e);
/* The list of a class's rank. Limits are not looked at. */
bool world_plan_job(const WorldPlan *w, Job *j, Arena *a, const WorldPlanArgs *args, int cls, Err *e);
#endif
