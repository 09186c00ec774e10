/* The one place where numbers of several ranks are added. Integers (canonical mode) are exact in any order; floats (native mode) are added in
 * ascending rank order, so one layout always gives the same bits.                                                          */
#ifndef ETALON_REDUCE_H
#define ETALON_REDUCE_H
#include "comm/comm.h"
typedef enum { SUM_U64, SUM_F32, SUM_F64 } SumKind;
size_t sum_size(SumKind k);
/* acc: flat [bound[n]] elements; afterwards [bound[self], bound[self+1]) holds ((x_0 + x_1) + x_2) + ... over the members; the rest is unchanged.
 * stage: scratch; every member must pass the same stage_bytes, at least reduce_stage_min(group size) (bytes.h). Pairwise exchange in chunks (Thakur,
 * Rabenseifner, Gropp 2005): a chunk's n - 1 foreign parts lie in stage together and are added in one pass. */
void   reduce_scatter(World *w, AxisSet axes, void *acc, SumKind kind, const int64_t *bound, void *stage, size_t stage_bytes);
/* to[i] += from[i], both here. */
void   sum_into(SumKind kind, void *to, const void *from, int64_t n);
/* Member `from` sends its n elements, member `to` adds them to its own: to's first, then from's. Others do nothing. stage: scratch of the same size on both. */
void   reduce_pair(World *w, AxisSet axes, int from, int to, void *acc, SumKind kind, int64_t n, void *stage, size_t stage_bytes);

/* A fixed binary tree over leaves 0..n-1: adjacent pairs first, an odd one is promoted. Leaves of any aligned block of 2^k are added before the
 * rest sees them, so owners of whole blocks may hand over one number each. */
double tree_sum(double *x, int64_t n);     /* destroys x; n 0: 0 */
#endif
