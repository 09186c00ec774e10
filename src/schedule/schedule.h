/* Schedules by name: one row each in schedule.c. A rank's actions for its stage; a chunk is one of the stage's virtual stages (chunk c of stage s is virtual
 * stage c * n_stage + s). Works for any number of micro-batches >= 1, fewer than stages included.                                        */
#ifndef ETALON_SCHEDULE_H
#define ETALON_SCHEDULE_H
#include "base/arena.h"
#include "base/err.h"
#include "program/schedule.h"

/* "1f1b" (Narayanan et al. 2019), "all_forward" (Huang et al. 2019), "interleaved" (Narayanan et al. 2021), "zero_bubble" (ZB-H1, Qi et al. 2023), "forward" (no
 * backward: evaluation). ERR_CONFIG: no such schedule. */
bool schedule_build(Schedule *s, Arena *a, const char *name, int n_stage, int stage, int n_mb, int n_chunk, Err *e);

/* Runs all stages' actions against each other: every forward before its backward, every message met. False: they wait for each other for ever. Cost of an action: 1 (forward), 1 each for the two halves of a backward. */
typedef struct ScheduleProof { int peak_live[64]; /* micro-batch chunks alive per stage */ double span, bubble; /* time, and the share of it that stages idle */ } ScheduleProof;
bool schedule_prove(ScheduleProof *proof, Arena *a, const char *name, int n_stage, int n_mb, int n_chunk);
#endif
