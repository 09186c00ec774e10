#include "train/evaluate.h"

#include <math.h>

#include "comm/comm.h"
#include "train/feed.h"

typedef struct EvalFeed {
  const TokenFile *f;
  int64_t first, n_seq, seq_length;
} EvalFeed;

/* Sequences beyond the last are there with every label ignored. */
static bool fetch(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  const EvalFeed *d = ctx;
  if (d->first + seq < d->n_seq) return valid_fetch(d->f, d->seq_length, d->first + seq, token, label, e);
  for (int64_t t = 0; t < d->seq_length; t++) token[t] = 0, label[t] = LABEL_IGNORED;
  return true;
}

bool evaluate_run(Exec *x, const Job *j, World *w, const TokenFile *f, const Stop *stop, EvalResult *out, Err *e) {
  int64_t n_seq = valid_count(f, j->eval.deal.seq_length);
  uint64_t sum = 0;
  *out = (EvalResult){0};
  StepResult r = {0};
  for (int64_t first = 0; first < n_seq && !out->stopped; first += job_eval_chunk(j)) {
    fault_at(world_fault(w), FAULT_EVAL_CHUNK, NULL);
    EvalFeed d = {f, first, n_seq, j->eval.deal.seq_length};
    feed_step(x, j, EXEC_EVAL, fetch, &d, e);
    TRY(world_agree(w, e));
    exec_run(x, EXEC_EVAL, NULL, &r);
    sum += r.stat[STAT_LOSS];
    out->n_token += r.n_valid;
    out->fault |= r.fault;
    if (stop && first + job_eval_chunk(j) < n_seq) out->stopped = stop_requested(stop, w);
  }
  if (out->n_token) out->loss = (double)(int64_t)sum / (double)(1ull << r.stat_shift) / (double)out->n_token;
  if (out->fault) out->loss = NAN;
  return true;
}
