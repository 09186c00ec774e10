/* Weight gradients of linear layers against straightforward loops, bit by bit: leaves are chains of fused multiply-adds over their rows,
 * rounded to the grid. Exact sums may not depend on how windows are dealt out to calls, on their order or on threads; every bad leaf
 * raises the fault. */
#include "unit/gemm_rig.h"

enum { MAX_GROUP = 8, MAX_LEAF = 32, N_EXPERT = 5, SHIFT = 40, THREADS = 3 };

typedef struct Case {
  GemmType type;
  bool exact, blocked, cut_out;
  int64_t n_fixed;
  Shards cut;
} Case;

typedef struct Layout {
  Rows rows;
  RowGroup group[MAX_GROUP];
  RowLeaf leaf[MAX_LEAF];
  int n_leaf;
} Layout;

typedef struct Rig {
  Arena arena;
  Case k;
  Gemm *g;
  int64_t offset[8], expert_stride, n_acc;
  uint64_t fault;
  Buffer acc;
} Rig;

/* A window's rows for each expert; zero rows: no leaf. */
typedef struct Window {
  int64_t n_token, rows[N_EXPERT];
} Window;
static const Window windows[] = {
    {300, {280, 0, 1, 16, 3}}, {40, {5, 0, 0, 32, 17}}, {7, {7, 0, 2, 5, 0}}, {64, {48, 0, 64, 0, 16}}, {1, {0, 0, 1, 0, 0}},
};
enum { N_WINDOW = sizeof windows / sizeof *windows };

static void open_rig(Rig *t, Case k) {
  *t = (Rig){.k = k};
  arena_open(&t->arena, "test", 256 << 20);
  t->g = open_gemm("auto", THREADS);
  int64_t at = 2;
  for (int j = k.cut.count - 1; j >= 0; j--) {
    t->offset[j] = at;
    at += shard_width(&k.cut, k.cut.first + j) * k.n_fixed + 3;
  }
  t->expert_stride = at;
  t->n_acc = N_EXPERT * at;
  t->acc = buffer_new(&t->arena, (size_t)t->n_acc * (k.exact ? sizeof(uint64_t) : type_size(sum_type(k.type))));
  if (k.exact)
    memset(t->acc.p, 0xe1, t->acc.n);
  else
    fill_random(sum_type(k.type), t->acc.p, t->n_acc, 9);
}

static void close_rig(Rig *t) {
  buffer_check(&t->acc);
  gemm_close(t->g);
  arena_close(&t->arena);
}

/* Rows of the given windows, in that order, sorted by expert. */
static void lay_out(Layout *l, const Case *k, const int *window, int n) {
  *l = (Layout){0};
  int64_t row = 0;
  for (int e = 0; e < N_EXPERT; e++) {
    RowGroup *g = &l->group[e];
    *g = (RowGroup){.expert = e, .row = row, .leaf = l->n_leaf};
    for (int i = 0; i < n; i++) {
      int64_t rows = windows[window[i]].rows[e];
      if (rows > 0) l->leaf[l->n_leaf++] = (RowLeaf){.row = row, .n_row = rows, .n_token = windows[window[i]].n_token};
      row += rows;
    }
    g->n_row = row - g->row;
    g->n_leaf = l->n_leaf - g->leaf;
  }
  l->rows = (Rows){.n_row = row, .n_group = N_EXPERT, .group = l->group, .leaf = l->leaf, .blocked = k->blocked, .row_bound = row + 10};
}

static LinGrad grad_of(Rig *t) {
  Accum a = {
      .data = t->acc.p, .expert_stride = t->expert_stride, .offset = t->offset, .exact = t->k.exact, .shift = SHIFT, .fault = &t->fault};
  return (LinGrad){.cut_out = t->k.cut_out, .n_fixed = t->k.n_fixed, .cut = t->k.cut, .acc = a};
}

static void run_dw(Rig *t, const Rows *rows, const void *dy, const void *x, int threads) {
  const Kernels *kernels = kernels_of(t->k.type);
  enum { LEAF_ROWS = 280 };
  KCtx c = {.threads = threads, .gemm = t->g};
  LinGrad g = grad_of(t);
  kernels->linear_dw_prepare(&c, &g, rows, NULL, 0, true, LEAF_ROWS);
  ArenaMark mark = arena_mark(&t->arena);
  Buffer work = buffer_new(&t->arena, kernels->linear_dw_work(&c, &g, rows, LEAF_ROWS));
  memset(work.p, 0xff, work.n);
  c.work = work.p;
  kernels->linear_dw(&c, dy, x, &g, rows);
  buffer_check(&work);
  arena_release(&t->arena, mark);
}

static int64_t width_of(const Case *k, int j) { return shard_width(&k->cut, k->cut.first + j); }
static int64_t dy_width(const Case *k) { return k->cut_out ? shard_total(&k->cut) : k->n_fixed; }
static int64_t x_width(const Case *k) { return k->cut_out ? k->n_fixed : shard_total(&k->cut); }

/* sum += dy^T x over n rows from `row`, element (o, i) of block j, one chain */
static double chain(const Case *k, int64_t n_row, const void *dy, const void *x, int j, int64_t o, int64_t i, int64_t row, int64_t n,
                    double sum) {
  int64_t width = width_of(k, j), base = n_row * shard_local(&k->cut, k->cut.first + j);
  for (int64_t r = row; r < row + n; r++) {
    int64_t a = k->cut_out ? base + r * width + o : r * k->n_fixed + o, b = k->cut_out ? r * k->n_fixed + i : base + r * width + i;
    sum = fused(k->type, get(k->type, dy, a), get(k->type, x, b), sum);
  }
  return sum;
}

static void loop_element(const Case *k, const Layout *l, const RowGroup *g, const void *dy, const void *x, int j, int64_t o, int64_t i,
                         void *acc, int64_t at) {
  if (!k->exact) {
    put(sum_type(k->type), acc, at, chain(k, l->rows.n_row, dy, x, j, o, i, g->row, g->n_row, get(sum_type(k->type), acc, at)));
    return;
  }
  for (int f = g->leaf; f < g->leaf + g->n_leaf; f++)
    ((uint64_t *)acc)[at] += (uint64_t)llrint(ldexp(chain(k, l->rows.n_row, dy, x, j, o, i, l->leaf[f].row, l->leaf[f].n_row, 0), SHIFT));
}

/* The same into `acc` by loops. */
static void loop_dw(const Rig *t, const Layout *l, const void *dy, const void *x, void *acc) {
  const Case *k = &t->k;
  for (int g = 0; g < l->rows.n_group; g++)
    for (int j = 0; j < k->cut.count; j++) {
      int64_t rows = k->cut_out ? width_of(k, j) : k->n_fixed, cols = k->cut_out ? k->n_fixed : width_of(k, j);
      int64_t base = l->group[g].expert * t->expert_stride + t->offset[j];
      for (int64_t e = 0; e < rows * cols; e++) loop_element(k, l, &l->group[g], dy, x, j, e / cols, e % cols, acc, base + e);
    }
}

static const Shards cuts[] = {
    {.n = 1, .first = 0, .count = 1, .units = 20, .unit = 1},
    {.n = 3, .first = 0, .count = 3, .units = 20, .unit = 1},
    {.n = 4, .first = 1, .count = 2, .units = 5, .unit = 4},
};
enum { N_CASE = 24 * 3 };
static Case case_of(int i) {
  return (Case){
      .type = (GemmType)(i % 3), .exact = i / 3 & 1, .blocked = i / 3 & 2, .cut_out = i / 3 & 4, .n_fixed = 13, .cut = cuts[i / 24]};
}

static const int in_order[N_WINDOW] = {0, 1, 2, 3, 4};

static void gradients_equal_loops(void **state) {
  (void)state;
  for (int i = 0; i < N_CASE; i++) {
    Rig t;
    Layout l;
    open_rig(&t, case_of(i));
    lay_out(&l, &t.k, in_order, N_WINDOW);
    Buffer dy = random_buffer(&t.arena, t.k.type, l.rows.n_row * dy_width(&t.k), 1),
           x = random_buffer(&t.arena, t.k.type, l.rows.n_row * x_width(&t.k), 2);
    char *want = arena_alloc(&t.arena, t.acc.n, 1);
    memcpy(want, t.acc.p, t.acc.n);
    loop_dw(&t, &l, dy.p, x.p, want);
    run_dw(&t, &l.rows, dy.p, x.p, i % 5 == 0 ? THREADS : 1);
    assert_memory_equal(t.acc.p, want, t.acc.n);
    assert_int_equal(t.fault, 0);
    buffer_check(&dy), buffer_check(&x);
    close_rig(&t);
  }
}

/* A block larger than a tile both ways. */
static void tiles_meet_without_gaps(void **state) {
  (void)state;
  for (int type = 0; type < N_GEMM_TYPE; type++) {
    Rig t;
    open_rig(
        &t,
        (Case){
            .type = (GemmType)type, .exact = true, .cut_out = true, .n_fixed = 530, .cut = {.n = 1, .count = 1, .units = 270, .unit = 1}});
    Layout l = {.group = {{.expert = 1, .n_row = 3, .n_leaf = 2}},
                .leaf = {{.row = 0, .n_row = 2, .n_token = 2}, {.row = 2, .n_row = 1, .n_token = 1}}};
    l.rows = (Rows){.n_row = 3, .n_group = 1, .group = l.group, .leaf = l.leaf, .row_bound = 3};
    Buffer dy = random_buffer(&t.arena, t.k.type, 3 * 270, 1), x = random_buffer(&t.arena, t.k.type, 3 * 530, 2);
    char *want = arena_alloc(&t.arena, t.acc.n, 1);
    memcpy(want, t.acc.p, t.acc.n);
    loop_dw(&t, &l, dy.p, x.p, want);
    run_dw(&t, &l.rows, dy.p, x.p, 2);
    assert_memory_equal(t.acc.p, want, t.acc.n);
    close_rig(&t);
  }
}

/* Rows of a window are the same whatever call they are in: values keyed by (window, expert, row in the leaf). */
static Buffer window_rows(Rig *t, const Layout *l, const int *window, int n, bool cut, uint64_t stream) {
  const Case *k = &t->k;
  Buffer b = buffer_new(&t->arena, (size_t)(l->rows.n_row * (cut ? shard_total(&k->cut) : k->n_fixed)) * type_size(k->type));
  int leaf = 0;
  for (int e = 0; e < N_EXPERT; e++)
    for (int i = 0; i < n; i++) {
      if (windows[window[i]].rows[e] == 0) continue;
      const RowLeaf *f = &l->leaf[leaf++];
      for (int64_t r = 0; r < f->n_row; r++)
        for (int j = 0; j < (cut ? k->cut.count : 1); j++) {
          int64_t width = cut ? width_of(k, j) : k->n_fixed, base = cut ? l->rows.n_row * shard_local(&k->cut, k->cut.first + j) : 0;
          uint64_t key = ((((uint64_t)window[i] * N_EXPERT + (uint64_t)e) * 512 + (uint64_t)r) * 8 + (uint64_t)j) * 2 + stream;
          fill_random(k->type, b.p + (size_t)(base + (f->row + r) * width) * type_size(k->type), width, key);
        }
    }
  return b;
}

static void run_windows(Rig *t, const int *window, int n, int threads) {
  Layout l;
  lay_out(&l, &t->k, window, n);
  Buffer dy = window_rows(t, &l, window, n, t->k.cut_out, 0), x = window_rows(t, &l, window, n, !t->k.cut_out, 1);
  run_dw(t, &l.rows, dy.p, x.p, threads);
}

static void order_and_calls_change_no_bit(void **state) {
  (void)state;
  static const int order[][N_WINDOW] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}};
  static const int calls[][N_WINDOW] = {{5}, {1, 1, 1, 1, 1}, {2, 3}, {4, 1}}; /* windows per call */
  for (int i = 0; i < N_CASE; i++) {
    if (!case_of(i).exact || i % 5 != 2) continue;
    Rig t;
    open_rig(&t, case_of(i));
    char *zero = arena_alloc(&t.arena, t.acc.n, 1), *first = arena_alloc(&t.arena, t.acc.n, 1);
    memcpy(zero, t.acc.p, t.acc.n);
    for (int v = 0; v < 12; v++) {
      ArenaMark mark = arena_mark(&t.arena);
      memcpy(t.acc.p, zero, t.acc.n);
      for (int q = 0, at = 0; at < N_WINDOW; at += calls[v % 4][q++]) run_windows(&t, order[v / 4] + at, calls[v % 4][q], 1 + v % 2);
      if (v == 0) memcpy(first, t.acc.p, t.acc.n);
      assert_memory_equal(t.acc.p, first, t.acc.n);
      arena_release(&t.arena, mark);
    }
    assert_memory_not_equal(first, zero, t.acc.n);
    close_rig(&t);
  }
}

/* One leaf of one row: the leaf is the outer product, so a value of dy times x = 1 is the leaf itself. */
static uint64_t fault_of(GemmType type, int64_t n_token, double value, int64_t at, uint64_t *word) {
  Rig t;
  open_rig(&t, (Case){.type = type, .exact = true, .cut_out = true, .n_fixed = 37, .cut = {.n = 1, .count = 1, .units = 21, .unit = 1}});
  Layout l = {.group = {{.expert = 2, .n_row = 1, .n_leaf = 1}}, .leaf = {{.n_row = 1, .n_token = n_token}}};
  l.rows = (Rows){.n_row = 1, .n_group = 1, .group = l.group, .leaf = l.leaf, .row_bound = 1};
  Buffer dy = random_buffer(&t.arena, type, 21, 1), x = random_buffer(&t.arena, type, 37, 2);
  put(type, dy.p, 1, 1);
  put(type, x.p, at, value);
  uint64_t *acc = (uint64_t *)t.acc.p + 2 * t.expert_stride + t.offset[0] + 37 + at, before = *acc;
  run_dw(&t, &l.rows, dy.p, x.p, 1);
  *word = *acc - before;
  uint64_t fault = t.fault;
  close_rig(&t);
  return fault;
}

static void bad_leaves_raise_the_fault(void **state) {
  (void)state;
  static const double bad[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY, 390, -390, 1e30, 128.001 * 3, -128.001 * 3};
  static const double good[] = {128 * 3, -128 * 3, 0, -0.0, 0x1p-40, 0x1.8p-40, -0x1.8p-40, 0x1p-41, 1e-30};
  static const int64_t good_word[] = {384LL << 40, -(384LL << 40), 0, 0, 1, 2, -2, 0, 0};
  static const int64_t place[] = {0, 15, 33, 36};
  for (int type = 0; type < N_GEMM_TYPE; type++)
    for (int p = 0; p < 4; p++) {
      uint64_t word;
      size_t n_bad = sizeof bad / sizeof *bad - (type == GEMM_BF16 ? 2 : 0); /* the last two are good when they are rounded to BF16 */
      for (size_t i = 0; i < n_bad; i++) assert_true(fault_of((GemmType)type, 3, bad[i], place[p], &word) != 0);
      for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(fault_of((GemmType)type, 3, good[i], place[p], &word), 0);
        assert_int_equal(word, (uint64_t)good_word[i]);
      }
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_equal_loops),
      cmocka_unit_test(tiles_meet_without_gaps),
      cmocka_unit_test(order_and_calls_change_no_bit),
      cmocka_unit_test(bad_leaves_raise_the_fault),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
