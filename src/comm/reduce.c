#include "comm/reduce.h"

#include <string.h>

#include "comm/comm_mpi.h"

enum { SUM_TILE = 1024 }; /* elements; the running sum stays in the first cache */

/* out = ((part_0 + part_1) + part_2) + ...; out may be one of the parts. */
#define DEFINE_SUM(T, NAME)                                                                                                                \
  static void NAME(void *out, const char *const *part, int n_part, int64_t n) {                                                            \
    T sum[SUM_TILE];                                                                                                                       \
    for (int64_t at = 0; at < n; at += SUM_TILE) {                                                                                         \
      int64_t tile = n - at < SUM_TILE ? n - at : SUM_TILE;                                                                                \
      memcpy(sum, (const T *)part[0] + at, (size_t)tile * sizeof(T));                                                                      \
      for (int k = 1; k < n_part; k++) {                                                                                                   \
        const T *x = (const T *)part[k] + at;                                                                                              \
        for (int64_t i = 0; i < tile; i++) sum[i] += x[i];                                                                                 \
      }                                                                                                                                    \
      memcpy((T *)out + at, sum, (size_t)tile * sizeof(T));                                                                                \
    }                                                                                                                                      \
  }
DEFINE_SUM(uint64_t, sum_u64)
DEFINE_SUM(float, sum_f32)
DEFINE_SUM(double, sum_f64)

static const struct {
  size_t size;
  void (*add)(void *out, const char *const *part, int n_part, int64_t n);
} sum_table[] = {[SUM_U64] = {sizeof(uint64_t), sum_u64}, [SUM_F32] = {sizeof(float), sum_f32}, [SUM_F64] = {sizeof(double), sum_f64}};

size_t sum_size(SumKind k) { return sum_table[k].size; }

/* Elements [from, to) of member i's share, as places in the whole. */
typedef struct Range {
  int64_t at, n;
} Range;
static Range share_range(const int64_t *bound, int i, int64_t from, int64_t to) {
  int64_t begin = bound[i] + from, end = bound[i] + to;
  if (begin > bound[i + 1]) begin = bound[i + 1];
  if (end > bound[i + 1]) end = bound[i + 1];
  return (Range){begin, end - begin};
}

/* Sends everybody the elements [from, to) of their shares, gathers the same of one's own and adds. */
static void reduce_chunk(Channel *c, char *acc, SumKind kind, const int64_t *bound, char *stage, int64_t from, int64_t to) {
  World *w = c->w;
  size_t elem = sum_table[kind].size, slot = (size_t)(to - from) * elem;
  int self = c->g->self;
  Range own = share_range(bound, self, from, to);
  w->part[self] = acc + (size_t)own.at * elem;
  for (int round = 1; round < c->g->n; round++) {
    int src = channel_from(c, round), dst = channel_to(c, round);
    Range out = share_range(bound, dst, from, to);
    char *place = stage + (size_t)(round - 1) * slot;
    w->part[src] = place;
    wave_recv(c, place, (size_t)own.n * elem, src);
    wave_send(c, acc + (size_t)out.at * elem, (size_t)out.n * elem, dst);
    if (round % COMM_WAVE == 0) wave_wait(c);
  }
  wave_wait(c);
  sum_table[kind].add(acc + (size_t)own.at * elem, w->part, c->g->n, own.n);
}

void reduce_scatter(World *w, AxisSet axes, void *acc, SumKind kind, const int64_t *bound, void *stage, size_t stage_bytes) {
  Channel c = channel_open(w, axes);
  int n = c.g->n;
  if (n == 1) return;
  CHECK(stage_bytes >= reduce_stage_min(n), "stage of %zu bytes, %zu needed", stage_bytes, reduce_stage_min(n));
  int64_t longest = 0, chunk = reduce_chunk_elements(n, sum_size(kind), stage_bytes, w->max_message);
  for (int i = 0; i < n; i++)
    if (bound[i + 1] - bound[i] > longest) longest = bound[i + 1] - bound[i];
  for (int64_t at = 0; at < longest; at += chunk) reduce_chunk(&c, acc, kind, bound, stage, at, at + chunk);
}

void sum_into(SumKind kind, void *to, const void *from, int64_t n) {
  const char *part[2] = {to, from};
  sum_table[kind].add(to, part, 2, n);
}

void reduce_pair(World *w, AxisSet axes, int from, int to, void *acc, SumKind kind, int64_t n, void *stage, size_t stage_bytes) {
  Channel c = channel_open(w, axes);
  int self = c.g->self;
  size_t elem = sum_table[kind].size, most = stage_bytes < w->max_message ? stage_bytes : w->max_message;
  int64_t step = (int64_t)(most / elem);
  if (from == to || (self != from && self != to)) return;
  CHECK(step > 0, "stage of %zu bytes", stage_bytes);
  for (int64_t at = 0; at < n; at += step) {
    int64_t m = n - at < step ? n - at : step;
    char *mine = (char *)acc + (size_t)at * elem;
    const char *part[2] = {mine, stage};
    if (self == from)
      wave_send(&c, mine, (size_t)m * elem, to);
    else
      wave_recv(&c, stage, (size_t)m * elem, from);
    wave_wait(&c);
    if (self == to) sum_table[kind].add(mine, part, 2, m);
  }
}

typedef void CombineU64(uint64_t *restrict x, const uint64_t *restrict y, int64_t n);
static void combine_sum(uint64_t *restrict x, const uint64_t *restrict y, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] += y[i];
}
static void combine_max(uint64_t *restrict x, const uint64_t *restrict y, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = y[i] > x[i] ? y[i] : x[i];
}

/* n: elements of one message. A copy is sent, so that adding may begin before the last wave. */
static void allreduce_direct_chunk(Channel *c, uint64_t *x, int64_t n, CombineU64 *combine) {
  uint64_t *copy = (uint64_t *)c->w->stage, *got = copy + n;
  size_t bytes = (size_t)n * sizeof *x;
  memcpy(copy, x, bytes);
  for (int first = 1; first < c->g->n; first += COMM_WAVE) {
    int last = first + COMM_WAVE < c->g->n ? first + COMM_WAVE : c->g->n;
    for (int round = first; round < last; round++) {
      wave_recv(c, got + (round - first) * n, bytes, channel_from(c, round));
      wave_send(c, copy, bytes, channel_to(c, round));
    }
    wave_wait(c);
    for (int k = 0; k < last - first; k++) combine(x, got + k * n, n);
  }
}

static void allreduce_direct(Channel *c, uint64_t *x, int64_t n, CombineU64 *combine) {
  size_t most = c->w->max_message < COMM_SMALL_BYTES ? c->w->max_message : COMM_SMALL_BYTES;
  int64_t step = (int64_t)(most / sizeof *x);
  CHECK((size_t)step * (COMM_WAVE + 1) * sizeof *x <= c->w->stage_bytes, "stage of %zu bytes", c->w->stage_bytes);
  for (int64_t at = 0; at < n; at += step) allreduce_direct_chunk(c, x + at, n - at < step ? n - at : step, combine);
}

void comm_allreduce_u64(World *w, AxisSet axes, uint64_t *x, int64_t n) {
  Channel c = channel_open(w, axes);
  if (c.g->n == 1) return;
  if (n <= COMM_SMALL_BYTES / (int64_t)sizeof *x) {
    allreduce_direct(&c, x, n, combine_sum);
    return;
  }
  for (int i = 0; i <= c.g->n; i++) w->bound[i] = share_begin(n, c.g->n, i);
  reduce_scatter(w, axes, x, SUM_U64, w->bound, w->stage, w->stage_bytes);
  comm_allgather(w, axes, x, w->bound, sizeof *x);
}

void comm_allreduce_max_u64(World *w, AxisSet axes, uint64_t *x, int64_t n) {
  Channel c = channel_open(w, axes);
  if (c.g->n > 1) allreduce_direct(&c, x, n, combine_max);
}

double tree_sum(double *x, int64_t n) {
  if (n == 0) return 0;
  for (; n > 1; n = n / 2 + n % 2) {
    for (int64_t i = 0; i < n / 2; i++) x[i] = x[2 * i] + x[2 * i + 1];
    if (n % 2) x[n / 2] = x[n - 1];
  }
  return x[0];
}
