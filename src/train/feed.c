#include "train/feed.h"

#include <string.h>

/* The windows of sequence q in view t, from whole sequences to where the view has them. */
static void keep_windows(const TokenView *t, int q, int64_t S, const int32_t *from, int32_t *to) {
  for (int w = 0; w < t->n_window; w++)
    if (t->window_seq[w] == q) memcpy(to + t->window_start[w], from + t->window_number[w] % S, (size_t)(t->window_start[w + 1] - t->window_start[w]) * sizeof *to);
}

bool feed_step(Exec *x, const Job *j, int which, FeedFn *fetch, void *ctx, Err *e) {
  const JobStep *s = which == EXEC_TRAIN ? &j->train : &j->eval;
  const DealMb *mb = exec_geometry(x, which);
  int32_t *token = exec_tokens(x, which), *label = exec_labels(x, which);
  ArenaMark mark = arena_mark(j->arena);
  int64_t S = s->deal.seq_length;
  int32_t *whole_token = ARENA_NEW(j->arena, int32_t, S), *whole_label = ARENA_NEW(j->arena, int32_t, S);
  bool ok = true;
  for (int i = 0; i < s->deal.n_mb && ok; i++) {
    const TokenView *t = &mb[i].view[VIEW_TP];
    DealShare share = deal_share(&s->deal, j->place.dp, i);
    for (int q = 0; q < share.n && ok; q++) {
      ok = fetch(ctx, share.first + q, whole_token, whole_label, e);
      keep_windows(t, q, S, whole_token, token);
      keep_windows(t, q, S, whole_label, label);
    }
    token += t->n_token, label += t->n_token;
  }
  arena_release(j->arena, mark);
  return ok;
}
