/* Prototypes of the CPU kernels of one element type, for table.c and for the kernels that share helpers. What each does: kernel.h. */
#ifndef ETALON_CPU_KERNELS_H
#define ETALON_CPU_KERNELS_H
#include "real.h"

/* Block that holds element x of the whole axis. */
static inline int shard_find(const Shards *s, int64_t x) {
  int i = (int)(x / s->unit * s->n / s->units);
  while (i + 1 < s->n && shard_begin(s, i + 1) <= x) i++;
  return i;
}
static inline bool shard_is_local(const Shards *s, int i) { return i >= s->first && i < s->first + s->count; }

void FN(widen)(const KCtx *c, void *y, const void *x, int64_t n);
void FN(narrow)(const KCtx *c, void *y, const void *x, int64_t n);

void FN(embed_fwd)(const KCtx *c, void *x, const Weight *w, const Shards *vocab, int64_t H, const int32_t *token, int64_t T);
void FN(embed_dw)(const KCtx *c, const Accum *acc, const Shards *vocab, int64_t H, const int32_t *token, const void *dx,
                  const TokenView *tv);

void FN(rmsnorm_fwd)(const KCtx *c, void *y, void *rstd, const void *x, const void *gain, int64_t T, int64_t H, double eps);
void FN(rmsnorm_dx)(const KCtx *c, void *dx, const void *dy, const void *x, const void *rstd, const void *gain, int64_t T, int64_t H);
void FN(rmsnorm_dw)(const KCtx *c, const Accum *acc, const void *dy, const void *x, const void *rstd, int64_t H, const TokenView *tv);

size_t FN(linear_work)(const KCtx *c, const LinArgs *a, const Rows *rows);
void FN(linear)(const KCtx *c, void *y, const void *x, const LinArgs *a, const Rows *rows);
size_t FN(linear_dw_work)(const KCtx *c, const LinGrad *g, const Rows *rows, int64_t leaf_bound);
void FN(linear_dw)(const KCtx *c, const void *dy, const void *x, const LinGrad *g, const Rows *rows);
void FN(linear_prepare)(const KCtx *c, const LinArgs *a, const Rows *rows, const int64_t *row_sizes, int n_sizes, bool grouped);
void FN(linear_dw_prepare)(const KCtx *c, const LinGrad *g, const Rows *rows, const int64_t *row_sizes, int n_sizes, bool grouped,
                           int64_t leaf_bound);

void FN(rope)(const KCtx *c, void *y, const void *x, const Shards *heads, double theta, int sign, const TokenView *tv);

size_t FN(attention_work)(const KCtx *c, const AttnArgs *a, const TokenView *qv, const TokenView *kv, AttnPass pass);
void FN(attention_fwd)(const KCtx *c, void *o, void *lse, const void *q, const void *k, const void *v, const AttnArgs *a,
                       const TokenView *qv, const TokenView *kv);
void FN(attention_merge)(const KCtx *c, void *o, void *lse, const void *o_part, const void *lse_part, const AttnArgs *a,
                         const TokenView *qv);
void FN(attention_delta)(const KCtx *c, void *delta, const void *d_o, const void *o, const AttnArgs *a, const TokenView *qv);
void FN(attention_bwd)(const KCtx *c, void *dq, void *dk, void *dv, const void *d_o, const void *lse, const void *delta, const void *q,
                       const void *k, const void *v, const AttnArgs *a, const TokenView *qv, const TokenView *kv);

void FN(tree_merge)(const KCtx *c, void *y, const void *const *plane, const TreeNode *node, int n_plane, int64_t n_row, int64_t width,
                    int64_t y_stride, int64_t plane_stride);
void FN(bits_add)(const KCtx *c, void *y, const void *x, int64_t n);

void FN(swiglu_fwd)(const KCtx *c, void *y, const void *gate, const void *up, const void *w, const Shards *width, int64_t rows);
void FN(swiglu_bwd)(const KCtx *c, void *d_gate, void *d_up, void *dw, const void *dy, const void *gate, const void *up, const void *w,
                    const Shards *width, int64_t rows);

void FN(route_fwd)(const KCtx *c, int32_t *idx, void *wt, int32_t *row_of, int32_t *counts, const void *logits, const RouteArgs *a,
                   const TokenView *tv, const StatSink *stat);
void FN(sequence_counts)(const KCtx *c, int32_t *seq_counts, const int32_t *counts, int n_expert, const TokenView *tv);
void FN(route_bwd)(const KCtx *c, void *d_logits, const void *d_wt, const void *logits, const int32_t *idx, const int32_t *seq_counts,
                   const uint64_t *batch_counts, const RouteArgs *a, const TokenView *tv, const StatSink *stat);

void FN(rows_scatter)(const KCtx *c, void *rows, const void *x, const int32_t *row_of, int64_t T, int k, int64_t n);
void FN(rows_combine)(const KCtx *c, void *y, const void *rows, const int32_t *row_of, int64_t T, int k, int64_t n);
void FN(slots_to_rows)(const KCtx *c, void *rows, const void *slot, const int32_t *row_of, int64_t n);
void FN(rows_to_slots)(const KCtx *c, void *slot, const void *rows, const int32_t *row_of, int64_t n);

void FN(xent_leaves)(const KCtx *c, void *leaf, const void *logits, const Shards *vocab, const int32_t *label, int64_t T);
void FN(xent_merge)(const KCtx *c, void *loss, void *lse, const void *leaf, const Shards *vocab, const int32_t *label, int64_t T,
                    const TokenView *own, int64_t t0, const StatSink *stat);
void FN(xent_bwd)(const KCtx *c, void *d_logits, const void *logits, const void *lse, const Shards *vocab, const int32_t *label, int64_t T);

void FN(add)(const KCtx *c, void *y, const void *a, const void *b, int64_t n);
void FN(grad_finish)(const KCtx *c, void *grad, const void *acc, bool exact, int shift, double n_valid, int64_t n);
void FN(norm_blocks)(const KCtx *c, double *sq, const void *grad, int64_t n);
void FN(adamw)(const KCtx *c, void *w, void *m, void *v, const void *grad, int64_t n, const AdamArgs *a);
#endif
