#include "program/deal.h"

#include "base/err.h"
#include "comm/mesh.h"

Deal deal_make(int64_t n_seq, int64_t seq_length, int64_t micro_batch, int64_t window, int n_dp) {
  Deal d = {.n_seq = n_seq, .seq_length = seq_length, .micro_batch = micro_batch, .window = window, .n_dp = n_dp};
  int64_t most = (n_seq + n_dp - 1) / n_dp;
  if (d.micro_batch > most) d.micro_batch = most;
  d.n_mb = (int)((most + d.micro_batch - 1) / d.micro_batch);
  return d;
}

DealShare deal_rank(const Deal *d, int dp) {
  int64_t first = share_begin(d->n_seq, d->n_dp, dp);
  return (DealShare){first, share_begin(d->n_seq, d->n_dp, dp + 1) - first};
}

DealShare deal_share(const Deal *d, int dp, int mb) {
  DealShare r = deal_rank(d, dp);
  int64_t skip = mb * d->micro_batch, left = r.n - skip;
  return (DealShare){r.first + skip, left < 0 ? 0 : left < d->micro_batch ? left : d->micro_batch};
}

int64_t deal_windows_per_seq(const Deal *d) { return (d->seq_length + d->window - 1) / d->window; }

int64_t deal_max_sequences(const Deal *d) { return d->micro_batch; }

/* Window w of a sequence covers positions w * window to the next multiple or the end. */
TokenView deal_tokens(const Deal *d, Arena *a, DealShare s) {
  int64_t S = d->seq_length, per_seq = deal_windows_per_seq(d);
  int32_t *seq = ARENA_NEW(a, int32_t, s.n + 1), *win = ARENA_NEW(a, int32_t, s.n * per_seq + 1), *pos = ARENA_NEW(a, int32_t, s.n * S);
  CHECK(s.n * S < INT32_MAX, "a micro-batch of %lld tokens", (long long)(s.n * S));
  for (int64_t i = 0; i <= s.n; i++) seq[i] = (int32_t)(i * S);
  for (int64_t i = 0; i < s.n * per_seq; i++) win[i] = (int32_t)(i / per_seq * S + i % per_seq * d->window);
  win[s.n * per_seq] = (int32_t)(s.n * S);
  for (int64_t i = 0; i < s.n * S; i++) pos[i] = (int32_t)(i % S);
  return (TokenView){.n_token = s.n * S, .n_seq = (int)s.n, .n_window = (int)(s.n * per_seq), .seq_start = seq, .window_start = win, .position = pos,
                     .first_token = s.first * S};
}
