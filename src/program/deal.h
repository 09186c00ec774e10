/* Who gets which sequences: arithmetic only. The global batch is dealt to DP ranks in contiguous shares, each share in micro-batches of at most
 * micro_batch sequences; all ranks have the same number of micro-batches, late ones may be small or empty.                  */
#ifndef ETALON_DEAL_H
#define ETALON_DEAL_H
#include <stdint.h>
#include "base/arena.h"
#include "kernel.h"
typedef struct Deal { int64_t n_seq /* global batch */, seq_length, micro_batch, window; int n_dp, n_mb; } Deal;
typedef struct DealShare { int64_t first, n; } DealShare;          /* sequences of the global batch */
Deal      deal_make(int64_t n_seq, int64_t seq_length, int64_t micro_batch, int64_t window, int n_dp);
DealShare deal_share(const Deal *d, int dp, int mb);
DealShare deal_rank(const Deal *d, int dp);                        /* all its micro-batches */
int64_t   deal_windows_per_seq(const Deal *d);
int64_t   deal_max_sequences(const Deal *d);                       /* most sequences in any micro-batch of any rank */
TokenView deal_tokens(const Deal *d, Arena *a, DealShare s);       /* canonical windows, or one window where window >= the micro-batch (see deal.c) */
#endif
