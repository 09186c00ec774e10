/* Results of one query over two parts of its keys become the result over both (online softmax: Milakov & Gimelshein 2018). */
#include "attention.h"
#include "lanes.h"

/* What the two are multiplied by; the log-sum-exp over both. A part without keys (-inf) leaves the other's bits. */
typedef struct MergeWeights {
  real lse, own, part;
} MergeWeights;
static MergeWeights merge_weights(real own, real part) {
  if (part == -REAL_INF) return (MergeWeights){own, R(1.0), R(0.0)};
  if (own == -REAL_INF) return (MergeWeights){part, R(0.0), R(1.0)};
  real max = own > part ? own : part, lse = max + real_log(real_exp(own - max) + real_exp(part - max));
  return (MergeWeights){lse, real_exp(own - lse), real_exp(part - lse)};
}

void FN(attention_merge)(const KCtx *c, void *o, void *lse, const void *o_part, const void *lse_part, const AttnArgs *a,
                         const TokenView *qv) {
  int64_t D = a->head_dim, heads = shard_total(&a->q) / D, first = shard_begin(&a->q, a->q.first) / D;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t t = 0; t < qv->n_token; t++)
    for (int64_t i = 0; i < heads; i++) {
      AttnHead h = attn_head(&a->q, first + i, qv->n_token);
      real *x = (real *)o + h.at + t * h.stride, *sum = (real *)lse + t * heads + i;
      const real *y = (const real *)o_part + h.at + t * h.stride;
      MergeWeights w = merge_weights(*sum, ((const real *)lse_part)[t * heads + i]);
      *sum = w.lse;
      if (w.part == 0) continue;
      for (int64_t d = 0; d < D; d++) x[d] = REAL_FMA(w.part, y[d], w.own * x[d]);
    }
}
