/* Where the time of training steps goes: by op, pass and kind of instruction (train.profile). Called by watch. */
#ifndef ETALON_PROFILE_H
#define ETALON_PROFILE_H
#include "base/log.h"
#include "train/named.h"
#include "train/setup.h"

typedef struct Profile {
  NamedList rows;            /* v: nanoseconds, calls, kiloflop, WorkKind (the same on all ranks) */
  int *row_of;               /* [n_ins] */
  int n_step;
  double step, between;      /* seconds in steps, and from a step to the next: data, logs, evaluations, checkpoints */
  double began, ended;       /* the running step; 0: none yet */
} Profile;

void profile_open(Profile *p, const Setup *s);
void profile_begin(Profile *p);
/* An instruction of the training step took this long. */
void profile_add(Profile *p, const Setup *s, int ins, double seconds);
void profile_end(Profile *p);
/* Collective: a table of all ranks. */
void profile_print(Profile *p, Setup *s, Log *log);
#endif
