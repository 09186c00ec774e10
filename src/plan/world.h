/* Which ranks of a world do the same work: one list stands for all of them. Arithmetic and hashes; used by `etalon plan`, tested rank by rank against plans built
 * for every rank. */
#ifndef ETALON_PLAN_WORLD_H
#define ETALON_PLAN_WORLD_H
#include "plan/plan.h"

/* The ranks of one pipeline stage (all stages alike) by what they are given: equal `given` means equal programs on equal stages. `tokens` is the part of it that
 * is dealt: tokens and windows of every micro-batch. Rank = stage x n + place. */
typedef struct Places { int n; uint64_t *given, *tokens; } Places;
/* cp_apart: CP ranks differ in more than their windows: heads of their own (all-to-all), whom they stand beside (ring). */
Places world_places(Arena *a, const Mesh *m, const Deal *const *deal, int n_deal, int n_expert, bool cp_apart);

/* By place, under a known routing: equal numbers within a class, equal flops and equal bytes and messages in every exchange. sliding_window: 0: none. */
uint64_t *world_work(Arena *a, const Mesh *m, const Deal *d, int routing, int n_expert, int top_k, int64_t sliding_window);

/* Adds to `key` all that step_lower and plan_memory read but for the rank's shares of parameter states: equal keys, equal lists and regions F, W, S. */
uint64_t world_step_key(uint64_t key, const Program *const *chunk, int n_chunk, const Schedule *sched, const StepOptions *o);
/* Bytes of all parameter states of a rank whose flat arrays are as long as those of `ps`. key, or NULL: folded into it are those of each state. */
size_t world_state_bytes(const ParamSet *ps, int rank, const Numerics *num, const StepOptions *o, uint64_t *key);
#endif
