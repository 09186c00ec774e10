#include "train/evaluate.h"

#include <math.h>

#include "comm/comm.h"

/* Sequences beyond the last are there with every label ignored. */
static bool fill(Exec *x, const Job *j, const TokenFile *f, int64_t chunk_first, int64_t n_seq, Err *e) {
  DealShare mine = deal_rank(&j->eval.deal, j->dp);
  int64_t S = j->eval.deal.seq_length;
  int32_t *token = exec_tokens(x, EXEC_EVAL), *label = exec_labels(x, EXEC_EVAL);
  for (int64_t i = 0; i < mine.n; i++, token += S, label += S) {
    int64_t s = chunk_first + mine.first + i;
    if (s < n_seq) TRY(valid_fetch(f, S, s, token, label, e));
    else
      for (int64_t t = 0; t < S; t++) token[t] = 0, label[t] = -100;
  }
  return true;
}

bool evaluate_run(Exec *x, const Job *j, World *w, const TokenFile *f, const Stop *stop, EvalResult *out, Err *e) {
  int64_t n_seq = valid_count(f, j->eval.deal.seq_length);
  uint64_t sum = 0;
  *out = (EvalResult){0};
  StepResult r = {0};
  for (int64_t first = 0; first < n_seq && !out->stopped; first += job_eval_chunk(j)) {
    fault_at(world_fault(w), FAULT_EVAL_CHUNK, NULL);
    fill(x, j, f, first, n_seq, e);
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
