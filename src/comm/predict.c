/* What the collectives of comm.c and reduce.c send, as arithmetic: plan asks for worlds that are not there. */
#include "comm/reduce.h"

uint64_t reduce_scatter_bytes(const int64_t *bound, int n, int self, SumKind kind) {
  return (uint64_t)(bound[n] - bound[0] - (bound[self + 1] - bound[self])) * sum_size(kind);
}

uint64_t comm_allgather_bytes(const int64_t *bound, int n, int self, size_t elem) {
  return (uint64_t)(n - 1) * (uint64_t)(bound[self + 1] - bound[self]) * elem;
}

uint64_t comm_alltoall_bytes(size_t block, int n) { return (uint64_t)(n - 1) * block; }

uint64_t comm_allreduce_max_bytes(int64_t n_elem, int n) { return (uint64_t)(n - 1) * (uint64_t)n_elem * sizeof(uint64_t); }

uint64_t comm_allreduce_bytes(int64_t n_elem, int n, int self) {
  if (n_elem <= COMM_SMALL_BYTES / (int64_t)sizeof(uint64_t)) return (uint64_t)(n - 1) * (uint64_t)n_elem * sizeof(uint64_t);
  uint64_t own = (uint64_t)(share_begin(n_elem, n, self + 1) - share_begin(n_elem, n, self));
  return ((uint64_t)n_elem - own + (uint64_t)(n - 1) * own) * sizeof(uint64_t);
}

uint64_t comm_exchange_rows_bytes(const RowSeg *send_seg, int n_send, int self, size_t row_bytes) {
  uint64_t bytes = 0;
  for (int i = 0; i < n_send; i++)
    if (send_seg[i].peer != self) bytes += (uint64_t)send_seg[i].n_row * row_bytes;
  return bytes;
}
