/* What every verb that runs a model begins with: the device is opened and tried, the job planned, the world given its mesh, exec opened.
 * Called by train, eval, sample and golden (check plans from a file's config and does it by itself). */
#ifndef ETALON_SETUP_H
#define ETALON_SETUP_H
#include "data/data.h"
#include "train/job.h"

typedef struct Setup { World *world; Arena *arena; const Config *c; Device device; Job job; Exec *x; } Setup;

/* Collective. n_valid_seq: sequences to evaluate (0: no evaluation step). Initial weights are not set. The Setup must stay where it is.
 * ERR_CONFIG: canonical mode on a GEMM provider without row independence, or on unlike machines; ERR_MEMORY. setup_close is owed
 * whatever came back. */
bool setup_open(Setup *s, World *w, Arena *a, const Config *c, int64_t n_valid_seq, Err *e);
void setup_close(Setup *s);
/* A file of data.train or data.valid. ERR_DATA. Not collective. */
bool setup_tokens(TokenFile *f, Arena *a, const Config *c, const char *path, Err *e);
#endif
