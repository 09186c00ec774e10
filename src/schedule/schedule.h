/* Schedules by name: one row each in schedule.c. A rank's actions for its stage; the chunk is the model chunk on that stage.            */
#ifndef ETALON_SCHEDULE_H
#define ETALON_SCHEDULE_H
#include "base/arena.h"
#include "base/err.h"
#include "program/schedule.h"
/* name: "1f1b" (Narayanan et al. 2019), "all_forward" (GPipe), "forward" (no backward: evaluation). Works for any n_mb >= 1. */
bool schedule_build(Schedule *s, Arena *a, const char *name, int n_stage, int stage, int n_mb, Err *e);
#endif
