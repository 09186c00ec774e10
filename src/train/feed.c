#include "train/feed.h"

#include <string.h>

/* The windows of sequence q in view t, from whole sequences to where the view has them. */
static void keep_windows(const TokenView *t, int q, int64_t S, const int32_t *from, int32_t *to) {
  for (int w = 0; w < t->n_window; w++)
    if (t->window_seq[w] == q)
      memcpy(to + t->window_start[w], from + t->window_number[w] % S, (size_t)(t->window_start[w + 1] - t->window_start[w]) * sizeof *to);
}

/* A document ends with a token that says so. */
static void find_documents(const int32_t *token, int64_t n, int64_t eod, int32_t *start) {
  int32_t first = 0;
  for (int64_t t = 0; t < n; t++) {
    start[t] = first;
    if (token[t] == eod) first = (int32_t)t + 1;
  }
}
static void feed_documents(Exec *x, const Job *j, int which, int mb, int q, const int32_t *token, int32_t *start, int64_t S) {
  int32_t *tp = exec_documents(x, which, mb, VIEW_TP), *whole = exec_documents(x, which, mb, VIEW_SEQ);
  if (!whole) return;
  const DealMb *m = &exec_geometry(x, which)[mb];
  find_documents(token, S, j->c->data.eod_token, start);
  keep_windows(&m->view[VIEW_TP], q, S, start, tp);
  memcpy(whole + m->view[VIEW_SEQ].seq_start[q], start, (size_t)S * sizeof *start);
}

bool feed_step(Exec *x, const Job *j, int which, FeedFn *fetch, void *ctx, Err *e) {
  const JobStep *s = which == EXEC_TRAIN ? &j->train : &j->eval;
  const DealMb *mb = exec_geometry(x, which);
  int32_t *token = exec_tokens(x, which), *label = exec_labels(x, which);
  ArenaMark mark = arena_mark(j->arena);
  int64_t S = s->deal.seq_length;
  int32_t *whole_token = ARENA_NEW(j->arena, int32_t, S), *whole_label = ARENA_NEW(j->arena, int32_t, S),
          *start = ARENA_NEW(j->arena, int32_t, S);
  bool ok = true;
  for (int i = 0; i < s->deal.n_mb && ok; i++) {
    const TokenView *t = &mb[i].view[VIEW_TP];
    DealShare share = deal_share(&s->deal, j->place.dp, i);
    for (int q = 0; q < share.n && ok; q++) {
      ok = fetch(ctx, share.first + q, whole_token, whole_label, e);
      keep_windows(t, q, S, whole_token, token);
      keep_windows(t, q, S, whole_label, label);
      if (ok) feed_documents(x, j, which, i, q, whole_token, start, S);
    }
    token += t->n_token, label += t->n_token;
  }
  arena_release(j->arena, mark);
  return ok;
}
