/* `etalon plan`: memory by label, region and rank, flops, groups, the instruction list; no MPI. */
#ifndef ETALON_PLAN_VERB_H
#define ETALON_PLAN_VERB_H
#include "config/config.h"
typedef struct PlanArgs { int world, rank /* whose details are shown */; bool print; const char *routing /* NULL: bound */; } PlanArgs;
bool plan_verb(Arena *a, const ConfigDoc *doc, const PlanArgs *args, FILE *out, Err *e);
#endif
