/* The files that a run writes are none of those that it reads. Called by train before anything is opened. */
#ifndef ETALON_OUTPUTS_H
#define ETALON_OUTPUTS_H
#include "base/arena.h"
#include "config/config.h"

/* config: its file; resume: NULL, or what --resume names. ERR_CONFIG. Not collective. */
bool outputs_apart(Arena *a, const Config *c, const char *config, const char *resume, Err *e);
#endif
