/* Collectives on 2, 3, 4 ranks: results against what each rank works out alone from the members' known inputs, bytes sent against the predictions.
 * A rank that sees something wrong tells the others before the case ends, so that nobody waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/reduce.h"
#include "unit/collective.h"

typedef struct Fixture {
  World *w;
  Arena a;
  Err bad;
  Mesh mesh; /* of PLANNED */
  Sketch sketch;
  uint64_t planned;
} Fixture;

static uint64_t draw(uint64_t stream, int64_t i) {
  return rng_u64((RngKey){.seed = 7, .stream = stream, .purpose = RNG_TEST}, (uint64_t)i);
}
static int64_t draw_below(uint64_t stream, int64_t i, int64_t n) { return (int64_t)(draw(stream, i) % (uint64_t)n); }

static uint64_t sent(const Fixture *f, AxisSet axes) {
  CommTraffic t[64];
  int n = comm_traffic(f->w, t, 64);
  for (int i = 0; i < n; i++)
    if (t[i].axes == axes) return t[i].bytes;
  return 0;
}

/* Bytes that a call over the world sends, as predicted. */
static void add_planned(void *ctx, const CommCall *c) { *(uint64_t *)ctx += c->bytes; }
static Sketch *plan_call(Fixture *f) {
  Err e = {0};
  f->planned = 0;
  mesh_init(&f->mesh, world_size(f->w), 1, world_size(f->w), 1, 1, 1, 1, &e);
  f->sketch = sketch_open(&f->a, &f->mesh, world_rank(f->w), add_planned, &f->planned);
  return &f->sketch;
}
#define PLANNED(f, call, ...) (call(plan_call(f), AXES_WORLD, __VA_ARGS__), (f)->planned)

/* Meshes of the world in hand: every way to write it as pp dp cp tp and a stage of it as edp ep etp. */
static int all_meshes(int world, Mesh *out, int max) {
  int n = 0;
  for (int pp = 1; pp <= world; pp++)
    for (int dp = 1; dp <= world; dp++)
      for (int cp = 1; cp <= world; cp++)
        for (int ep = 1; ep <= world; ep++)
          for (int etp = 1; etp <= world; etp++) {
            Err e = {0};
            if (world % (pp * dp * cp) || n == max) continue;
            n += mesh_init(&out[n], world, pp, dp, cp, world / (pp * dp * cp), ep, etp, &e);
          }
  return n;
}

static void set_mesh(Fixture *f, int pp, int dp, int cp, int tp, int ep, int etp) {
  Mesh m;
  Err e = {0};
  WANT(f, mesh_init(&m, world_size(f->w), pp, dp, cp, tp, ep, etp, &e));
  WANT(f, world_set_mesh(f->w, &f->a, &m, &e));
}

/* Every member of every group of every mesh is who the mesh says, and sums go over the group alone. */
static void test_groups(void **s) {
  Fixture *f = *s;
  enum { MAX_MESH = 64 };
  Mesh mesh[MAX_MESH];
  int n_mesh = all_meshes(world_size(f->w), mesh, MAX_MESH), rank = world_rank(f->w);
  WANT(f, n_mesh > 2 && n_mesh < MAX_MESH);
  for (int k = 0; k < n_mesh; k++) {
    Err e = {0};
    WANT(f, world_set_mesh(f->w, &f->a, &mesh[k], &e));
    for (AxisSet axes = 0; axes < N_AXIS_SET; axes++) {
      if (!axes_legal(axes)) continue;
      int n = mesh_group_size(&mesh[k], axes), self = mesh_group_self(&mesh[k], rank, axes);
      int64_t bound[5] = {0, 1, 2, 3, 4};
      int who[4] = {-1, -1, -1, -1};
      who[self] = rank;
      comm_allgather(f->w, axes, who, bound, sizeof *who);
      uint64_t sum = 1u << rank, want = 0;
      comm_allreduce_u64(f->w, axes, &sum, 1);
      for (int i = 0; i < n; i++) {
        WANT(f, who[i] == mesh_group_rank(&mesh[k], rank, axes, i));
        want += 1u << mesh_group_rank(&mesh[k], rank, axes, i);
      }
      WANT(f, sum == want);
    }
  }
  set_mesh(f, 1, world_size(f->w), 1, 1, 1, 1);
  SETTLE(f);
}

static void test_allreduce(void **s) {
  Fixture *f = *s;
  static const int64_t sizes[] = {0, 1, 2, 3, 7, 511, 512, 513, 1000, 20011};
  int n = world_size(f->w), rank = world_rank(f->w);
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
    for (int cut = 0; cut < 2; cut++) {
      world_set_max_message(f->w, cut ? 1000 : 1 << 20);
      ArenaMark mark = arena_mark(&f->a);
      uint64_t *x = ARENA_NEW(&f->a, uint64_t, sizes[k] + 1), *y = ARENA_NEW(&f->a, uint64_t, sizes[k] + 1), before = sent(f, AXES_WORLD);
      for (int64_t i = 0; i < sizes[k]; i++) x[i] = y[i] = draw((uint64_t)rank, i);
      comm_allreduce_u64(f->w, AXES_WORLD, x, sizes[k]);
      uint64_t middle = sent(f, AXES_WORLD);
      WANT(f, middle - before == PLANNED(f, sketch_allreduce_u64, sizes[k]));
      comm_allreduce_max_u64(f->w, AXES_WORLD, y, sizes[k]);
      WANT(f, sent(f, AXES_WORLD) - middle == PLANNED(f, sketch_allreduce_max_u64, sizes[k]));
      for (int64_t i = 0; i < sizes[k]; i++) {
        uint64_t sum = 0, max = 0;
        for (int r = 0; r < n; r++) {
          uint64_t v = draw((uint64_t)r, i);
          sum += v;
          max = v > max ? v : max;
        }
        WANT(f, x[i] == sum);
        WANT(f, y[i] == max);
      }
      WANT(f, x[sizes[k]] == 0 && y[sizes[k]] == 0);
      arena_release(&f->a, mark);
    }
  SETTLE(f);
}

static void test_alltoall(void **s) {
  Fixture *f = *s;
  static const size_t blocks[] = {0, 1, 13, 5000};
  int n = world_size(f->w), rank = world_rank(f->w);
  world_set_max_message(f->w, 24); /* 5000 bytes: more messages than a wave holds */
  for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) {
    size_t b = blocks[k];
    ArenaMark mark = arena_mark(&f->a);
    unsigned char *x = arena_alloc(&f->a, b, (size_t)n), *y = arena_alloc(&f->a, b, (size_t)n);
    uint64_t before = sent(f, AXES_WORLD);
    for (size_t i = 0; i < b * (size_t)n; i++) x[i] = (unsigned char)draw((uint64_t)rank, (int64_t)i);
    comm_alltoall(f->w, AXES_WORLD, x, y, b);
    WANT(f, sent(f, AXES_WORLD) - before == PLANNED(f, sketch_alltoall, b));
    for (int from = 0; from < n; from++)
      for (size_t i = 0; i < b; i++)
        WANT(f, y[(size_t)from * b + i] == (unsigned char)draw((uint64_t)from, (int64_t)((size_t)rank * b + i)));
    arena_release(&f->a, mark);
  }
  SETTLE(f);
}

/* Ascending cuts of total: some shares empty. */
static void random_bound(uint64_t stream, int n, int64_t total, int64_t *bound) {
  bound[0] = 0;
  for (int i = 1; i < n; i++) {
    int64_t left = total - bound[i - 1];
    bound[i] = bound[i - 1] + (draw(stream, 3 * i) % 3 ? draw_below(stream, 3 * i + 1, left + 1) : 0);
  }
  bound[n] = total;
}

static void test_allgather(void **s) {
  Fixture *f = *s;
  int n = world_size(f->w), rank = world_rank(f->w);
  for (uint64_t trial = 0; trial < 30; trial++) {
    int64_t bound[5], total = draw_below(99, (int64_t)trial, trial < 10 ? 4 : 3000);
    random_bound(trial, n, total, bound);
    world_set_max_message(f->w, trial % 2 ? 16 : 4096);
    ArenaMark mark = arena_mark(&f->a);
    uint64_t *x = ARENA_NEW(&f->a, uint64_t, total + 1), before = sent(f, AXES_WORLD);
    for (int64_t i = bound[rank]; i < bound[rank + 1]; i++) x[i] = draw(trial, i);
    comm_allgather(f->w, AXES_WORLD, x, bound, sizeof *x);
    WANT(f, sent(f, AXES_WORLD) - before == PLANNED(f, sketch_allgather, bound, sizeof *x));
    for (int64_t i = 0; i < total; i++) WANT(f, x[i] == draw(trial, i));
    WANT(f, x[total] == 0);
    arena_release(&f->a, mark);
  }
  SETTLE(f);
}

/* Magnitudes spread so far that the order of additions shows in the bits. */
static double draw_float(int rank, uint64_t stream, int64_t i) {
  uint64_t r = draw(stream * 16 + (uint64_t)rank, i);
  return ((double)(r >> 11) * 0x1p-53 - 0.5) * (double)(1 << (r & 15));
}

static void put(SumKind kind, void *p, int64_t i, int rank, uint64_t stream) {
  if (kind == SUM_U64) ((uint64_t *)p)[i] = draw(stream * 16 + (uint64_t)rank, i);
  if (kind == SUM_F32) ((float *)p)[i] = (float)draw_float(rank, stream, i);
  if (kind == SUM_F64) ((double *)p)[i] = draw_float(rank, stream, i);
}

/* out = element i summed over members first, first + step, ... */
static void sum_define(SumKind kind, void *out, int64_t i, int n, int first, int step, uint64_t stream) {
  uint64_t u = 0;
  float s = 0;
  double d = 0;
  for (int k = 0, r = first; k < n; k++, r += step) {
    s = k ? s + (float)draw_float(r, stream, i) : (float)draw_float(r, stream, i);
    d = k ? d + draw_float(r, stream, i) : draw_float(r, stream, i);
    u += draw(stream * 16 + (uint64_t)r, i);
  }
  memcpy(out, kind == SUM_U64 ? (void *)&u : kind == SUM_F32 ? (void *)&s : (void *)&d, sum_size(kind));
}

static void test_reduce_scatter(void **s) {
  Fixture *f = *s;
  int n = world_size(f->w), rank = world_rank(f->w);
  int64_t order_shows = 0;
  for (uint64_t trial = 0; trial < 36; trial++) {
    SumKind kind = (SumKind)(trial % 3);
    size_t elem = sum_size(kind), stage_bytes = trial % 2 ? reduce_stage_min(n) : 1 << 17;
    int64_t bound[5], total = draw_below(98, (int64_t)trial, trial < 9 ? 5 : 9000);
    random_bound(trial, n, total, bound);
    world_set_max_message(f->w, trial % 4 ? 1 << 16 : 800);
    ArenaMark mark = arena_mark(&f->a);
    char *x = arena_alloc(&f->a, (size_t)total + 1, elem), *stage = arena_alloc(&f->a, stage_bytes, 1), want[8], other[8];
    uint64_t before = sent(f, AXES_WORLD);
    for (int64_t i = 0; i < total; i++) put(kind, x, i, rank, trial);
    reduce_scatter(f->w, AXES_WORLD, x, kind, bound, stage, stage_bytes);
    WANT(f, sent(f, AXES_WORLD) - before == PLANNED(f, sketch_reduce_scatter, elem, bound, stage_bytes));
    for (int64_t i = bound[rank]; i < bound[rank + 1]; i++) {
      sum_define(kind, want, i, n, 0, 1, trial);
      sum_define(kind, other, i, n, n - 1, -1, trial);
      WANT(f, memcmp(want, x + (size_t)i * elem, elem) == 0);
      order_shows += memcmp(want, other, elem) != 0;
    }
    arena_release(&f->a, mark);
  }
  uint64_t shown = (uint64_t)order_shows;
  comm_allreduce_u64(f->w, AXES_WORLD, &shown, 1);
  WANT(f, n == 2 ? shown == 0 : shown > 1000);
  SETTLE(f);
}

/* Segment lists of the pair (a, b), the same on both sides. */
enum { MAX_SEG = 120 };
static int pair_segments(uint64_t trial, int a, int b, int64_t *n_row) {
  uint64_t stream = 1000 + trial * 64 + (uint64_t)(a * 8 + b);
  int n = (int)draw_below(stream, 0, trial % 5 == 4 ? MAX_SEG : 5);
  for (int i = 0; i < n; i++) n_row[i] = draw(stream, 2 * i + 1) % 3 ? draw_below(stream, 2 * i + 2, 9) : 0;
  return n;
}

/* Lists of several peers are interleaved: only the order between two ranks is agreed. */
static int build_segments(uint64_t trial, int self, int n, bool sending, RowSeg *seg, int64_t *n_rows) {
  int64_t len[4][MAX_SEG];
  int count[4], at[4] = {0}, total = 0, n_seg = 0;
  for (int p = 0; p < n; p++) total += count[p] = sending ? pair_segments(trial, self, p, len[p]) : pair_segments(trial, p, self, len[p]);
  *n_rows = 0;
  for (int k = 0; n_seg < total; k++) {
    int p = (int)draw_below(5000 + trial * 8 + (uint64_t)self * 2 + sending, k, n);
    if (at[p] == count[p]) continue;
    seg[n_seg++] = (RowSeg){.peer = p, .row = *n_rows, .n_row = len[p][at[p]]};
    *n_rows += len[p][at[p]++];
  }
  return n_seg;
}

/* A row's bytes tell who sent it to whom and as which of the pair's rows. */
static void paint(unsigned char *row, size_t row_bytes, int a, int b, int64_t nth) {
  for (size_t i = 0; i < row_bytes; i++) row[i] = (unsigned char)draw((uint64_t)(7000 + a * 8 + b), nth * 64 + (int64_t)i);
}

static void test_exchange_rows(void **s) {
  Fixture *f = *s;
  int n = world_size(f->w), self = world_rank(f->w);
  for (uint64_t trial = 0; trial < 40; trial++) {
    ArenaMark mark = arena_mark(&f->a);
    RowSeg *out = ARENA_NEW(&f->a, RowSeg, 4 * MAX_SEG), *in = ARENA_NEW(&f->a, RowSeg, 4 * MAX_SEG);
    int64_t rows_out, rows_in, nth[4] = {0}, seen[4] = {0};
    size_t row_bytes = 1 + (size_t)draw_below(4000, (int64_t)trial, 40);
    int n_out = build_segments(trial, self, n, true, out, &rows_out), n_in = build_segments(trial, self, n, false, in, &rows_in);
    unsigned char *x = arena_alloc(&f->a, (size_t)rows_out, row_bytes), *y = arena_alloc(&f->a, (size_t)rows_in + 1, row_bytes), want[64];
    for (int i = 0; i < n_out; i++)
      for (int64_t r = 0; r < out[i].n_row; r++)
        paint(x + (size_t)(out[i].row + r) * row_bytes, row_bytes, self, out[i].peer, nth[out[i].peer]++);
    world_set_max_message(f->w, trial % 2 ? 8 : 1 << 20);
    uint64_t before = sent(f, AXES_WORLD);
    comm_exchange_rows(f->w, AXES_WORLD, x, out, n_out, y, in, n_in, row_bytes);
    WANT(f, sent(f, AXES_WORLD) - before == PLANNED(f, sketch_exchange_rows, out, n_out, in, n_in, row_bytes));
    for (int i = 0; i < n_in; i++)
      for (int64_t r = 0; r < in[i].n_row; r++) {
        paint(want, row_bytes, in[i].peer, self, seen[in[i].peer]++);
        WANT(f, memcmp(want, y + (size_t)(in[i].row + r) * row_bytes, row_bytes) == 0);
      }
    for (size_t i = 0; i < row_bytes; i++) WANT(f, y[(size_t)rows_in * row_bytes + i] == 0);
    arena_release(&f->a, mark);
  }
  SETTLE(f);
}

/* Blocks of uneven lengths go round until they are home again, two at a time; some are empty. */
static void test_ring(void **s) {
  Fixture *f = *s;
  enum { MOST = 300 };
  int n = world_size(f->w), self = world_rank(f->w);
  for (uint64_t trial = 0; trial < 12; trial++) {
    unsigned char block[2][2][MOST], want[MOST];
    int64_t len[2][4];
    for (int r = 0; r < n; r++)
      for (int k = 0; k < 2; k++) len[k][r] = draw(9000 + trial, r * 2 + k) % 4 ? draw_below(9100 + trial, r * 2 + k, MOST) : 0;
    for (int k = 0; k < 2; k++) paint(block[0][k], (size_t)len[k][self], self, k, (int64_t)trial);
    world_set_max_message(f->w, trial % 2 ? 40 : 1 << 20);
    for (int step = 0; step < n; step++) {
      int here = (self - step + n) % n, next = (here - 1 + n) % n, from = step % 2, to = 1 - from;
      Hop hop[2];
      for (int k = 0; k < 2; k++) hop[k] = (Hop){block[from][k], (size_t)len[k][here], block[to][k], (size_t)len[k][next]};
      uint64_t before = sent(f, AXES_WORLD);
      comm_ring_begin(f->w, AXES_WORLD, hop, 2);
      comm_ring_end(f->w, AXES_WORLD);
      WANT(f, sent(f, AXES_WORLD) - before == PLANNED(f, sketch_ring, hop, 2));
      for (int k = 0; k < 2; k++) {
        paint(want, (size_t)len[k][next], next, k, (int64_t)trial);
        WANT(f, memcmp(want, block[to][k], (size_t)len[k][next]) == 0);
      }
    }
  }
  SETTLE(f);
}

static void test_agree_and_bcast(void **s) {
  Fixture *f = *s;
  int n = world_size(f->w), rank = world_rank(f->w);
  world_set_max_message(f->w, 100);
  for (int first = 0; first <= n; first++) { /* ranks from `first` on fail */
    Err e = {0};
    if (rank >= first) err_set(&e, ERR_DATA, "rank %d", rank);
    bool fine = world_agree(f->w, &e);
    char want[16];
    snprintf(want, sizeof want, "rank %d", first);
    WANT(f, fine == (first == n) && e.code == (first == n ? ERR_NONE : ERR_DATA));
    WANT(f, first == n || strcmp(e.text, want) == 0);
  }
  for (int root = 0; root < n; root++) {
    char text[1234] = {0};
    if (rank == root) memset(text, 'a' + root, sizeof text);
    comm_bcast(f->w, text, sizeof text, root);
    for (size_t i = 0; i < sizeof text; i++) WANT(f, text[i] == 'a' + root);
  }
  WANT(f, world_local_size(f->w) == n);
  WANT(f, strlen(world_library(f->w)) > 3);
  comm_barrier(f->w);
  SETTLE(f);
}

/* Traffic of a group of one stays empty, that of two sets is kept apart. */
static void test_traffic_by_set(void **s) {
  Fixture *f = *s;
  int n = world_size(f->w);
  uint64_t x[3] = {1, 2, 3};
  set_mesh(f, 1, 1, n, 1, n, 1);
  uint64_t cp = sent(f, AXIS_BIT(AXIS_CP)), ep = sent(f, AXIS_BIT(AXIS_EP));
  comm_allreduce_u64(f->w, AXIS_BIT(AXIS_CP), x, 3);
  comm_allreduce_u64(f->w, AXIS_BIT(AXIS_TP), x, 3);
  WANT(f, x[0] == (uint64_t)n && x[2] == 3 * (uint64_t)n);
  WANT(f, sent(f, AXIS_BIT(AXIS_CP)) - cp == 24 * (uint64_t)(n - 1));
  WANT(f, sent(f, AXIS_BIT(AXIS_EP)) == ep);
  comm_allreduce_u64(f->w, AXIS_BIT(AXIS_EP), x, 3);
  WANT(f, x[1] == 2 * (uint64_t)n * (uint64_t)n);
  WANT(f, sent(f, AXIS_BIT(AXIS_EP)) - ep == 24 * (uint64_t)(n - 1));
  SETTLE(f);
}

static Fixture fixture; /* opened in main: MPI starts once a process */
static int give(void **s) { return *s = &fixture, 0; }

int main(int argc, char **argv) {
  Err e = {0};
  arena_open(&fixture.a, "test", (size_t)64 << 20);
  if (!world_open(&fixture.w, &fixture.a, &argc, &argv, &e)) return world_close(fixture.w, &e);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_groups),    cmocka_unit_test(test_allreduce),       cmocka_unit_test(test_alltoall),
      cmocka_unit_test(test_allgather), cmocka_unit_test(test_reduce_scatter),  cmocka_unit_test(test_exchange_rows),
      cmocka_unit_test(test_ring),      cmocka_unit_test(test_agree_and_bcast), cmocka_unit_test(test_traffic_by_set),
  };
  int failed = cmocka_run_group_tests(tests, give, NULL);
  world_close(fixture.w, &e);
  return failed != 0;
}
