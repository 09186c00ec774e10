/* Who gets which tokens: arithmetic only. The global batch is dealt to DP ranks in contiguous shares of sequences, each share in micro-batches of at most
 * micro_batch sequences; all ranks have the same number of micro-batches, late ones may be small or empty. A sequence is dealt in whole windows: to CP ranks
 * by pairs of opposite chunks (zigzag, so that causal work is even), and what a CP rank holds to its TP ranks in order (sequence parallelism). Shares may be
 * empty.                                                                                                                                                */
#ifndef ETALON_DEAL_H
#define ETALON_DEAL_H
#include <stdint.h>
#include "base/arena.h"
#include "comm/mesh.h"
#include "kernel.h"

/* Whose tokens a view lists, from small to large: the rank's own; those of its TP group; those of its CP x TP group (whole sequences). */
typedef enum { VIEW_OWN, VIEW_TP, VIEW_SEQ, N_TOKEN_VIEW } ViewKind;

typedef struct Deal { int64_t n_seq /* global batch */, seq_length, micro_batch, window; int n_dp, n_cp, n_tp, n_mb; } Deal;
typedef struct DealShare { int64_t first, n; } DealShare;          /* sequences of the global batch */
typedef struct DealPlace { int dp, cp, tp; } DealPlace;            /* a rank's coordinates */

Deal      deal_make(int64_t n_seq, int64_t seq_length, int64_t micro_batch, int64_t window, const Mesh *m);
DealPlace deal_place(const Mesh *m, int rank);
DealShare deal_share(const Deal *d, int dp, int mb);
DealShare deal_rank(const Deal *d, int dp);                        /* all its micro-batches */
int64_t   deal_windows_per_seq(const Deal *d);
/* The tokens of a micro-batch in a view of the rank at `p`, in (sequence, position) order. */
TokenView deal_view(const Deal *d, Arena *a, DealPlace p, int mb, ViewKind kind);
/* Numbers of windows and tokens of that view, without building it. */
typedef struct DealCount { int64_t n_window, n_token; } DealCount;
DealCount deal_count(const Deal *d, DealPlace p, int mb, ViewKind kind);
DealCount deal_most(const Deal *d, DealPlace p, ViewKind kind);    /* the largest over micro-batches, each number by itself */

/* A micro-batch as a rank sees it, with the maps between its views. */
typedef struct CpSegment { int cp; int64_t tp_row, seq_row, n; } CpSegment;      /* tokens of CP rank cp: where in its TP view, where in the whole sequences */
typedef struct DealMb {
  TokenView view[N_TOKEN_VIEW];
  const int64_t *tp_row;            /* [n_tp + 1]: TP rank i's own tokens are rows tp_row[i] .. tp_row[i+1] of the TP view */
  const CpSegment *cp_segment; int n_cp_segment;
} DealMb;
DealMb deal_mb(const Deal *d, Arena *a, DealPlace p, int mb);
#endif
