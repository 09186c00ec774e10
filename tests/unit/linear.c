/* Products of linear layers against straightforward loops: with the plain provider bit by bit (chains of fused multiply-adds, then the
 * fixed tree), with the default one within rounding; and what canonical mode promises: a row's bits are its own, threads change none. */
#include "unit/gemm_rig.h"

enum { N_GROUP = 6, N_EXPERT = 7 };

typedef struct Case {
  const char *provider;
  GemmType type;
  bool trans, blocked, y_real;
  LinMode mode;
  int64_t n_fixed;
  Shards cut;
} Case;

static GemmType y_type(const Case *k) { return k->y_real ? sum_type(k->type) : k->type; }

typedef struct Rig {
  Arena arena;
  Case k;
  Gemm *g;
  Rows rows;
  RowGroup group[N_GROUP];
  int64_t offset[16], expert_stride;
  Buffer x, y, w;
  TreeNode root[TREE_ROOTS];
  int n_root; /* planes of y */
} Rig;

static const int64_t group_rows[N_GROUP] = {0, 365, 1, 64, 13, 63};
static const int group_expert[N_GROUP] = {0, 4, 1, 6, 2, 5};

static int64_t set_groups(Rows *r, RowGroup *group, const int64_t *n, const int *expert) {
  int64_t row = 0;
  for (int i = 0; i < N_GROUP; i++) {
    group[i] = (RowGroup){.expert = expert[i], .row = row, .n_row = n[i]};
    row += n[i];
  }
  *r = (Rows){.n_row = row, .n_group = N_GROUP, .group = group, .row_bound = row};
  return row;
}

static LinArgs args_of(const Rig *t) {
  return (LinArgs){.mode = t->k.mode,
                   .trans = t->k.trans,
                   .n_fixed = t->k.n_fixed,
                   .cut = t->k.cut,
                   .y_real = t->k.y_real,
                   .w = {.data = t->w.p, .expert_stride = t->expert_stride, .offset = t->offset}};
}

static void open_rig(Rig *t, Case k) {
  *t = (Rig){.k = k};
  arena_open(&t->arena, "test", 64 << 20);
  t->g = open_gemm(k.provider, 3);
  int64_t n = set_groups(&t->rows, t->group, group_rows, group_expert), total = shard_total(&k.cut), at = 0;
  t->rows.blocked = k.blocked;
  for (int j = k.cut.count - 1; j >= 0; j--) { /* blocks in reverse, with gaps: offsets are free */
    t->offset[j] = at;
    at += shard_width(&k.cut, k.cut.first + j) * k.n_fixed + 3;
  }
  t->expert_stride = at + 5;
  t->w = random_buffer(&t->arena, k.type, N_EXPERT * t->expert_stride, 11);
  t->x = random_buffer(&t->arena, k.type, n * (k.mode == LIN_MAP ? k.n_fixed : total), 12);
  t->n_root = k.mode == LIN_MAP ? 1 : linear_roots(&(LinArgs){.cut = k.cut}, t->root);
  t->y = buffer_new(&t->arena, (size_t)(n * (k.mode == LIN_MAP ? total : t->n_root * k.n_fixed)) * type_size(y_type(&k)));
}

static void close_rig(Rig *t) {
  buffer_check(&t->x), buffer_check(&t->w), buffer_check(&t->y);
  gemm_close(t->g);
  arena_close(&t->arena);
}

static void run_linear(Rig *t, const Rows *rows, const void *x, void *y, int threads) {
  const Kernels *kernels = kernels_of(t->k.type);
  KCtx c = {.threads = threads, .gemm = t->g};
  LinArgs a = args_of(t);
  kernels->linear_prepare(&c, &a, rows, NULL, 0, true);
  ArenaMark mark = arena_mark(&t->arena);
  Buffer work = buffer_new(&t->arena, kernels->linear_work(&c, &a, rows));
  memset(work.p, 0xff, work.n);
  c.work = work.p;
  kernels->linear(&c, y, x, &a, rows);
  buffer_check(&work);
  arena_release(&t->arena, mark);
}

/* Row r of x in block j times the weight, element i: one chain. *size: sum of magnitudes. */
static double chain(const Rig *t, int64_t r, int expert, int j, int64_t i, double *size) {
  const Case *k = &t->k;
  int64_t width = shard_width(&k->cut, k->cut.first + j), in = k->mode == LIN_MAP ? k->n_fixed : width,
          out = k->mode == LIN_MAP ? width : k->n_fixed;
  int64_t x0 = k->mode == LIN_MAP ? 0 : t->rows.n_row * shard_local(&k->cut, k->cut.first + j),
          w0 = expert * t->expert_stride + t->offset[j];
  double sum = 0;
  for (int64_t q = 0; q < in; q++) {
    double x = get(k->type, t->x.p, x0 + r * in + q), w = get(k->type, t->w.p, w0 + (k->trans ? i * in + q : q * out + i));
    sum = fused(k->type, x, w, sum);
    *size += fabs(x * w);
  }
  return sum;
}

/* A node of the tree over all global blocks, level by level; a pair with one present is promoted. */
static double tree(const Rig *t, TreeNode root, int64_t r, int expert, int64_t i, double *size) {
  double v[16];
  bool here[16];
  int n = t->k.cut.n;
  for (int b = 0; b < n; b++) {
    int j = b - t->k.cut.first;
    here[b] = j >= 0 && j < t->k.cut.count && shard_width(&t->k.cut, b) > 0 && b >> root.level == root.index;
    v[b] = here[b] ? chain(t, r, expert, j, i, size) : 0;
  }
  for (; n > 1; n = (n + 1) / 2)
    for (int b = 0; b < n; b += 2) {
      bool pair = b + 1 < n && here[b + 1];
      v[b / 2] = !pair ? v[b] : here[b] ? sum2(t->k.type, v[b], v[b + 1]) : v[b + 1];
      here[b / 2] = here[b] || pair;
    }
  return v[0];
}

static void check_element(const Rig *t, int64_t at, double want, double size) {
  double got = get(y_type(&t->k), t->y.p, at);
  bool exact = t->k.type == GEMM_F64 || strcmp(t->k.provider, "plain") == 0, rounds = y_type(&t->k) == GEMM_BF16;
  if (rounds && exact) want = round_bf16(want);
  if (exact ? got != want : !(fabs(got - want) <= 1e-5 * size + (rounds ? 0x1p-8 * fabs(want) : 0)))
    fail_msg("%s: element %ld is %.17g, expected %.17g", t->k.provider, (long)at, got, want);
}

static void check_row(const Rig *t, int64_t r, int expert) {
  const Case *k = &t->k;
  double size = 0;
  for (int p = 0; p < t->n_root && k->mode == LIN_REDUCE; p++)
    for (int64_t i = 0; i < k->n_fixed; i++, size = 0) {
      double want = tree(t, t->root[p], r, expert, i, &size);
      check_element(t, (p * t->rows.n_row + r) * k->n_fixed + i, want, size);
    }
  for (int j = 0; j < k->cut.count && k->mode == LIN_MAP; j++) {
    int64_t width = shard_width(&k->cut, k->cut.first + j), y0 = t->rows.n_row * shard_local(&k->cut, k->cut.first + j) + r * width;
    for (int64_t i = 0; i < width; i++, size = 0) {
      double want = chain(t, r, expert, j, i, &size);
      check_element(t, y0 + i, want, size);
    }
  }
}

static const Shards cuts[] = {
    {.n = 1, .first = 0, .count = 1, .units = 20, .unit = 1},
    {.n = 3, .first = 0, .count = 3, .units = 20, .unit = 1},
    {.n = 5, .first = 0, .count = 5, .units = 5, .unit = 8},
    {.n = 6, .first = 1, .count = 4, .units = 33, .unit = 1}, /* roots: 1, (2 3), 4 */
    {.n = 7, .first = 3, .count = 4, .units = 5, .unit = 4},  /* blocks of width zero */
    {.n = 3, .first = 1, .count = 0, .units = 9, .unit = 1},
};

static const struct {
  GemmType type;
  bool y_real;
} types[] = {{GEMM_F32, false}, {GEMM_F64, true}, {GEMM_BF16, false}, {GEMM_BF16, true}};

static Case case_of(int i) {
  return (Case){.provider = i & 1 ? "auto" : "plain",
                .trans = i & 2,
                .blocked = i & 4,
                .mode = i & 8 ? LIN_REDUCE : LIN_MAP,
                .n_fixed = 23,
                .type = types[i / 16 % 4].type,
                .y_real = types[i / 16 % 4].y_real,
                .cut = cuts[i / 64]};
}
enum { N_CASE = 64 * 6 };

static void products_equal_loops(void **state) {
  (void)state;
  for (int i = 0; i < N_CASE; i++) {
    Rig t;
    open_rig(&t, case_of(i));
    run_linear(&t, &t.rows, t.x.p, t.y.p, i % 4 == 0 ? 3 : 1);
    for (int g = 0; g < N_GROUP; g++)
      for (int64_t r = 0; r < group_rows[g]; r += 1 + 5 * (i % 7)) check_row(&t, t.group[g].row + r, group_expert[g]);
    close_rig(&t);
  }
}

static void threads_change_no_bit(void **state) {
  (void)state;
  for (int i = 0; i < N_CASE; i += 5) {
    Rig t;
    open_rig(&t, case_of(i));
    char *first = arena_alloc(&t.arena, t.y.n, 1);
    for (int threads = 1; threads <= 3; threads++) {
      run_linear(&t, &t.rows, t.x.p, t.y.p, threads);
      if (threads == 1) memcpy(first, t.y.p, t.y.n);
      assert_memory_equal(t.y.p, first, t.y.n);
    }
    close_rig(&t);
  }
}

/* Copies row `from` of a shard-major matrix of n_from rows to row `to` of one of n_to rows. */
static void move_row(const Rig *t, GemmType type, bool cut, char *to, int64_t n_to, int64_t r_to, const char *from, int64_t n_from,
                     int64_t r_from) {
  size_t z = type_size(type);
  const Shards *s = &t->k.cut;
  for (int j = 0; j < (cut ? s->count : 1); j++) {
    int64_t width = cut ? shard_width(s, s->first + j) : t->k.n_fixed, base = cut ? shard_local(s, s->first + j) : 0;
    memcpy(to + (size_t)(n_to * base + r_to * width) * z, from + (size_t)(n_from * base + r_from * width) * z, (size_t)width * z);
  }
}

/* Canonical mode: every third row, in reverse order, beside other rows and in other blocks, has the bits that it had. */
static void rows_do_not_see_each_other(void **state) {
  (void)state;
  for (int i = 0; i < N_CASE; i += 5) {
    Case k = case_of(i);
    if (!k.blocked) continue;
    Rig t;
    open_rig(&t, k);
    run_linear(&t, &t.rows, t.x.p, t.y.p, 1);
    Rows less;
    RowGroup group[N_GROUP];
    int64_t n[N_GROUP], row = 0, all = t.rows.n_row;
    int planes = t.n_root;
    for (int g = 0; g < N_GROUP; g++) n[g] = (group_rows[g] + 2) / 3;
    int64_t some = set_groups(&less, group, n, group_expert);
    less.blocked = true;
    char *x = arena_alloc(&t.arena, t.x.n, 1), *y = arena_alloc(&t.arena, t.y.n, 1), *want = arena_alloc(&t.arena, t.y.n, 1);
    for (int g = 0; g < N_GROUP; g++)
      for (int64_t r = n[g] - 1; r >= 0; r--, row++) {
        move_row(&t, k.type, k.mode == LIN_REDUCE, x, some, row, t.x.p, all, t.group[g].row + 3 * r);
        for (int p = 0; p < planes; p++)
          move_row(&t, y_type(&k), k.mode == LIN_MAP, want, some, p * some + row, t.y.p, all, p * all + t.group[g].row + 3 * r);
      }
    run_linear(&t, &less, x, y, 2);
    assert_memory_equal(y, want, t.y.n / (size_t)all * (size_t)some);
    close_rig(&t);
  }
}

/* Blocks dealt to ranks, each writes its roots; merged they are the bits of one rank. Canonical and native rows, empty blocks, empty
 * ranks. */
static void ranks_give_the_bits_of_one(void **state) {
  (void)state;
  const Shards all[] = {{5, 0, 5, 21, 2}, {8, 0, 8, 5, 4}, {13, 0, 13, 40, 1}, {2, 0, 2, 12, 2}};
  const int rank_counts[] = {2, 3, 5};
  for (int i = 0; i < 6 * 3 * 4; i++) {
    int ranks = rank_counts[i / 6 % 3], n_plane = 0, at = 0;
    Case k = {.provider = i & 1 ? "auto" : "plain",
              .type = (GemmType)(i / 2 % 3),
              .trans = i & 1,
              .blocked = i / 6 & 1,
              .mode = LIN_REDUCE,
              .n_fixed = 23};
    k.cut = all[i / 18];
    Rig t, p;
    open_rig(&t, k);
    run_linear(&t, &t.rows, t.x.p, t.y.p, 2);
    const Kernels *kernels = kernels_of(k.type);
    size_t z = type_size(k.type), plane_bytes = t.y.n / z * type_size(sum_type(k.type));
    const void *plane[64];
    TreeNode node[64];
    for (int r = 0; r < ranks; r++) {
      Shards own = {k.cut.n, at, k.cut.n * (r + 1) / ranks - at, k.cut.units, k.cut.unit};
      int n = linear_roots(&(LinArgs){.cut = own}, node + n_plane);
      char *y = arena_alloc(&t.arena, (size_t)n * plane_bytes, 64);
      p = t; /* the arena with it: nothing else is taken from either while the rank runs */
      p.k.cut = own, p.k.y_real = true;
      memcpy(p.offset, t.offset + at, (size_t)own.count * sizeof *p.offset);
      run_linear(&p, &t.rows, t.x.p + (size_t)(t.rows.n_row * shard_begin(&k.cut, at)) * z, n ? y : NULL, 1 + r % 3);
      for (int j = 0; j < n; j++) plane[n_plane++] = y + (size_t)j * plane_bytes;
      at = k.cut.n * (r + 1) / ranks;
    }
    char *y = arena_alloc(&t.arena, t.y.n, 64);
    int64_t n = (int64_t)(t.y.n / z);
    for (int threads = 1; threads <= 2; threads++) {
      memset(y, 0xff, t.y.n);
      kernels->tree_merge(&(KCtx){.threads = threads}, y, plane, node, n_plane, 1, n, n, n);
      assert_memory_equal(y, t.y.p, t.y.n);
    }
    void *rows = k.type == GEMM_BF16 ? y : (void *)(uintptr_t)plane[0]; /* in place, where that may be */
    kernels->tree_merge(&(KCtx){.threads = 1}, rows, plane, node, n_plane, t.rows.n_row, 23, 23, 23);
    assert_memory_equal(rows, t.y.p, t.y.n);
    close_rig(&t);
  }
}

/* Roots of [lo, hi) of n against the definition, by search: nodes whose leaves are all here and whose parent's are not. */
static void roots_are_the_largest_local_nodes(void **state) {
  (void)state;
  for (int n = 1; n <= 9; n++)
    for (int units = 1; units <= n; units++)
      for (int lo = 0; lo <= n; lo++)
        for (int hi = lo; hi <= n; hi++) {
          Shards s = {n, lo, hi - lo, units, 3};
          TreeNode root[TREE_ROOTS] = {{0}};
          int got = shard_roots(&s, root), want = 0, top = 0;
          while (1 << top < n) top++;
          for (int leaf = 0; leaf < n; leaf++) {
            if (leaf < lo || leaf >= hi || shard_width(&s, leaf) == 0) continue;
            int level = -1;
            for (int l = 0; l <= top; l++) {
              bool inside = true;
              for (int b = 0; b < n; b++) inside &= b >> l != leaf >> l || shard_width(&s, b) == 0 || (b >= lo && b < hi);
              if (inside) level = l;
            }
            if (want && root[want - 1].level == level && root[want - 1].index == leaf >> level) continue;
            assert_true(want < got && root[want].level == level && root[want].index == leaf >> level);
            want++;
          }
          assert_int_equal(got, want);
        }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_equal_loops),
      cmocka_unit_test(threads_change_no_bit),
      cmocka_unit_test(rows_do_not_see_each_other),
      cmocka_unit_test(ranks_give_the_bits_of_one),
      cmocka_unit_test(roots_are_the_largest_local_nodes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
