/* Writes a golden file (golden.h reads it; tests/oracle/README.md says what is in one). Rank 0 writes what all ranks hand over. */
#ifndef ETALON_GOLDEN_WRITE_H
#define ETALON_GOLDEN_WRITE_H
#include "ckpt/golden.h"
#include "comm/comm.h"

typedef struct GoldenOut GoldenOut;
/* path.part, until golden_finish. Not collective: only rank 0 does anything. ERR_CKPT on rank 0. */
bool golden_create(GoldenOut **g, World *w, Arena *a, const char *path, const GoldenConfig *c, const char *numerics, Err *e);
/* One data set, whose groups are made as needed. n_dim 0: a scalar. After a failure nothing more is written. */
void golden_put_f64(GoldenOut *g, const char *name, int n_dim, const int64_t *dims, const double *data, Err *e);
void golden_put_i64(GoldenOut *g, const char *name, int n_dim, const int64_t *dims, const int64_t *data, Err *e);
/* Collective: the file gets its name if all ranks are without error, else it is deleted. */
bool golden_finish(GoldenOut *g, Err *e);
#endif
