/* Validation loss: the token-weighted mean over all tokens of the validation file. */
#ifndef ETALON_EVALUATE_H
#define ETALON_EVALUATE_H
#include "data/data.h"
#include "train/job.h"
#include "train/stop.h"
typedef struct EvalResult { double loss; int64_t n_token; bool fault; const char *stopped /* NULL, or why it was given up half-way */; } EvalResult;
/* Collective. stop: NULL, or asked between pieces of it: a request ends the evaluation there. ERR_DATA: a token that the file's reader refuses. */
bool evaluate_run(Exec *x, const Job *j, World *w, const TokenFile *f, const Stop *stop, EvalResult *r, Err *e);
#endif
