/* Validation loss: the token-weighted mean over all tokens of the validation file. */
#ifndef ETALON_EVALUATE_H
#define ETALON_EVALUATE_H
#include "data/data.h"
#include "train/job.h"
typedef struct EvalResult { double loss; int64_t n_token; bool fault; } EvalResult;
/* Collective. ERR_DATA: a token that the file's reader refuses. */
bool evaluate_run(Exec *x, const Job *j, World *w, const TokenFile *f, EvalResult *r, Err *e);
#endif
