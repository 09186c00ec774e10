/* `etalon plan --simulate`: a step of the whole world in time. */
#ifndef ETALON_PLAN_SIM_H
#define ETALON_PLAN_SIM_H
#include "plan/simulate.h"
#include "train/plan_world.h"

/* What a rank can do: kernels and memory as measured on this machine, links assumed; then what `text` says: key=value pairs with commas between, keys flops,
 * memory, bandwidth, latency, and for one axis tp.bandwidth, ep.latency and the like; text NULL: nothing. ERR_CONFIG. */
bool sim_cost(SimCost *cost, Arena *scratch, const Config *c, const Device *d, const char *text, Err *e);
/* The lists of all ranks, each its own (exact) or its class's. routing must be a known one. */
bool sim_world(SimWorld *s, const WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, int routing, const SimCost *cost, bool exact, Err *e);
/* Every rank by its own list in small worlds, by its class's in large ones, and what came of it. */
bool plan_simulate(const WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, int routing, const SimCost *cost, FILE *out, Err *e);
#endif
