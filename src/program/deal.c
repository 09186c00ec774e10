#include "program/deal.h"

#include "base/err.h"

Deal deal_make(int64_t n_seq, int64_t seq_length, int64_t micro_batch, int64_t window, const Mesh *m) {
  Deal d = {.n_seq = n_seq,
            .seq_length = seq_length,
            .micro_batch = micro_batch,
            .window = window,
            .n_dp = m->size[AXIS_DP],
            .n_cp = m->size[AXIS_CP],
            .n_tp = m->size[AXIS_TP]};
  int64_t most = (n_seq + d.n_dp - 1) / d.n_dp;
  if (d.micro_batch > most) d.micro_batch = most;
  d.n_mb = (int)((most + d.micro_batch - 1) / d.micro_batch);
  return d;
}

DealPlace deal_place(const Mesh *m, int rank) {
  return (DealPlace){mesh_coord(m, rank, AXIS_DP), mesh_coord(m, rank, AXIS_CP), mesh_coord(m, rank, AXIS_TP)};
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

/* Windows of a sequence that a CP rank holds: chunks cp and 2 n_cp - 1 - cp of 2 n_cp; the k-th of them in ascending order. */
typedef struct CpShare {
  int64_t low, n_low, high, n_high;
} CpShare;
static CpShare cp_share(const Deal *d, int cp) {
  int64_t n = deal_windows_per_seq(d);
  int chunks = 2 * d->n_cp, other = chunks - 1 - cp;
  CpShare s = {.low = share_begin(n, chunks, cp), .high = share_begin(n, chunks, other)};
  s.n_low = share_begin(n, chunks, cp + 1) - s.low;
  s.n_high = share_begin(n, chunks, other + 1) - s.high;
  return s;
}
static int64_t nth_window(const CpShare *s, int64_t k) { return k < s->n_low ? s->low + k : s->high + k - s->n_low; }

/* A view as an interval [first, end) of the list of windows that lie by (sequence, window): per_seq windows of every sequence. */
typedef struct Span {
  CpShare cp;
  int64_t per_seq, first, end;
} Span;
static Span span_of(const Deal *d, DealPlace p, int mb, ViewKind kind) {
  Span s = {.cp = cp_share(d, p.cp)};
  if (kind == VIEW_SEQ) s.cp = (CpShare){.n_low = deal_windows_per_seq(d)};
  s.per_seq = s.cp.n_low + s.cp.n_high;
  int64_t n = s.per_seq * deal_share(d, p.dp, mb).n;
  s.first = kind == VIEW_OWN ? share_begin(n, d->n_tp, p.tp) : 0;
  s.end = kind == VIEW_OWN ? share_begin(n, d->n_tp, p.tp + 1) : n;
  return s;
}
static int64_t window_tokens(const Deal *d, int64_t window) {
  int64_t left = d->seq_length - window * d->window;
  return left < d->window ? left : d->window;
}

DealCount deal_count(const Deal *d, DealPlace p, int mb, ViewKind kind) {
  Span s = span_of(d, p, mb, kind);
  DealCount c = {.n_window = s.end - s.first};
  for (int64_t i = s.first; i < s.end; i++) c.n_token += window_tokens(d, nth_window(&s.cp, i % s.per_seq));
  return c;
}

DealCount deal_most(const Deal *d, DealPlace p, ViewKind kind) {
  DealCount most = {0};
  for (int mb = 0; mb < d->n_mb; mb++) {
    DealCount c = deal_count(d, p, mb, kind);
    if (c.n_window > most.n_window) most.n_window = c.n_window;
    if (c.n_token > most.n_token) most.n_token = c.n_token;
  }
  return most;
}

TokenView deal_view(const Deal *d, Arena *a, DealPlace p, int mb, ViewKind kind) {
  DealShare share = deal_share(d, p.dp, mb);
  Span s = span_of(d, p, mb, kind);
  DealCount n = deal_count(d, p, mb, kind);
  CHECK(n.n_token < INT32_MAX, "a micro-batch of %lld tokens", (long long)n.n_token);
  int32_t *seq_start = ARENA_NEW(a, int32_t, share.n + 1), *start = ARENA_NEW(a, int32_t, n.n_window + 1),
          *seq = ARENA_NEW(a, int32_t, n.n_window);
  int32_t *position = ARENA_NEW(a, int32_t, n.n_token);
  int64_t *number = ARENA_NEW(a, int64_t, n.n_window), t = 0, w = 0;
  for (int64_t q = 0; q < share.n; q++) {
    seq_start[q] = (int32_t)t;
    for (int64_t i = s.first > q * s.per_seq ? s.first : q * s.per_seq; i < s.end && i < (q + 1) * s.per_seq; i++, w++) {
      int64_t from = nth_window(&s.cp, i % s.per_seq) * d->window, len = window_tokens(d, from / d->window);
      start[w] = (int32_t)t, seq[w] = (int32_t)q;
      number[w] = (share.first + q) * d->seq_length + from;
      for (int64_t k = 0; k < len; k++) position[t++] = (int32_t)(from + k);
    }
  }
  seq_start[share.n] = start[w] = (int32_t)t;
  return (TokenView){.n_token = t,
                     .n_seq = (int)share.n,
                     .n_window = (int)w,
                     .seq_start = seq_start,
                     .window_start = start,
                     .position = position,
                     .window_number = number,
                     .window_seq = seq};
}

/* Runs of adjacent tokens, CP rank by CP rank. */
static int cp_segments(const Deal *d, DealPlace p, int mb, CpSegment *out) {
  int64_t n_seq = deal_share(d, p.dp, mb).n;
  int n = 0;
  for (int cp = 0; cp < d->n_cp; cp++) {
    CpShare s = cp_share(d, cp);
    int64_t row = 0;
    for (int64_t q = 0; q < n_seq; q++)
      for (int64_t i = 0; i < s.n_low + s.n_high; i++) {
        int64_t w = nth_window(&s, i), len = window_tokens(d, w), at = q * d->seq_length + w * d->window;
        bool joins = n > 0 && out[n - 1].cp == cp && out[n - 1].seq_row + out[n - 1].n == at;
        if (joins)
          out[n - 1].n += len;
        else
          out[n++] = (CpSegment){cp, row, at, len};
        row += len;
      }
  }
  return n;
}

DealMb deal_mb(const Deal *d, Arena *a, DealPlace p, int mb) {
  DealMb m;
  for (int k = 0; k < N_TOKEN_VIEW; k++) m.view[k] = deal_view(d, a, p, mb, k);
  int64_t *row = ARENA_NEW(a, int64_t, d->n_tp + 1);
  for (int t = 0; t < d->n_tp; t++) row[t + 1] = row[t] + deal_count(d, (DealPlace){p.dp, p.cp, t}, mb, VIEW_OWN).n_token;
  CpSegment *seg = ARENA_NEW(a, CpSegment, deal_share(d, p.dp, mb).n * deal_windows_per_seq(d) + 1);
  m.n_cp_segment = cp_segments(d, p, mb, seg);
  m.tp_row = row, m.cp_segment = seg;
  return m;
}
