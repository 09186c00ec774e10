/* Everything that looks at training from the side, so that the loop has four calls for all of it. Called by train. */
#ifndef ETALON_WATCH_H
#define ETALON_WATCH_H
#include "train/hashes.h"
#include "train/profile.h"
#include "train/routing_trace.h"
#include "train/trace.h"

typedef struct Watch {
  Setup *s; Metrics *m; Log *log;
  int64_t first, it;         /* the iteration that this run begins with; the one that is running */
  TapMux taps;               /* of the step that is about to run */
  ValueHash values;
  Profile profile;
  RouteRecorder record;
  RouteReplay replay;
  Trace trace; bool traced;  /* it is written */
} Watch;

/* Collective. s, m and log must stay where they are. done: iterations before this run. */
bool watch_open(Watch *w, Setup *s, Metrics *m, Log *log, int64_t done, Err *e);
/* Before and after exec_run of iteration `it`. Collective. */
bool watch_before(Watch *w, int64_t it, Err *e);
void watch_after(Watch *w, const StepResult *r, int64_t it);
/* Collective, after the last step of this run and before the setup is closed: what is told at the end. */
void watch_end(Watch *w);
void watch_close(Watch *w);
#endif
