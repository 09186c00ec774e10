/* Kernels: every computation on values, behind one table per (backend, element type). Plain C types only, C and C++ clean;
 * knows nothing of programs, ranks or MPI. Called by the op files (src/program/op_*.c), exec and the tests.
 *
 * Letters: T tokens of a micro-batch on this rank, H hidden, V vocabulary, E experts, k experts per token, R routed rows,
 * D head width, S positions of a sequence. A table has two element types: `real` (float or double), in which everything is computed and
 * sums are kept, and `act`, in which activations, weights of products and the gradients that enter products are stored. act is real in the
 * tables of FP32 and FP64; it is BF16 (real: float) in that of BF16, where a value is rounded, to nearest even, when it is stored as act and
 * nowhere else. Each `void *` says which it is; without a word it is real.
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
 * This rank has blocks first .. first+count-1; count 0 is allowed everywhere. */
typedef struct Shards { int n, first, count; int64_t units, unit; } Shards;
static inline int64_t shard_begin(const Shards *s, int i) { return (int64_t)i * s->units / s->n * s->unit; }       /* elements, global */
static inline int64_t shard_width(const Shards *s, int i) { return shard_begin(s, i + 1) - shard_begin(s, i); }
/* elements before block i here */
static inline int64_t shard_local(const Shards *s, int i) { return shard_begin(s, i) - shard_begin(s, s->first); }
static inline int64_t shard_total(const Shards *s) { return shard_local(s, s->first + s->count); }                  /* elements here */

/* The fixed binary tree over leaves 0 .. n-1 (blocks of a cut axis, query heads of a group): a node is left + right, an absent child is
 * promoted unchanged, never +0. Node (level, index) has the leaves index << level to ((index + 1) << level) - 1; those from n on are
 * absent, and so are blocks of width zero. Ranks write the values of the nodes that they hold completely (ROOTS); tree_merge completes
 * the tree. */
enum { TREE_ROOTS = 64 };   /* most roots of one rank */
typedef struct TreeNode { int level, index; } TreeNode;
static inline bool tree_node_is_local(const Shards *s, int level, int index) {
  int64_t begin = (int64_t)index << level, end = ((int64_t)index + 1) << level;
  if (end > s->n) end = s->n;
  return shard_begin(s, (int)begin) >= shard_begin(s, s->first) && shard_begin(s, (int)end) <= shard_begin(s, s->first + s->count);
}
/* The roots of this rank's blocks, ascending: the largest nodes whose present leaves are all here. One, the root of the whole tree,
 * where this rank has every block that is not empty; none where it has no such block. Returns how many. */
static inline int shard_roots(const Shards *s, TreeNode out[TREE_ROOTS]) {
  int n = 0;
  for (int i = s->first; i < s->first + s->count; i++) {
    if (shard_width(s, i) == 0) continue;
    int level = 0;
    while (1 << level < s->n && tree_node_is_local(s, level + 1, i >> (level + 1))) level++;
    out[n].level = level, out[n++].index = i >> level;
    i = (((i >> level) + 1) << level) - 1;
  }
  return n;
}

/* A parameter (act, but gains: real): local block j (0-based) of expert x begins at data + x * expert_stride + offset[j] elements. Dense: one expert. */
typedef struct Weight { const void *data; int64_t expert_stride; const int64_t *offset /* [shards.count] */; } Weight;

/* A gradient accumulator with the parameter's geometry. exact: uint64 on the grid 2^-shift, a leaf x of n tokens is added as
 * llrint(x * 2^shift) and must be finite and at most 128 n in magnitude, else `fault` is raised (atomically). Not exact: real, added. */
typedef struct Accum { void *data; int64_t expert_stride; const int64_t *offset; bool exact; int shift; uint64_t *fault; } Accum;

/* Tokens of a micro-batch: windows in order. A window is consecutive tokens of one sequence; windows of one sequence have ascending
 * positions but need not be adjacent (a rank owns some of them). All sequences of the micro-batch are numbered 0 .. n_seq-1 in every view,
 * also those of which a view has no token (equal bounds). Several views of one micro-batch exist: own windows, those of a group of ranks,
 * whole sequences.                                                                                                                    */
typedef struct TokenView {
  int64_t n_token; int n_seq, n_window;
  const int32_t *seq_start;      /* [n_seq + 1], token numbers: where the tokens of each sequence lie */
  const int32_t *window_start;   /* [n_window + 1], token numbers */
  const int32_t *position;       /* [T], position in the sequence */
  const int64_t *window_number;  /* [n_window] number in the global batch of the window's first token: sequence * S + position */
  const int32_t *window_seq;     /* [n_window] sequence of the window, 0 .. n_seq-1 */
  const int32_t *doc_start;      /* [T] first position of the token's document, never above its own; NULL: 0. Ascending in a sequence */
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

/* A linear layer's product over rows. MAP: y_j = x W_j for each block j. REDUCE: y = tree over j of x_j W_j, leaves are the global
 * block numbers; y is written as planes [n_root][n_row][n_fixed], one per root of this rank's blocks (linear_roots): one plane, complete,
 * when every block is local. A rank without blocks has no plane, writes nothing and may pass NULL.                                 */
typedef enum { LIN_MAP, LIN_REDUCE } LinMode;
typedef struct LinArgs {
  LinMode mode;
  bool    trans;         /* true: y = x W^T with W [n_out, n_in] (forward); false: y = x W (dX), W [n_in, n_out] */
  int64_t n_fixed;       /* the axis that is not cut: input width for MAP, output width for REDUCE */
  Shards  cut;           /* the axis that is: output for MAP, input for REDUCE */
  Weight  w;
  bool    y_real;        /* y is real: partial planes, or what must not be rounded yet; else act */
} LinArgs;

static inline int linear_roots(const LinArgs *a, TreeNode out[TREE_ROOTS]) { return shard_roots(&a->cut, out); }   /* planes of REDUCE */

/* Weight gradient of the same layer: W [n_out, n_in] row-major per block. cut_out: the output axis is cut (W_j [width_j, n_in]; dy is
 * shard-major), else the input axis (W_j [n_out, width_j]; x is shard-major). */
typedef struct LinGrad { bool cut_out; int64_t n_fixed; Shards cut; Accum acc; } LinGrad;

typedef struct AttnArgs {
  Shards q, kv;          /* unit D; q: query heads of this rank; kv: key heads present, at least those that the query heads use.
                          * Query head h uses key head h / (heads / kv_heads); heads of a group may be on several ranks */
  int64_t head_dim, window /* 0: none */; double scale;
  bool dv_real;          /* backward's dv is real (planes), else act */
  bool part;             /* kv has a part of the keys: see attention_fwd */
} AttnArgs;
typedef enum { ATTN_FWD, ATTN_BWD /* dq, dk, dv at once */, ATTN_BWD_Q /* dq alone */, ATTN_BWD_K /* dk, dv alone */ } AttnPass;

/* Roots in dk, dv of a key head (global number): leaves are the query heads of its group, 0 .. heads/kv_heads - 1, present those of this
 * rank. One when the whole group is here, none when no head of it is. The root r is in plane r. */
static inline int attention_roots(const AttnArgs *a, int64_t kv_head, TreeNode out[TREE_ROOTS]) {
  int64_t group = a->q.units / a->kv.units, before = kv_head * group;
  int64_t lo = shard_begin(&a->q, a->q.first) / a->head_dim - before;
  int64_t hi = shard_begin(&a->q, a->q.first + a->q.count) / a->head_dim - before;
  lo = lo < 0 ? 0 : lo, hi = hi > group ? group : hi;
  if (lo >= hi) return 0;
  Shards s = {(int)group, (int)lo, (int)(hi - lo), group, 1};
  return shard_roots(&s, out);
}
/* Planes of dk and of dv: the most roots of any key head present. */
static inline int attention_planes(const AttnArgs *a) {
  int64_t first = shard_begin(&a->kv, a->kv.first) / a->head_dim, n = shard_total(&a->kv) / a->head_dim;
  TreeNode node[TREE_ROOTS];
  int most = 0;
  for (int64_t h = first; h < first + n; h++) {
    int roots = attention_roots(a, h, node);
    most = roots > most ? roots : most;
  }
  return most;
}

typedef struct RouteArgs {
  int n_expert, top_k; bool renormalise;
  int forced;            /* 0 learned, 1 balanced, 2 all to one, 3 zipf, 4 replay: ids come from the global token number, weights from the scores */
  double zipf_exponent; uint64_t seed;    /* seed: hash of (seed, layer); zipf only */
  const uint16_t *replay;                 /* [tokens of the batch, k] by global token number; replay only, NULL: learned */
  bool   aux_per_sequence;                /* else: counts of the whole batch */
  int64_t seq_length;    /* tokens of every whole sequence: n of the auxiliary loss per sequence */
  double aux_scale;      /* d(total)/d(aux of the formula below) times N_valid; per sequence also divided by the number of sequences */
  double z_scale;        /* coefficient * N_valid / T_global */
  int64_t n_token_global;
} RouteArgs;

/* Integer statistics of a step (device memory, uint64 words, summed over ranks as integers). Real-valued ones are on the grid 2^-shift
 * like gradients, with leaves of one window.                                                                             */
typedef struct StatSink { uint64_t *word; int shift; uint64_t *fault; } StatSink;

typedef struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay, correction1 /* 1 - beta1^t */, correction2;
  double clip /* factor, 1: none */;
} AdamArgs;

typedef struct Kernels {
  const char *name;      /* "cpu-f32" ... */
  const char *built_for; /* the machine that the compiler was told, and its vectors: bits depend on it */
  size_t real_size, act_size;
  const struct Kernels *wide;   /* the table whose act is this table's real: itself, but for BF16 */

  /* real <-> act, n elements */
  void (*widen)(const KCtx *, void *y /* real */, const void *x /* act */, int64_t n);
  void (*narrow)(const KCtx *, void *y /* act */, const void *x /* real */, int64_t n);

  /* x[t] = W[token[t]]; vocabulary cut by rows: a token outside the local blocks gives zero bits (bits_add then sums
   * the rows of all ranks exactly). W block [width, H].                                                                            */
  void (*embed_fwd)(const KCtx *, void *x /* act [T, H] */, const Weight *w, const Shards *vocab, int64_t H, const int32_t *token /* [T] */,
                    int64_t T);
  /* leaf = (window, id): rows of dx of that id in the window, added in token order */
  void (*embed_dw)(const KCtx *, const Accum *acc, const Shards *vocab, int64_t H, const int32_t *token,
                   const void *dx /* act [T, H] */, const TokenView *tv);

  /* y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019) */
  void (*rmsnorm_fwd)(const KCtx *, void *y /* act [T, H] */, void *rstd /* [T] */, const void *x /* act [T, H] */,
                      const void *gain /* [H] */, int64_t T, int64_t H, double eps);
  void (*rmsnorm_dx)(const KCtx *, void *dx /* act */, const void *dy, const void *x /* act */, const void *rstd, const void *gain,
                     int64_t T, int64_t H);
  void (*rmsnorm_dw)(const KCtx *, const Accum *acc /* [H] */, const void *dy, const void *x /* act */, const void *rstd, int64_t H,
                     const TokenView *tv);

  /* *_work: bytes of KCtx.work; read only threads and gemm of the context */
  size_t (*linear_work)(const KCtx *, const LinArgs *, const Rows *);
  void   (*linear)(const KCtx *, void *y /* LinArgs.y_real */, const void *x /* act */, const LinArgs *, const Rows *);
  size_t (*linear_dw_work)(const KCtx *, const LinGrad *, const Rows *, int64_t leaf_bound /* most rows in a leaf */);
  void   (*linear_dw)(const KCtx *, const void *dy /* act */, const void *x /* act */, const LinGrad *, const Rows *);
  /* Announces shapes before step 1, so that the GEMM provider builds what it builds per shape. row_sizes: the row counts that dense
   * groups (native mode) and dense leaves can have; grouped: any count up to the bound (an expert's rows). */
  void   (*linear_prepare)(const KCtx *, const LinArgs *, const Rows *, const int64_t *row_sizes, int n_sizes, bool grouped);
  void   (*linear_dw_prepare)(const KCtx *, const LinGrad *, const Rows *, const int64_t *row_sizes, int n_sizes, bool grouped,
                              int64_t leaf_bound);

  /* Rotary embedding (Su et al. 2021), pairs (j, j + D/2), angle (position - doc_start) * theta^(-2j/D); sign -1 is the inverse = the
   * backward */
  void (*rope)(const KCtx *, void *y /* act */, const void *x, const Shards *heads /* unit D */, double theta, int sign, const TokenView *tv);

  /* Causal attention by key blocks of ATTN_BLOCK positions visited in ascending order with a running (max, sum) (Dao et al. 2022); S x S
   * scores never exist. A query at position p sees keys at positions max(doc_start of p, p - window + 1) to p of its sequence. Rows of
   * q, o, lse, d_o, delta, dq are tokens of qv, rows of k, v, dk, dv tokens of kv; both views have the same sequences. WHOLE: the view
   * has every sequence from position 0 to its last. doc_start is read from qv. A row's bits do not depend on which other rows its view
   * has, nor on which heads are here.
   * q, k, v, o, d_o are act; lse, delta, dq, dk real; dv as AttnArgs.dv_real says.
   * Forward: kv whole, qv any. lse [rows of qv, local query heads].
   * attention_delta: <d_o, o> of each query and head [rows of qv, local query heads]; no workspace.
   * attention_bwd, by what is asked for (NULL: not):
   *   ATTN_BWD    dq, dk, dv: qv and kv the same whole view. The fast way when all is local.
   *   ATTN_BWD_Q  dq:         kv whole, qv any (own queries).
   *   ATTN_BWD_K  dk, dv:     qv whole, kv any (own keys).
   * dq of a query adds up over key blocks in ascending order. dk, dv of a key: per query head over query blocks in ascending order, then
   * the heads of the group by the fixed tree. dk, dv are planes [attention_planes(a)][rows of kv, as k]: plane r has root r of
   * attention_roots(a, head) for each key head, and zeros where a head has no more than r roots (absent: not to be merged). tree_merge
   * completes them over ranks.
   * a->part: kv and qv are any views, whichever the pass. Forward: o is real, of the keys that are there, and 0 with lse -inf where a query
   * sees none of them; attention_merge joins such results. ATTN_BWD, with lse and delta of all keys: dq is added to what is there, dk and dv
   * are real and of the queries that are there, so that sums over the parts are the gradients.
   * attention_merge: (o, lse) over its keys and (o_part, lse_part) over others become (o, lse) over both; o, o_part real; no workspace.
   * attention_work: of the bounds qv, kv only n_token, n_seq and n_window are read. */
  size_t (*attention_work)(const KCtx *, const AttnArgs *, const TokenView *qv, const TokenView *kv, AttnPass pass);
  void (*attention_fwd)(const KCtx *, void *o, void *lse, const void *q, const void *k, const void *v, const AttnArgs *,
                        const TokenView *qv, const TokenView *kv);
  void (*attention_merge)(const KCtx *, void *o, void *lse, const void *o_part, const void *lse_part, const AttnArgs *, const TokenView *qv);
  void (*attention_delta)(const KCtx *, void *delta, const void *d_o, const void *o, const AttnArgs *, const TokenView *qv);
  void (*attention_bwd)(const KCtx *, void *dq, void *dk, void *dv, const void *d_o, const void *lse, const void *delta, const void *q,
                        const void *k, const void *v, const AttnArgs *, const TokenView *qv, const TokenView *kv);

  /* Completes the fixed tree elementwise: y (act) = the tree over n_plane planes (real), plane[i] the value of node[i] (left + right, absent
   * promoted). Nodes are disjoint, in any order, and may come from several ranks; together the result has the bits of a local tree over
   * all their leaves. n_row rows of `width` elements, y_stride and plane_stride elements from row to row (dense: 1, n, n, n). No planes:
   * y = 0. y may be one of the planes where act is real. */
  void (*tree_merge)(const KCtx *, void *y, const void *const *plane, const TreeNode *node, int n_plane, int64_t n_row, int64_t width,
                     int64_t y_stride, int64_t plane_stride);
  /* y[i] += x[i] on the bit patterns of act, as unsigned integers of its width: exact where at most one summand of an element is not
   * zero bits */
  void (*bits_add)(const KCtx *, void *y, const void *x, int64_t n);

  /* y, gate, up, d_gate, d_up are act, the rest real. y = silu(gate) * up * w; w [rows] per row or NULL (= 1). Elementwise over width (per block: rows x width_j). dw[r] = <dy, silu(gate)
   * up>: per block a row sum, then the tree over blocks; written as planes [n_root][rows], one per root of this rank's blocks
   * (shard_roots). (Shazeer 2020; the routing weight is folded in here, so expert outputs need not be kept.) */
  void (*swiglu_fwd)(const KCtx *, void *y, const void *gate, const void *up, const void *w, const Shards *width, int64_t rows);
  void (*swiglu_bwd)(const KCtx *, void *d_gate, void *d_up, void *dw /* or NULL */, const void *dy, const void *gate, const void *up,
                     const void *w, const Shards *width, int64_t rows);

  /* softmax over E, top-k (ties: lowest id; best first), weights (renormalised over k if asked). row_of: where slot (t, j) goes when
   * rows are sorted by (expert, token). counts: rows that each window sends to each expert. stat words: [0] z = sum lse^2 (shift - 10),
   * [1] not touched here (route_bwd), [2 .. 2+E) counts, [2+E .. 2+2E) sum of scores. Forced ids come from window_number. */
  void (*route_fwd)(const KCtx *, int32_t *idx /* [T, k] */, void *wt /* [T, k] */, int32_t *row_of /* [T, k] */,
                    int32_t *counts /* [n_window, E] */,
                    const void *logits /* [T, E] */, const RouteArgs *, const TokenView *, const StatSink *);
  /* seq_counts[s] = sum of counts over the windows of sequence s in this view (0 where it has none). Integers: ranks may be added up. */
  void (*sequence_counts)(const KCtx *, int32_t *seq_counts /* [n_seq, E] */, const int32_t *counts /* [n_window, E] */, int n_expert,
                          const TokenView *);
  /* Aux of a scope with n tokens: E / (k n^2) sum_e counts_e sum_t s_te (Switch; Fedus et al. 2022). One of the two counts:
   * seq_counts [n_seq, E] of whole sequences, over all ranks that hold parts of them (aux per sequence, n = seq_length): stat word [1]
   * gets the aux of the sequences as one leaf per window of this view, E / (k n^2) sum_e counts_e sum_(t of the window) s_te; stat may
   * be NULL.
   * batch_counts [E] of the whole batch (aux over the batch, n = n_token_global): word [1] stays. Both NULL: no auxiliary gradient. */
  void (*route_bwd)(const KCtx *, void *d_logits, const void *d_wt, const void *logits, const int32_t *idx, const int32_t *seq_counts,
                    const uint64_t *batch_counts, const RouteArgs *, const TokenView *, const StatSink *stat);

  /* On act: rows[row_of[t, j]] = x[t] (width n);   y[t] = sum over j in slot order of rows[row_of[t, j]] */
  void (*rows_scatter)(const KCtx *, void *rows /* [T k, n] */, const void *x /* [T, n] */, const int32_t *row_of, int64_t T, int k,
                       int64_t n);
  void (*rows_combine)(const KCtx *, void *y /* [T, n] */, const void *rows, const int32_t *row_of, int64_t T, int k, int64_t n);
  /* real slot values to rows and back: rows[row_of[i]] = slot[i] / slot[i] = rows[row_of[i]], i < T k */
  void (*slots_to_rows)(const KCtx *, void *rows, const void *slot, const int32_t *row_of, int64_t n);
  void (*rows_to_slots)(const KCtx *, void *slot, const void *rows, const int32_t *row_of, int64_t n);

  /* Cross-entropy over a cut vocabulary: lse of a token is the fixed tree over the blocks' leaves (max, sum of exp relative to it).
   * Label -100 (any negative): loss 0, no gradient. d_logits is act, all else real; it may be logits (in place) where act is real.
   * xent_leaves: leaf [local blocks][T][3] = (max, sum, logit of the label where the label is in this block, else 0); an empty block
   * gives (-inf, 0, 0).
   * xent_merge: leaf [vocab->n][T][3], that is, the leaves of all blocks in block order: what the ranks' xent_leaves give, one after the
   * other. Of vocab the cut is read, not first and count. stat word [0] gets the losses of tokens t0 .. t0 + own->n_token - 1, one leaf
   * per window of `own` (the rank's share, so that a token which several ranks merge counts once); own or stat NULL: nothing. */
  void (*xent_leaves)(const KCtx *, void *leaf, const void *logits, const Shards *vocab, const int32_t *label /* [T] */, int64_t T);
  void (*xent_merge)(const KCtx *, void *loss /* [T] */, void *lse /* [T] */, const void *leaf, const Shards *vocab, const int32_t *label,
                     int64_t T, const TokenView *own, int64_t t0, const StatSink *stat);
  void (*xent_bwd)(const KCtx *, void *d_logits, const void *logits, const void *lse, const Shards *vocab, const int32_t *label, int64_t T);

  void (*add)(const KCtx *, void *y, const void *a, const void *b, int64_t n);      /* act */

  /* Optimizer over flat element ranges. grad element = exact ? (real)((double)acc * 2^-shift / n_valid) : acc / n_valid; n_valid 0: 0. */
  void (*grad_finish)(const KCtx *, void *grad /* real[n] */, const void *acc, bool exact, int shift, double n_valid, int64_t n);
  /* sq[b] = FP64 sum of squares of block b of NORM_BLOCK elements, sequential in 8 fixed lanes then a fixed tree */
  void (*norm_blocks)(const KCtx *, double *sq, const void *grad, int64_t n);
  /* Decoupled AdamW (Loshchilov & Hutter 2019), in place on w, m, v; order of operations as in tests/oracle */
  void (*adamw)(const KCtx *, void *w, void *m, void *v, const void *grad, int64_t n, const AdamArgs *);
} Kernels;

/* GEMM provider: row-major dense products of fixed shape. Opened once per rank. */
typedef struct GemmInfo { const char *name, *version; } GemmInfo;
extern const Kernels kernels_cpu_f32, kernels_cpu_f64, kernels_cpu_bf16;
#ifdef __cplusplus
}
#endif
#endif
