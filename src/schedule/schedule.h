/* Schedules by name: one row each in schedule.c. A rank's actions for its stage; a chunk is one of the stage's virtual stages (chunk c of stage s is virtual
 * stage c * n_stage + s). Works for any number of micro-batches >= 1, fewer than stages included.                                        */
#ifndef ETALON_SCHEDULE_H
#define ETALON_SCHEDULE_H
#include "base/arena.h"
#include "base/err.h"
#include "program/schedule.h"

/* The actions of stage `stage` of n_stage >= 1 for n_mb >= 1 micro-batches and n_chunk chunks (above 1: "interleaved", "all_forward", "forward"); the list lives in `a`.
 * "1f1b" (Narayanan et al. 2019), "all_forward" (Huang et al. 2019), "interleaved" (Narayanan et al. 2021), "zero_bubble" (ZB-H1, Qi et al. 2023), "forward" (no
 * backward: evaluation). ERR_CONFIG: no such schedule. */
bool schedule_build(Schedule *s, Arena *a, const char *name, int n_stage, int stage, int n_mb, int n_chunk, Err *e);

/* The names of the table, from 0 on; NULL: no more. */
const char *schedule_nth(int i);

/* Runs all stages' actions against each other: every pass once and in order, every message met, a stage waiting where it would (for inputs; for the oldest of
 * SCHEDULE_GRAD_SENDS gradients under way). False: a pass is missing, comes twice or too early, or stages wait for each other for ever; `why` says which. Cost of
 * an action: 1 (forward), 1 each for the two halves of a backward. "forward" leaves its micro-batches alive. */
enum { SCHEDULE_MAX_STAGE = 64 };
typedef struct ScheduleProof {
  int peak_live[SCHEDULE_MAX_STAGE];    /* micro-batch chunks alive per stage */
  double span, bubble;                  /* time, and the share of it that stages idle */
  char why[128];
} ScheduleProof;
bool schedule_prove(ScheduleProof *proof, Arena *a, const char *name, int n_stage, int n_mb, int n_chunk);
/* The same of given actions, stage by stage: s [n_stage], alike in n_mb and n_chunk. forward_only: there is no backward. */
bool schedule_prove_actions(ScheduleProof *proof, Arena *a, const Schedule *s, int n_stage, bool forward_only);
#endif
