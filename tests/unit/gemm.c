/* GEMM providers: the plain one against a chain of fused multiply-adds bit by bit, the others within rounding; independence of threads,
 * alignment and neighbours.                                                                                                          */
#include "unit/gemm_rig.h"

typedef struct Product {
  GemmShape s;
  Buffer a, b, c;
} Product;

static Product make_product(Arena *arena, GemmShape s) {
  Product p = {.s = s};
  int64_t a = (int64_t)(s.trans_a ? s.K : s.M) * s.lda, b = (int64_t)(s.trans_b ? s.N : s.K) * s.ldb;
  p.a = random_buffer(arena, s.type, a, 1);
  p.b = random_buffer(arena, s.type, b, 2);
  p.c = random_buffer(arena, sum_type(s.type), (int64_t)s.M * s.ldc, 3);
  return p;
}

static void *scratch_of(Arena *arena, Gemm *g, const GemmShape *s) {
  size_t n = gemm_scratch(g, s);
  void *p = arena_alloc(arena, n, 1);
  memset(p, 0xff, n);
  return p;
}

static double a_at(const Product *p, int i, int k) {
  return get(p->s.type, p->a.p, p->s.trans_a ? (int64_t)k * p->s.lda + i : (int64_t)i * p->s.lda + k);
}
static double b_at(const Product *p, int k, int j) {
  return get(p->s.type, p->b.p, p->s.trans_b ? (int64_t)j * p->s.ldb + k : (int64_t)k * p->s.ldb + j);
}

/* before: C as it was; slack 0 asks for equal bits. Elements between the rows of C must be as they were. */
static void check_product(const Product *p, const char *before, double slack) {
  const GemmShape *s = &p->s;
  GemmType sum = sum_type(s->type);
  size_t z = type_size(sum);
  for (int i = 0; i < s->M; i++) {
    for (int j = 0; j < s->N; j++) {
      int64_t at = (int64_t)i * s->ldc + j;
      double want = s->accumulate ? get(sum, before, at) : 0, size = fabs(want);
      for (int k = 0; k < s->K; k++) {
        want = fused(s->type, a_at(p, i, k), b_at(p, k, j), want);
        size += fabs(a_at(p, i, k) * b_at(p, k, j));
      }
      double got = get(sum, p->c.p, at);
      if (slack > 0 ? !(fabs(got - want) <= slack * size) : got != want)
        fail_msg("%d x %d x %d: element %d, %d is %.17g, expected %.17g", s->M, s->N, s->K, i, j, got, want);
    }
    size_t from = ((size_t)i * (size_t)s->ldc + (size_t)s->N) * z;
    assert_memory_equal(p->c.p + from, before + from, (size_t)(s->ldc - s->N) * z);
  }
  buffer_check(&p->a), buffer_check(&p->b), buffer_check(&p->c);
}

static const GemmShape shapes[] = {
    {.M = 1, .N = 1, .K = 1, .lda = 1, .ldb = 1, .ldc = 1},
    {.M = 64, .N = 20, .K = 97, .lda = 97, .ldb = 20, .ldc = 20},
    {.M = 64, .N = 48, .K = 33, .trans_b = true, .lda = 33, .ldb = 33, .ldc = 48},
    {.M = 9, .N = 33, .K = 17, .trans_b = true, .lda = 19, .ldb = 23, .ldc = 40},
    {.M = 13, .N = 31, .K = 16, .trans_a = true, .lda = 15, .ldb = 31, .ldc = 37},
    {.M = 17, .N = 65, .K = 5, .trans_a = true, .trans_b = true, .lda = 17, .ldb = 6, .ldc = 65},
    {.M = 130, .N = 530, .K = 3, .lda = 3, .ldb = 530, .ldc = 530},
    {.M = 5, .N = 7, .K = 520, .lda = 520, .ldb = 9, .ldc = 7},
};

static void run_shapes(const char *provider, bool exact) {
  Arena arena;
  arena_open(&arena, "test", 64 << 20);
  Gemm *g = open_gemm(provider, 1);
  for (int kind = 0; kind < 2 * N_GEMM_TYPE; kind++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      ArenaMark mark = arena_mark(&arena);
      GemmShape s = shapes[i];
      s.type = (GemmType)(kind / 2), s.accumulate = kind & 1;
      Product p = make_product(&arena, s);
      char *before = arena_alloc(&arena, p.c.n, 1);
      memcpy(before, p.c.p, p.c.n);
      gemm_run(g, &s, 0, p.a.p, p.b.p, p.c.p, scratch_of(&arena, g, &s));
      check_product(&p, before, exact || s.type == GEMM_F64 ? 0 : 1e-5);
      arena_release(&arena, mark);
    }
  gemm_close(g);
  arena_close(&arena);
}

static void plain_is_a_chain_of_fused_multiply_adds(void **state) {
  (void)state;
  run_shapes("plain", true);
}

static void auto_is_right_within_rounding(void **state) {
  (void)state;
  run_shapes("auto", false);
}

/* The same product from 1 .. 4 threads at once, built and called under every setting of the number of OpenMP threads. */
static void threads_change_no_bit(void **state) {
  (void)state;
  enum { THREADS = 4, REPEATS = 40 };
  Arena arena;
  arena_open(&arena, "test", 64 << 20);
  int before = omp_get_max_threads();
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    Product p = make_product(&arena, shapes[i]);
    void *scratch[THREADS];
    char *c[THREADS], *first = arena_alloc(&arena, p.c.n, 1);
    for (int t = 0; t < THREADS; t++) c[t] = arena_alloc(&arena, p.c.n, 1);
    for (int threads = 1; threads <= THREADS; threads += threads) {
      omp_set_num_threads(threads);
      Gemm *g = open_gemm("auto", THREADS);
      for (int t = 0; t < THREADS; t++) scratch[t] = scratch_of(&arena, g, &p.s);
      gemm_run(g, &p.s, 0, p.a.p, p.b.p, p.c.p, scratch[0]);
      assert_int_equal(omp_get_max_threads(), threads);
      if (threads == 1) memcpy(first, p.c.p, p.c.n);
      assert_memory_equal(p.c.p, first, p.c.n);
      int bad = 0;
#pragma omp parallel num_threads(threads) reduction(+ : bad)
      {
        int t = omp_get_thread_num();
        for (int r = 0; r < REPEATS; r++) {
          memset(c[t], 0xff, p.c.n);
          gemm_run(g, &p.s, t, p.a.p, p.b.p, c[t], scratch[t]);
          for (int row = 0; row < p.s.M; row++) {
            size_t at = (size_t)row * (size_t)p.s.ldc * sizeof(float);
            bad += memcmp(c[t] + at, first + at, (size_t)p.s.N * sizeof(float)) != 0;
          }
        }
      }
      assert_int_equal(bad, 0);
      gemm_close(g);
    }
  }
  omp_set_num_threads(before);
  arena_close(&arena);
}

static void self_test_accepts_both_providers(void **state) {
  (void)state;
  static const char *const providers[] = {"auto", "plain"};
  static const int sizes[][2] = {{64, 96}, {20, 97}, {7, 33}};
  for (int i = 0; i < 2; i++) {
    Gemm *g = open_gemm(providers[i], 1);
    for (int k = 0; k < 18; k++) {
      char why[256] = "";
      int N = sizes[k / 6][0], K = sizes[k / 6][1];
      GemmShape s = {
          .M = ROW_BLOCK, .N = N, .K = K, .trans_b = k & 1, .lda = K, .ldb = k & 1 ? K : N, .ldc = N, .type = (GemmType)(k / 2 % 3)};
      if (!gemm_self_test(g, &s, why, sizeof why)) fail_msg("%s", why);
    }
    char why[256] = "";
    GemmShape s = {.M = 63, .N = 8, .K = 8, .lda = 8, .ldb = 8, .ldc = 8};
    assert_false(gemm_self_test(g, &s, why, sizeof why));
    assert_non_null(strstr(why, "63"));
    gemm_close(g);
  }
}

static void unknown_provider_is_refused_by_name(void **state) {
  (void)state;
  char why[256] = "";
  assert_null(gemm_open("mkl", 1, why, sizeof why));
  assert_non_null(strstr(why, "mkl"));
  assert_non_null(strstr(why, "plain"));
  Gemm *g = open_gemm("plain", 1);
  assert_string_equal(gemm_info(g).name, "plain");
  assert_true(strlen(gemm_info(g).version) > 0);
  gemm_close(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_is_a_chain_of_fused_multiply_adds),
      cmocka_unit_test(auto_is_right_within_rounding),
      cmocka_unit_test(threads_change_no_bit),
      cmocka_unit_test(self_test_accepts_both_providers),
      cmocka_unit_test(unknown_provider_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
