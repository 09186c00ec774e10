/* When and how a run saves: at once, or in the background (checkpoint.async). Called by the loop. */
#ifndef ETALON_SAVER_H
#define ETALON_SAVER_H
#include "ckpt/ckpt.h"
#include "train/metrics.h"
#include "train/state.h"

typedef struct Saver {
  World *world; Exec *x; const Job *job; Metrics *metrics;
  CkptDir there;                    /* what checkpoint.dir held when the run began */
  int64_t saved_step;               /* the last step of this run's history whose save in checkpoint.dir was begun; -1: none */
  CkptRoom room;                    /* checkpoint.async: where the copy goes */
  CkptTask *task; int64_t task_step; /* under way, or NULL */
} Saver;

/* Bytes of host memory beside the plan's for the copy of checkpoint.async; 0 without it. ERR_MEMORY: memory.host_limit does not hold both. */
bool saver_plan(const Job *j, size_t *bytes, Err *e);
/* First of all: looks at checkpoint.dir. resume: what --resume names, or NULL. ERR_CONFIG: it holds checkpoints that this run neither goes on from nor may
 * delete, and the run is going to save. Collective. */
bool saver_look(Saver *s, World *w, Arena *a, const Config *c, const char *resume, Log *log, Err *e);
/* After saver_look, before the first step; step: what the run goes on from, 0: the beginning. ERR_MEMORY as saver_plan; ERR_CONFIG: checkpoint.dir cannot be
 * written. Collective. */
bool saver_open(Saver *s, World *w, Exec *x, const Job *j, Metrics *m, int64_t step, Log *log, Err *e);
/* Collective, all of them; ERR_CKPT. Saves the state as it is now; in the background: once a save that is under way is done, copies the state and goes on. */
bool saver_save(Saver *s, int64_t step, int64_t consumed, Err *e);
bool saver_border(Saver *s, Err *e);      /* after each step: lets a save in the background go on */
bool saver_finish(Saver *s, Err *e);      /* waits for it */
void saver_close(Saver *s);               /* nothing may be under way */
#endif
