/* The weights of a checkpoint without its optimizer state, in whatever type they were saved: for eval, sample and golden, which only look. */
#ifndef ETALON_WEIGHTS_H
#define ETALON_WEIGHTS_H
#include "base/log.h"
#include "train/job.h"

typedef struct WeightsFrom { char *file; int64_t step, consumed_samples; } WeightsFrom;

/* Collective. path: a checkpoint or a directory (ckpt_read_newest; what was passed over is logged). Where the file's type is not the job's, values are
 * converted (FP32 to FP64 is exact). ERR_CKPT: as ckpt_load, or a config in the file that this version does not read. */
bool weights_load(Exec *x, const Job *j, World *w, const char *path, WeightsFrom *from, Log *log, Err *e);
/* Collective. The configuration that a checkpoint, or the newest of a directory whose configuration can be read, carries: text (YAML, no layout derived).
 * NULL: failed. */
const char *weights_config(World *w, Arena *a, const char *path, char **file, Err *e);
/* Rounds the weights to FP32, so that trainers of that type can start from the same numbers. */
void weights_round(Exec *x, const Job *j);
#endif
