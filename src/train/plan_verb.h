/* `etalon plan`: memory, flops and traffic by stage and rank, a simulated step, groups, the instruction list; no MPI. */
#ifndef ETALON_PLAN_VERB_H
#define ETALON_PLAN_VERB_H
#include "config/config.h"
typedef struct PlanArgs { int world, rank /* whose details are shown */; bool print, simulate; const char *routing /* NULL: bound */, *cost /* plan_sim.h; NULL: measured */; } PlanArgs;
bool plan_verb(Arena *a, const ConfigDoc *doc, const PlanArgs *args, FILE *out, Err *e);
#endif
