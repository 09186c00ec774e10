/* Kernels: every computation on values, behind one table per (backend, element type). Plain C types only, C and C++ clean;
 * knows nothing of programs, ranks or MPI. Called by the op files (src/program/op_*.c), exec and the tests.
 *
 * Letters: T tokens of a micro-batch on this rank, H hidden, V vocabulary, E experts, k experts per token, R routed rows,
 * D head width, S positions of a sequence. `real` is the table's element type (float or double); a `void *` is real data.
 *
 * Numerics (README, "Numerics"): no result may depend on the number of threads, on alignment, or on which other rows are
 * in the call. Row-wise sums have an order that depends on the row's length alone. -ffp-contract=off; fused
 * multiply-adds are written as such. exp and log are our own (real_math.h), so vector bodies and tails give equal bits.
 *
 * Feature axes are shard-major: [n_shard][rows][width of the shard], each shard dense. Weights likewise, each shard at its
 * own offset. Outputs never overlap inputs unless a comment says "in place".                                             */
#ifndef ETALON_KERNEL_H
#define ETALON_KERNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { ROW_BLOCK = 64, NORM_BLOCK = 1024, ATTN_BLOCK = 64 };

/* What every call gets. `work` is private to the call: contents undefined (NaN in guard mode), size as the matching
 * *_work function said for these sizes and `threads`.                                                                   */
typedef struct KCtx { int threads; void *work; void *stream; struct Gemm *gemm; } KCtx;

/* A feature axis of `units * unit` elements cut into n blocks; block i covers units floor(i units / n) to floor((i+1) units / n).
 * This rank has blocks first .. first+count-1.                                                                          */
typedef struct Shards { int n, first, count; int64_t units, unit; } Shards;
static inline int64_t shard_begin(const Shards *s, int i) { return (int64_t)i * s->units / s->n * s->unit; }       /* elements, global */
static inline int64_t shard_width(const Shards *s, int i) { return shard_begin(s, i + 1) - shard_begin(s, i); }
static inline int64_t shard_local(const Shards *s, int i) { return shard_begin(s, i) - shard_begin(s, s->first); }  /* elements before block i here */
static inline int64_t shard_total(const Shards *s) { return shard_local(s, s->first + s->count); }                  /* elements here */

/* A parameter: local block j (0-based) of expert x begins at data + x * expert_stride + offset[j] elements. Dense: one expert. */
typedef struct Weight { const void *data; int64_t expert_stride; const int64_t *offset /* [shards.count] */; } Weight;

/* A gradient accumulator with the parameter's geometry. exact: uint64 on the grid 2^-shift, a leaf x of n tokens is added as
 * llrint(x * 2^shift) and must be finite and at most 128 n in magnitude, else `fault` is raised (atomically). Not exact: real, added. */
typedef struct Accum { void *data; int64_t expert_stride; const int64_t *offset; bool exact; int shift; uint64_t *fault; } Accum;

/* The tokens of a micro-batch on this rank: whole windows of whole or partial sequences. Window bounds never cross a sequence. */
typedef struct TokenView {
  int64_t n_token; int n_seq, n_window;
  const int32_t *seq_start;      /* [n_seq + 1], token numbers */
  const int32_t *window_start;   /* [n_window + 1], token numbers */
  const int32_t *position;       /* [T], position in the sequence */
  int64_t first_token;           /* number of token 0 in the global batch: sequence * S + position */
} TokenView;

/* Rows of one expert: row[0..n_row-1] contiguous from `row`; cut into n_leaf leaves (one per window that sent any row).
 * A dense layer is one RowGroup with expert 0 and its windows as leaves.                                                 */
typedef struct RowGroup { int expert; int64_t row, n_row; int leaf, n_leaf; } RowGroup;
typedef struct RowLeaf { int64_t row, n_row; int64_t n_token; /* tokens of the window: the bound's n */ } RowLeaf;
typedef struct Rows {
  int64_t n_row; int n_group; const RowGroup *group; const RowLeaf *leaf;
  bool blocked;      /* canonical: products in calls of exactly ROW_BLOCK rows, expert leaves padded to a multiple of 16 rows */
  int64_t row_bound; /* most rows there can be (sizes of plans) */
} Rows;

/* A linear layer's product over rows. MAP: y_j = x W_j for each block j. REDUCE: y = tree over j of x_j W_j (fixed binary tree over
 * global block numbers, absent nodes promoted; here: complete only when every block is local).                         */
typedef enum { LIN_MAP, LIN_REDUCE } LinMode;
typedef struct LinArgs {
  LinMode mode;
  bool    trans;         /* true: y = x W^T with W [n_out, n_in] (forward); false: y = x W (dX), W [n_in, n_out] */
  int64_t n_fixed;       /* the axis that is not cut: input width for MAP, output width for REDUCE */
  Shards  cut;           /* the axis that is: output for MAP, input for REDUCE */
  Weight  w;
} LinArgs;

/* Weight gradient of the same layer: W [n_out, n_in] row-major per block. cut_out: the output axis is cut (W_j [width_j, n_in]; dy is shard-major),
 * else the input axis (W_j [n_out, width_j]; x is shard-major).                                                         */
typedef struct LinGrad { bool cut_out; int64_t n_fixed; Shards cut; Accum acc; } LinGrad;

typedef struct AttnArgs {
  Shards q, kv;          /* unit D; heads of this rank; query head h uses key head h / (heads / kv_heads) */
  int64_t head_dim, window /* 0: none */; double scale;
} AttnArgs;

typedef struct RouteArgs {
  int n_expert, top_k; bool renormalise;
  int forced;            /* 0 learned, 1 balanced, 2 all to one, 3 zipf: ids come from the global token number, weights from the scores */
  double zipf_exponent; uint64_t seed;    /* seed: hash of (seed, layer); zipf only */
  bool   aux_per_sequence;                /* else: counts of the whole batch */
  double aux_scale;      /* d(total)/d(aux of the formula below) times N_valid; per sequence also divided by the number of sequences */
  double z_scale;        /* coefficient * N_valid / T_global */
  int64_t n_token_global;
} RouteArgs;

/* Integer statistics of a step (device memory, uint64 words, summed over ranks as integers). Real-valued ones are on the grid 2^-shift
 * like gradients, with leaves of one window.                                                                             */
typedef struct StatSink { uint64_t *word; int shift; uint64_t *fault; } StatSink;

typedef struct AdamArgs { double lr, beta1, beta2, eps, weight_decay, correction1 /* 1 - beta1^t */, correction2; double clip /* factor, 1: none */; } AdamArgs;

typedef struct Kernels {
  const char *name;      /* "cpu-f32" ... */
  size_t real_size;

  /* x[t] = W[token[t]]; vocabulary cut by rows: a token outside the local blocks gives zeros. W block [width, H]. */
  void (*embed_fwd)(const KCtx *, void *x /* [T, H] */, const Weight *w, const Shards *vocab, int64_t H, const int32_t *token /* [T] */, int64_t T);
  /* leaf = (window, id): rows of dx of that id in the window, added in token order */
  void (*embed_dw)(const KCtx *, const Accum *acc, const Shards *vocab, int64_t H, const int32_t *token, const void *dx /* [T, H] */, const TokenView *tv);

  /* y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019) */
  void (*rmsnorm_fwd)(const KCtx *, void *y /* [T, H] */, void *rstd /* [T] */, const void *x /* [T, H] */, const void *gain /* [H] */, int64_t T, int64_t H, double eps);
  void (*rmsnorm_dx)(const KCtx *, void *dx, const void *dy, const void *x, const void *rstd, const void *gain, int64_t T, int64_t H);
  void (*rmsnorm_dw)(const KCtx *, const Accum *acc /* [H] */, const void *dy, const void *x, const void *rstd, int64_t H, const TokenView *tv);

  size_t (*linear_work)(const KCtx *, const LinArgs *, const Rows *);   /* *_work: bytes of KCtx.work; read only threads and gemm of the context */
  void   (*linear)(const KCtx *, void *y, const void *x, const LinArgs *, const Rows *);
  size_t (*linear_dw_work)(const KCtx *, const LinGrad *, const Rows *, int64_t leaf_bound /* most rows in a leaf */);
  void   (*linear_dw)(const KCtx *, const void *dy, const void *x, const LinGrad *, const Rows *);
  /* Announces shapes before step 1, so that the GEMM provider builds what it builds per shape. row_sizes: the row counts that dense groups (native mode) and
   * dense leaves can have; grouped: any count up to the bound (an expert's rows).                                        */
  void   (*linear_prepare)(const KCtx *, const LinArgs *, const Rows *, const int64_t *row_sizes, int n_sizes, bool grouped);
  void   (*linear_dw_prepare)(const KCtx *, const LinGrad *, const Rows *, const int64_t *row_sizes, int n_sizes, bool grouped, int64_t leaf_bound);

  /* Rotary embedding (Su et al. 2021), pairs (j, j + D/2), angle position * theta^(-2j/D); sign -1 is the inverse = the backward */
  void (*rope)(const KCtx *, void *y, const void *x, const Shards *heads /* unit D */, double theta, int sign, const TokenView *tv);

  /* Causal attention by key blocks of ATTN_BLOCK positions visited in ascending order with a running (max, sum) (Dao et al. 2022); S x S scores never
   * exist. o like q. lse [T, local query heads]. Backward: dk, dv of a key block over query blocks in ascending order per query head, then the heads
   * of a group by the fixed tree; dq of a query over key blocks in ascending order.                                                       */
  size_t (*attention_work)(const KCtx *, const AttnArgs *, const TokenView *bound, bool backward);
  void (*attention_fwd)(const KCtx *, void *o, void *lse, const void *q, const void *k, const void *v, const AttnArgs *, const TokenView *);
  void (*attention_bwd)(const KCtx *, void *dq, void *dk, void *dv, const void *d_o, const void *o, const void *lse, const void *q, const void *k, const void *v, const AttnArgs *, const TokenView *);

  /* y = silu(gate) * up * w; w [rows] per row or NULL (= 1). Elementwise over width (per block: rows x width_j). dw[r] = <dy, silu(gate) up>: per block a
   * row sum, then the tree over blocks (Shazeer 2020; the routing weight is folded in here, so expert outputs need not be kept).          */
  void (*swiglu_fwd)(const KCtx *, void *y, const void *gate, const void *up, const void *w, const Shards *width, int64_t rows);
  void (*swiglu_bwd)(const KCtx *, void *d_gate, void *d_up, void *dw /* or NULL */, const void *dy, const void *gate, const void *up, const void *w, const Shards *width, int64_t rows);

  /* softmax over E, top-k (ties: lowest id; best first), weights (renormalised over k if asked). row_of: where slot (t, j) goes when rows are sorted by
   * (expert, token). counts: rows that each window sends to each expert. stat words: [0] z = sum lse^2 (shift - 10), [1] aux per sequence summed, [2 ..2+E)
   * counts, [2+E .. 2+2E) sum of scores. Aux of a scope with n tokens: E / (k n^2) sum_e counts_e sum_t s_te (Switch; Fedus et al. 2022).    */
  void (*route_fwd)(const KCtx *, int32_t *idx /* [T, k] */, void *wt /* [T, k] */, int32_t *row_of /* [T, k] */, int32_t *counts /* [n_window, E] */,
                    const void *logits /* [T, E] */, const RouteArgs *, const TokenView *, const StatSink *);
  /* batch_counts: [E] of the whole batch (aux over the batch) or NULL (recount per sequence from `counts`) */
  void (*route_bwd)(const KCtx *, void *d_logits, const void *d_wt, const void *logits, const int32_t *idx, const int32_t *counts, const uint64_t *batch_counts,
                    const RouteArgs *, const TokenView *);

  /* rows[row_of[t, j]] = x[t] (width n);   y[t] = sum over j in slot order of rows[row_of[t, j]] */
  void (*rows_scatter)(const KCtx *, void *rows /* [T k, n] */, const void *x /* [T, n] */, const int32_t *row_of, int64_t T, int k, int64_t n);
  void (*rows_combine)(const KCtx *, void *y /* [T, n] */, const void *rows, const int32_t *row_of, int64_t T, int k, int64_t n);
  /* slot values to rows and back: rows[row_of[i]] = slot[i] / slot[i] = rows[row_of[i]], i < T k */
  void (*slots_to_rows)(const KCtx *, void *rows, const void *slot, const int32_t *row_of, int64_t n);
  void (*rows_to_slots)(const KCtx *, void *slot, const void *rows, const int32_t *row_of, int64_t n);

  /* Cross-entropy over a cut vocabulary. lse of a token: leaf per block (max, sum of exp), merged by the fixed tree. Label -100 (any negative): loss 0, no
   * gradient. stat word [0]: sum of losses. d_logits may be logits (in place).                                                          */
  void (*xent_fwd)(const KCtx *, void *loss /* [T] */, void *lse /* [T] */, const void *logits, const Shards *vocab, const int32_t *label, const TokenView *, const StatSink *);
  void (*xent_bwd)(const KCtx *, void *d_logits, const void *logits, const void *lse, const Shards *vocab, const int32_t *label, int64_t T);

  void (*add)(const KCtx *, void *y, const void *a, const void *b, int64_t n);

  /* Optimizer over flat element ranges. grad element = exact ? (real)((double)acc * 2^-shift / n_valid) : acc / n_valid; n_valid 0: 0. */
  void (*grad_finish)(const KCtx *, void *grad /* real[n] */, const void *acc, bool exact, int shift, double n_valid, int64_t n);
  /* sq[b] = FP64 sum of squares of block b of NORM_BLOCK elements, sequential in 8 fixed lanes then a fixed tree */
  void (*norm_blocks)(const KCtx *, double *sq, const void *grad, int64_t n);
  /* Decoupled AdamW (Loshchilov & Hutter 2019), in place on w, m, v; order of operations as in tests/oracle */
  void (*adamw)(const KCtx *, void *w, void *m, void *v, const void *grad, int64_t n, const AdamArgs *);
} Kernels;

/* GEMM provider: row-major dense products of fixed shape. Opened once per rank. */
typedef struct GemmInfo { const char *name, *version; } GemmInfo;
extern const Kernels kernels_cpu_f32, kernels_cpu_f64;
#ifdef __cplusplus
}
#endif
#endif
