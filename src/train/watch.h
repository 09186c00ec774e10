/* Everything that looks at training from the side, so that the loop has four calls for all of it. Called by train. */
#ifndef ETALON_WATCH_H
#define ETALON_WATCH_H
#include "train/hashes.h"

typedef struct Watch {
  Session *s; Metrics *m;
  TapMux taps;               /* of the step that is about to run */
  ValueHash values;
} Watch;

/* Collective. s and m must stay where they are. */
bool watch_open(Watch *w, Session *s, Metrics *m, Err *e);
/* Before and after exec_run of iteration `it`. Collective. */
void watch_before(Watch *w, int64_t it);
bool watch_after(Watch *w, const StepResult *r, int64_t it, Err *e);
#endif
