/* `etalon train`: the loop. Path of a step: loop.c -> data/sampler -> exec -> kernels -> comm/reduce -> metrics. */
#ifndef ETALON_LOOP_H
#define ETALON_LOOP_H
#include "config/config.h"
#include "comm/comm.h"
/* Collective. resume: NULL, or a checkpoint or directory. ERR_RESUME when asked to stop (state is saved). */
bool train_run(World *w, Arena *a, const Config *c, const char *resume, Err *e);
#endif
