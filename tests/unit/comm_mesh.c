/* Mesh arithmetic, shares, the tree, predictions: everything of comm that needs no MPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/reduce.h"

#define BIT AXIS_BIT

static Mesh mesh(int world, int pp, int dp, int cp, int tp, int ep, int etp) {
  Mesh m;
  Err e = {0};
  if (!mesh_init(&m, world, pp, dp, cp, tp, ep, etp, &e)) fail_msg("%s", e.text);
  return m;
}

static void check_group(const Mesh *m, int rank, AxisSet axes, int n, const int *want) {
  static Arena a;
  arena_open(&a, "group", 1 << 16);
  Group g = mesh_group(m, &a, rank, axes);
  assert_int_equal(g.n, n);
  assert_int_equal(g.axes, axes);
  assert_int_equal(mesh_group_size(m, axes), n);
  assert_memory_equal(g.rank, want, (size_t)n * sizeof(int));
  assert_int_equal(g.rank[g.self], rank);
  arena_close(&a);
}

/* W = 8, TP 2, CP 2, DP 2; EP 8, ETP 1: the expert group is the whole world although no dense group exceeds 2. */
static void test_folding_example(void **s) {
  (void)s;
  Mesh m = mesh(8, 1, 2, 2, 2, 8, 1);
  assert_int_equal(m.size[AXIS_EDP], 1);
  check_group(&m, 5, BIT(AXIS_TP), 2, (int[]){4, 5});
  check_group(&m, 5, BIT(AXIS_CP), 2, (int[]){5, 7});
  check_group(&m, 5, BIT(AXIS_DP), 2, (int[]){1, 5});
  check_group(&m, 5, AXES_TOKENS, 4, (int[]){1, 3, 5, 7});
  check_group(&m, 6, BIT(AXIS_EP), 8, (int[]){0, 1, 2, 3, 4, 5, 6, 7});
  check_group(&m, 6, BIT(AXIS_ETP), 1, (int[]){6});
  check_group(&m, 6, BIT(AXIS_EDP), 1, (int[]){6});
  check_group(&m, 6, 0, 1, (int[]){6});
}

/* rank = tp + TP (cp + CP (dp + DP pp)) = etp + ETP (ep + EP (edp + EDP pp)). */
static void test_two_views(void **s) {
  (void)s;
  Mesh m = mesh(24, 2, 2, 1, 6, 2, 3);
  assert_int_equal(m.size[AXIS_EDP], 2);
  for (int rank = 0; rank < 24; rank++) {
    int dense = mesh_coord(&m, rank, AXIS_TP) +
                6 * (mesh_coord(&m, rank, AXIS_CP) + (mesh_coord(&m, rank, AXIS_DP) + 2 * mesh_coord(&m, rank, AXIS_PP)));
    int expert = mesh_coord(&m, rank, AXIS_ETP) +
                 3 * (mesh_coord(&m, rank, AXIS_EP) + 2 * (mesh_coord(&m, rank, AXIS_EDP) + 2 * mesh_coord(&m, rank, AXIS_PP)));
    assert_int_equal(dense, rank);
    assert_int_equal(expert, rank);
  }
  check_group(&m, 16, BIT(AXIS_PP), 2, (int[]){4, 16});
  check_group(&m, 16, BIT(AXIS_ETP), 3, (int[]){15, 16, 17});
  check_group(&m, 16, BIT(AXIS_EP), 2, (int[]){13, 16});
  check_group(&m, 16, BIT(AXIS_EDP), 2, (int[]){16, 22});
  check_group(&m, 16, BIT(AXIS_EP) | BIT(AXIS_ETP), 6, (int[]){12, 13, 14, 15, 16, 17});
  check_group(&m, 16, BIT(AXIS_PP) | BIT(AXIS_EDP), 4, (int[]){4, 10, 16, 22});
}

/* Every set of every mesh: members agree on the list, lists ascend and cut the world. */
static void test_groups_partition(void **s) {
  (void)s;
  static const int shape[][7] = {
      {12, 3, 2, 2, 1, 2, 2}, {8, 2, 1, 2, 2, 1, 4}, {6, 1, 3, 1, 2, 3, 2}, {7, 7, 1, 1, 1, 1, 1}, {30, 1, 5, 3, 2, 6, 5}};
  for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
    const int *p = shape[k];
    Mesh m = mesh(p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    for (AxisSet axes = 0; axes < N_AXIS_SET; axes++) {
      if (!axes_legal(axes)) continue;
      int n = mesh_group_size(&m, axes);
      for (int rank = 0; rank < m.world; rank++)
        for (int i = 0; i < n; i++) {
          int peer = mesh_group_rank(&m, rank, axes, i);
          assert_true(peer >= 0 && peer < m.world);
          assert_int_equal(mesh_group_self(&m, peer, axes), i);
          assert_int_equal(mesh_group_rank(&m, peer, axes, 0), mesh_group_rank(&m, rank, axes, 0));
          if (i > 0) assert_true(peer > mesh_group_rank(&m, rank, axes, i - 1));
        }
    }
  }
  assert_false(axes_legal(BIT(AXIS_DP) | BIT(AXIS_EP)));
  assert_true(axes_legal(BIT(AXIS_PP) | BIT(AXIS_EP)));
}

static void refused(int world, int pp, int dp, int cp, int tp, int ep, int etp, const char *a, const char *b) {
  Mesh m;
  Err e = {0};
  assert_false(mesh_init(&m, world, pp, dp, cp, tp, ep, etp, &e));
  assert_int_equal(e.code, ERR_CONFIG);
  if (!strstr(e.text, a) || !strstr(e.text, b)) fail_msg("message lacks '%s' or '%s': %s", a, b, e.text);
}

static void test_refusals(void **s) {
  (void)s;
  refused(4, 2, 2, 2, 1, 1, 1, "= 8", "has 4");
  refused(4, 1, 2, 1, 1, 1, 1, "= 2", "has 4");
  refused(4, 0, 2, 1, 2, 1, 1, "layout.pp", "0");
  refused(4, 1, 2, 1, 2, 1, -3, "layout.etp", "-3");
  refused(4, 2, 1, 1, 2, 2, 2, "= 4", "= 2");                             /* experts of one stage do not fit */
  refused(6, 1, 6, 1, 1, 4, 1, "ep 4", "= 6");                            /* does not divide */
  refused(8, 1 << 16, 1 << 16, 1 << 16, 1 << 16, 1, 1, "65536", "has 8"); /* no overflow */
}

static void test_shares(void **s) {
  (void)s;
  for (int p = 1; p < 9; p++)
    for (int64_t n = 0; n < 40; n++)
      for (int i = 0; i < p; i++) {
        int64_t begin = share_begin(n, p, i), end = share_begin(n, p, i + 1);
        assert_true(end - begin == n / p || end - begin == n / p + (n % p != 0));
        for (int64_t x = begin; x < end; x++) assert_int_equal(share_owner(n, p, x), i);
      }
  int64_t big = INT64_MAX / 2;
  assert_int_equal(share_begin(big, 3, 3), big);
  assert_int_equal(share_owner(big, 3, big - 1), 2);
}

static double draw(uint64_t stream, int64_t i) {
  RngKey k = {.seed = 1, .stream = stream, .purpose = RNG_TEST};
  double scale = (double)(1 << rng_below(k, 2 * (uint64_t)i, 25));
  return (rng_uniform(k, 2 * (uint64_t)i + 1) - 0.5) * scale;
}

/* The definition: [lo, lo + width) of a tree of width 2^level; what lies beyond n is absent. */
static double tree_define(const double *x, int64_t n, int64_t lo, int64_t width) {
  if (width == 1) return x[lo];
  double left = tree_define(x, n, lo, width / 2);
  return lo + width / 2 >= n ? left : left + tree_define(x, n, lo + width / 2, width / 2);
}

static void test_tree_sum(void **s) {
  (void)s;
  enum { N = 300, BLOCK = 8 };
  int differs = 0;
  for (int64_t n = 1; n <= N; n++) {
    double x[N], y[N], blocks[N], running = 0;
    int64_t width = 1;
    while (width < n) width *= 2;
    for (int64_t i = 0; i < n; i++) x[i] = y[i] = draw((uint64_t)n, i);
    for (int64_t i = 0; i < n; i++) running += x[i];
    double want = tree_define(x, n, 0, width), got = tree_sum(y, n);
    assert_memory_equal(&want, &got, sizeof want);
    differs += memcmp(&running, &want, sizeof want) != 0;
    int64_t n_block = (n + BLOCK - 1) / BLOCK; /* owners of whole blocks hand over one number each */
    for (int64_t b = 0; b < n_block; b++) {
      double part[BLOCK];
      int64_t m = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
      memcpy(part, x + b * BLOCK, (size_t)m * sizeof *part);
      blocks[b] = tree_sum(part, m);
    }
    got = tree_sum(blocks, n_block);
    assert_memory_equal(&want, &got, sizeof want);
  }
  assert_true(differs > N / 2); /* else the data could not tell a tree from a running sum */
  double minus = -0.0, zero[3] = {-0.0, -0.0, -0.0};
  double got = tree_sum(zero, 3);
  assert_memory_equal(&got, &minus, sizeof got); /* an absent leaf is not +0 */
  assert_true(tree_sum(zero, 0) == 0);
}

/* Calls of one rank, by hand: bytes to each member and from each, messages. */
typedef struct Told {
  CommCall c;
  uint64_t to[8], from[8];
  int n;
} Told;
static void keep(void *ctx, const CommCall *c) {
  Told *t = ctx;
  t->c = *c, t->n++;
  for (int i = 0; i < c->n && i < 8; i++) t->to[i] = c->to[i], t->from[i] = c->from[i];
}
static void assert_told(const Told *t, uint64_t bytes, uint64_t messages, const uint64_t *to, const uint64_t *from) {
  assert_int_equal(t->c.bytes, bytes);
  assert_int_equal(t->c.messages, messages);
  assert_memory_equal(t->to, to, (size_t)t->c.n * sizeof *to);
  assert_memory_equal(t->from, from, (size_t)t->c.n * sizeof *from);
}
/* Every member's load is what that member's own sketch tells. */
static void assert_loads(Arena *a, const Mesh *m, const int64_t *bound, size_t stage_bytes) {
  Told t[8] = {0};
  CommLoad load[2][8];
  for (int call = 0; call < 3; call++) {
    for (int i = 0; i < m->world; i++) {
      Sketch s = sketch_open(a, m, i, keep, &t[i]);
      if (call == 0) sketch_reduce_scatter(&s, AXES_WORLD, 8, bound, stage_bytes);
      if (call == 1) sketch_allgather(&s, AXES_WORLD, bound, 1 << 28); /* in several messages */
      if (call == 2) sketch_allreduce_u64(&s, AXES_WORLD, 4001);
      load[0][i] = (CommLoad){.sent = t[i].c.bytes, .messages = t[i].c.messages};
      for (int k = 0; k < m->world; k++) load[0][i].received += t[i].from[k];
      memcpy(load[1], t[i].c.load, (size_t)m->world * sizeof *load[1]);
    }
    assert_memory_equal(load[0], load[1], (size_t)m->world * sizeof **load);
  }
}
#define LIST(...) ((const uint64_t[]){__VA_ARGS__})

static void test_predictions(void **s) {
  (void)s;
  const int64_t bound[] = {0, 10, 10, 35};
  Arena a;
  Mesh m;
  Err e = {0};
  Told t = {0};
  arena_open(&a, "sketch", 1 << 22);
  assert_true(mesh_init(&m, 3, 1, 3, 1, 1, 1, 1, &e));
  Sketch first = sketch_open(&a, &m, 0, keep, &t), last = sketch_open(&a, &m, 2, keep, &t);
  sketch_reduce_scatter(&first, AXES_WORLD, 4, bound, 8192); /* 1024 elements of a share at a time */
  assert_told(&t, 25 * 4, 1, LIST(0, 0, 100), LIST(0, 40, 40));
  sketch_reduce_scatter(&first, AXES_WORLD, 4, bound, 64); /* 8 elements of a share at a time: 25 in 4 */
  assert_told(&t, 25 * 4, 4, LIST(0, 0, 100), LIST(0, 40, 40));
  sketch_allgather(&last, AXES_WORLD, bound, 2);
  assert_told(&t, 2 * 25 * 2, 2, LIST(50, 50, 0), LIST(20, 0, 0));
  sketch_alltoall(&first, AXES_WORLD, ((size_t)1 << 30) + 1);
  assert_told(&t, ((uint64_t)2 << 30) + 2, 4, LIST(0, (1u << 30) + 1, (1u << 30) + 1), LIST(0, (1u << 30) + 1, (1u << 30) + 1));
  sketch_allreduce_u64(&first, AXES_WORLD, 3);
  assert_told(&t, 2 * 3 * 8, 2, LIST(0, 24, 24), LIST(0, 24, 24));
  sketch_allreduce_u64(&last, AXES_WORLD, 4000); /* shares of 1333, 1333, 1334 */
  assert_told(&t, (2666 + 2 * 1334) * 8, 4, LIST(2667 * 8, 2667 * 8, 0), LIST(2667 * 8, 2667 * 8, 0));
  sketch_exchange_rows(&first, AXES_WORLD, (RowSeg[]){{1, 0, 2}, {0, 2, 5}, {1, 7, 0}, {2, 7, 1}}, 4, (RowSeg[]){{2, 0, 9}, {0, 9, 5}}, 2,
                       3);
  assert_told(&t, 9, 2, LIST(0, 6, 3), LIST(0, 0, 27));
  assert_loads(&a, &m, bound, 64);
  int before = t.n;
  sketch_reduce_pair(&last, AXES_WORLD, 2, 0, 8, 100, 256);
  assert_told(&t, 800, 4, LIST(800, 0, 0), LIST(0, 0, 0));
  sketch_reduce_pair(&last, AXES_WORLD, 1, 0, 8, 100, 256); /* others do nothing */
  sketch_allreduce_u64(&last, AXIS_BIT(AXIS_TP), 1000);     /* alone */
  assert_int_equal(t.n, before + 1);
  assert_true(mesh_init(&m, 12288, 1, 12288, 1, 1, 1, 1, &e));
  Sketch wide = sketch_open(&a, &m, 5, keep, &t);
  sketch_allreduce_max_u64(&wide, AXES_WORLD, 2);
  assert_int_equal(t.c.bytes, 12287 * 16);
  arena_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_folding_example), cmocka_unit_test(test_two_views), cmocka_unit_test(test_groups_partition),
      cmocka_unit_test(test_refusals),        cmocka_unit_test(test_shares),    cmocka_unit_test(test_tree_sum),
      cmocka_unit_test(test_predictions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
