/* Embedding rows and their gradient. */
#include "cpu_kernels.h"
#include "leaf.h"
#include <string.h>

enum { EMBED_COLUMNS = 512 };

/* Elements from the start of the local table to the row of a token, or -1 when the row is not here. */
static int64_t embed_row(const Shards *vocab, const int64_t *offset, int64_t H, int32_t token) {
  int64_t x = token;
  if (x < 0 || x >= vocab->units * vocab->unit) return -1;
  int i = shard_find(vocab, x);
  return shard_is_local(vocab, i) ? offset[i - vocab->first] + (x - shard_begin(vocab, i)) * H : -1;
}

void FN(embed_fwd)(const KCtx *c, void *x, const Weight *w, const Shards *vocab, int64_t H, const int32_t *token, int64_t T) {
  act *out = x;
  const act *table = w->data;
  size_t bytes = (size_t)H * sizeof(act);
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < T; t++) {
    int64_t row = embed_row(vocab, w->offset, H, token[t]);
    if (row < 0)
      memset(out + t * H, 0, bytes);
    else
      memcpy(out + t * H, table + row, bytes);
  }
}

static bool embed_seen_before(const int32_t *token, int32_t begin, int32_t t) {
  int32_t id = token[t];
  int seen = 0;
  for (int32_t i = begin; i < t; i++) seen |= token[i] == id;
  return seen;
}

static int32_t embed_next(const int32_t *token, int32_t t, int32_t end) {
  int32_t id = token[t];
  do t++;
  while (t < end && token[t] != id);
  return t;
}

/* The leaf of the id whose first token in the window is t: its rows of dx, added in token order. */
static void embed_leaf(const Accum *acc, int64_t at, int64_t H, const int32_t *token, const act *dx, int32_t t, int32_t end,
                       int64_t n_token) {
  real sum[EMBED_COLUMNS];
  for (int64_t h = 0; h < H; h += EMBED_COLUMNS) {
    int64_t n = H - h < EMBED_COLUMNS ? H - h : EMBED_COLUMNS;
    act_widen(sum, dx + t * H + h, n);
    for (int32_t u = embed_next(token, t, end); u < end; u = embed_next(token, u, end))
      for (int64_t i = 0; i < n; i++) sum[i] += act_load(dx[u * H + h + i]);
    leaf_add(acc, at + h, sum, n, n_token);
  }
}

/* Threads share out the ids, so that no accumulator row has two writers. */
void FN(embed_dw)(const KCtx *c, const Accum *acc, const Shards *vocab, int64_t H, const int32_t *token, const void *dx,
                  const TokenView *tv) {
#pragma omp parallel for num_threads(c->threads) schedule(static, 1)
  for (int part = 0; part < c->threads; part++) {
    for (int w = 0; w < tv->n_window; w++) {
      int32_t begin = tv->window_start[w], end = tv->window_start[w + 1];
      for (int32_t t = begin; t < end; t++) {
        if (token[t] < 0 || token[t] % c->threads != part || embed_seen_before(token, begin, t)) continue;
        int64_t at = embed_row(vocab, acc->offset, H, token[t]);
        if (at >= 0) embed_leaf(acc, at, H, token, dx, t, end, end - begin);
      }
    }
  }
}
