/* Base layer: random numbers against published vectors and their own properties, hashes, arenas, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/timer.h"

static const RngKey KEY = {.seed = 1234, .stream = 77, .purpose = RNG_TEST};

/* kat_vectors of Random123, philox4x32 with 10 rounds. */
static void philox_gives_published_vectors(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], out[4];
  } kat[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
    uint32_t out[4];
    rng_philox(kat[i].counter, kat[i].key, out);
    assert_memory_equal(out, kat[i].out, sizeof out);
  }
}

static void every_part_of_the_key_matters(void **state) {
  (void)state;
  RngKey seed = KEY, stream = KEY, purpose = KEY;
  seed.seed++, stream.stream++, purpose.purpose = RNG_INIT;
  uint64_t v = rng_u64(KEY, 5);
  assert_int_equal(v, rng_u64(KEY, 5));
  assert_true(v != rng_u64(seed, 5) && v != rng_u64(stream, 5) && v != rng_u64(purpose, 5) && v != rng_u64(KEY, 6));
  assert_true(v != rng_u64(KEY, 5 + (UINT64_C(1) << 32)));
}

static void permutation_is_a_bijection(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4096, 5000};
  static unsigned char seen[5000];
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < sizes[s]; i++) {
      uint64_t to = rng_permute(KEY, sizes[s], i);
      assert_true(to < sizes[s]);
      assert_int_equal(seen[to]++, 0);
    }
  }
  assert_true(rng_permute(KEY, UINT64_MAX, UINT64_MAX - 1) < UINT64_MAX);
}

/* Where element 0 of 5 goes over many streams: uniform, and so are the 6 orders of 3 elements. */
static void permutation_is_uniform(void **state) {
  (void)state;
  int place[5] = {0}, order[27] = {0}, n = 12000, kinds = 0;
  for (int s = 0; s < n; s++) {
    RngKey k = KEY;
    k.stream = (uint64_t)s;
    place[rng_permute(k, 5, 0)]++;
    order[rng_permute(k, 3, 0) * 9 + rng_permute(k, 3, 1) * 3 + rng_permute(k, 3, 2)]++;
  }
  for (int i = 0; i < 5; i++) assert_true(abs(place[i] - n / 5) < 250); /* 5.7 sigma */
  for (int i = 0; i < 27; i++) {
    if (order[i] == 0) continue;
    kinds++;
    assert_true(abs(order[i] - n / 6) < 235);
  }
  assert_int_equal(kinds, 6);
}

static void normals_have_the_right_moments(void **state) {
  (void)state;
  enum { N = 200000 };
  static double x[N];
  double m[5] = {0};
  rng_normals(KEY, 0, N, x);
  for (int i = 0; i < N; i++) {
    double p = 1;
    for (int j = 1; j < 5; j++) m[j] += p *= x[i];
  }
  /* five standard errors: variances of x, x^2, x^3, x^4 are 1, 2, 15, 96 */
  assert_true(fabs(m[1] / N) < 5 * sqrt(1.0 / N));
  assert_true(fabs(m[2] / N - 1) < 5 * sqrt(2.0 / N));
  assert_true(fabs(m[3] / N) < 5 * sqrt(15.0 / N));
  assert_true(fabs(m[4] / N - 3) < 5 * sqrt(96.0 / N));
}

/* Box and Muller's formula with the C library's functions, from the words that the bijection gives. */
static double normal_by_libm(uint64_t index) {
  uint64_t key = rng_key(KEY);
  uint32_t w[4];
  rng_philox((uint32_t[4]){(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)KEY.stream, (uint32_t)(KEY.stream >> 32)},
             (uint32_t[2]){(uint32_t)key, (uint32_t)(key >> 32)}, w);
  uint64_t u = w[0] | (uint64_t)w[1] << 32, v = w[2] | (uint64_t)w[3] << 32;
  return sqrt(-2 * log((double)((u >> 11) + 1) * 0x1p-53)) * cos(2 * M_PI * ((double)(v >> 11) * 0x1p-53));
}
static void normals_are_a_function_of_their_number(void **state) {
  (void)state;
  enum { N = 3000 };
  const uint64_t first = (uint64_t)1 << 33;
  double all[N], part[N];
  rng_normals(KEY, first, N, all);
  for (int64_t i = 0, n = 1; i < N; i += n, n = 2 * n % 701) rng_normals(KEY, first + (uint64_t)i, n < N - i ? n : N - i, part + i);
  assert_memory_equal(all, part, sizeof all);
  for (int i = 0; i < N; i++) assert_true(fabs(all[i] - normal_by_libm(first + (uint64_t)i)) < 1e-14);
}

static void uniforms_fill_their_range(void **state) {
  (void)state;
  enum { N = 100000, BINS = 10 };
  int bin[BINS] = {0}, below[7] = {0};
  for (uint64_t i = 0; i < N; i++) {
    double u = rng_uniform(KEY, i);
    assert_true(u >= 0 && u < 1);
    bin[(int)(u * BINS)]++;
    uint64_t b = rng_below(KEY, i, 7);
    assert_true(b < 7);
    below[b]++;
  }
  for (int i = 0; i < BINS; i++) assert_true(abs(bin[i] - N / BINS) < 500);
  for (int i = 0; i < 7; i++) assert_true(abs(below[i] - N / 7) < 560);
}

/* Vectors of the xxHash specification, seed 0. */
static void hash_gives_published_vectors(void **state) {
  (void)state;
  assert_true(hash_bytes("", 0) == 0xef46db3751d8e999u);
  assert_true(hash_name("a") == 0xd24ec4f1a98c6e5bu);
  assert_true(hash_bytes("abc", 3) == 0x44bc2cf5ad770999u);
}

static uint64_t hash_range(uint64_t tensor, const uint32_t *v, int from, int to) {
  uint64_t sum = 0;
  for (int i = from; i < to; i++) sum += hash_element(tensor, (uint64_t)i, v[i]);
  return sum;
}

static void hash_sum_ignores_cuts_but_not_places(void **state) {
  (void)state;
  uint32_t v[100], swapped[100];
  for (int i = 0; i < 100; i++) v[i] = (uint32_t)rng_u64(KEY, (uint64_t)i);
  uint64_t whole = hash_range(9, v, 0, 100);
  assert_true(whole == hash_range(9, v, 60, 100) + hash_range(9, v, 0, 17) + hash_range(9, v, 17, 60));
  memcpy(swapped, v, sizeof v);
  swapped[3] = v[4], swapped[4] = v[3];
  assert_true(whole != hash_range(9, swapped, 0, 100));
  assert_true(whole != hash_range(8, v, 0, 100));
  v[50] ^= 1;
  assert_true(whole != hash_range(9, v, 0, 100));
}

static bool all_zero(const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i]) return false;
  return true;
}

static void arena_gives_zeroed_aligned_memory(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "test", (size_t)1 << 40); /* far more than the machine has: pages are touched as they are used */
  size_t sizes[] = {1, 63, 64, 65, 5000, (size_t)3 << 20};
  for (int round = 0; round < 2; round++) { /* the second round gets memory that was written and released */
    ArenaMark m = arena_mark(&a);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      char *p = arena_alloc(&a, sizes[i], 1);
      assert_int_equal((uintptr_t)p % 64, 0);
      assert_true(all_zero(p, sizes[i]));
      memset(p, 0xff, sizes[i]);
    }
    arena_release(&a, m);
    assert_int_equal(arena_mark(&a), m);
  }
  ArenaMark small = arena_mark(&a); /* released by clearing, not by giving pages back */
  memset(arena_alloc(&a, 10, 100), 0xff, 1000);
  arena_release(&a, small);
  assert_true(all_zero(arena_alloc(&a, 10, 100), 1000));
  assert_string_equal(arena_printf(&a, "%s-%d", "layer", 3), "layer-3");
  arena_close(&a);
  assert_null(a.base);
}

/* Runs `act` in a child; returns its exit code and what it wrote to stderr. */
static int run_child(void (*act)(void), char *out, size_t cap) {
  int fd[2];
  assert_int_equal(pipe(fd), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(fd[1], STDERR_FILENO);
    act();
    _exit(0);
  }
  close(fd[1]);
  size_t n = 0;
  for (ssize_t got; n < cap - 1 && (got = read(fd[0], out + n, cap - 1 - n)) > 0;) n += (size_t)got;
  out[n] = '\0';
  close(fd[0]);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void stop_42(void *ctx, int code) {
  fprintf(stderr, "hook %s %d\n", (const char *)ctx, code);
  _exit(42);
}
static void stop_dies(void *ctx, int code) {
  (void)ctx, (void)code;
  die("hook.c", 2, "again");
}
static void die_plain(void) { die("here.c", 7, "lost %d", 3); }
static void die_hooked(void) {
  die_set_hook(stop_42, "ctx");
  CHECK(1 + 1 == 2, "arithmetic");
  CHECK(1 + 1 == 3, "arithmetic");
}
static void die_twice(void) {
  die_set_hook(stop_dies, NULL);
  die("here.c", 1, "first");
}
static void die_long(void) {
  static char text[9000];
  memset(text, 'x', sizeof text - 1);
  die("here.c", 1, "%s", text);
}
static void fill_arena(void) {
  Arena a;
  arena_open(&a, "tiny", 4096);
  arena_alloc(&a, 1, 4096);
  arena_alloc(&a, 1, 1);
}
static void overflow_arena(void) {
  Arena a;
  arena_open(&a, "tiny", 4096);
  arena_alloc(&a, SIZE_MAX / 2 + 1, 2) /* wraps to 0 */;
}

static void die_reports_and_ends(void **state) {
  (void)state;
  char out[4096];
  assert_int_equal(run_child(die_plain, out, sizeof out), 70);
  assert_string_equal(out, "fatal: here.c:7: lost 3\n");
  assert_int_equal(run_child(die_hooked, out, sizeof out), 42);
  assert_non_null(strstr(out, "base.c"));
  assert_non_null(strstr(out, ": arithmetic\nhook ctx 70\n"));
  assert_int_equal(run_child(die_twice, out, sizeof out), 70);
  assert_string_equal(out, "fatal: here.c:1: first\nfatal: hook.c:2: again\n");
  assert_int_equal(run_child(die_long, out, sizeof out), 70);
  assert_int_equal(out[strlen(out) - 1], '\n');
}

static void arena_dies_when_full(void **state) {
  (void)state;
  char out[4096];
  assert_int_equal(run_child(fill_arena, out, sizeof out), 70);
  assert_non_null(strstr(out, "arena tiny is full: 1 elements of 1 bytes wanted, 0 of 4096 bytes free\n"));
  assert_int_equal(run_child(overflow_arena, out, sizeof out), 70);
  assert_non_null(strstr(out, "arena tiny is full"));
}

static void err_keeps_the_first_and_wraps(void **state) {
  (void)state;
  Err e = {0};
  assert_false(err_set(&e, ERR_DATA, "file %s", "a"));
  assert_false(err_set(&e, ERR_CKPT, "later"));
  assert_int_equal(e.code, ERR_DATA);
  assert_string_equal(e.text, "file a");
  assert_false(err_wrap(&e, "step %d", 3));
  assert_string_equal(e.text, "step 3: file a");
  static char text[9000];
  memset(text, 'x', sizeof text - 1);
  Err big = {0};
  err_set(&big, ERR_DATA, "%s", text);
  err_wrap(&big, "%s", text);
  assert_int_equal(strlen(big.text), ERR_TEXT - 1);
}

static void dtypes_have_sizes_and_names(void **state) {
  (void)state;
  static const size_t size[N_DTYPE] = {4, 8, 2, 4, 8, 1, 2, 4};
  for (int t = 0; t < N_DTYPE; t++) assert_int_equal(dtype_size((DType)t), size[t]);
  assert_string_equal(dtype_name(DT_BF16), "bf16");
  assert_string_equal(dtype_name(DT_U16), "u16");
}

static void log_speaks_on_one_rank_without_a_bar_in_files(void **state) {
  (void)state;
  FILE *f = tmpfile();
  Log speaker, mute;
  log_open(&speaker, f, true);
  log_open(&mute, f, false);
  log_bar(&speaker, 0.5, "half");
  log_line(&mute, "not me");
  log_line(&speaker, "step %d", 1);
  rewind(f);
  char text[100];
  size_t n = fread(text, 1, sizeof text - 1, f);
  text[n] = '\0';
  assert_string_equal(text, "step 1\n");
  speaker.terminal = true;
  rewind(f);
  log_bar(&speaker, 0.5, "half");
  log_line(&speaker, "end");
  rewind(f);
  n = fread(text, 1, sizeof text - 1, f);
  text[n] = '\0';
  assert_string_equal(text, "\r\033[K[###############...............]  50% half\r\033[Kend\n");
  fclose(f);
}

static void clock_moves_forward(void **state) {
  (void)state;
  double a = timer_now(), b = timer_now();
  assert_true(b >= a);
  assert_true(timer_unix() > 1.6e9);
}

static void numbers_of_every_type(void **state) {
  (void)state;
  static const struct {
    double in, out; /* BF16 has 8 significant bits; ties go to the even one */
  } bf16[] = {{1, 1},
              {1 + 0x1p-8, 1},
              {1 + 0x1.8p-8, 1 + 0x1p-7},
              {1 + 0x3p-8, 1 + 0x1p-6},
              {-0.1, -0.10009765625},
              {0x1p-133, 0x1p-133},
              {3.4e38, (double)INFINITY}};
  uint64_t room[2];
  for (size_t i = 0; i < sizeof bf16 / sizeof *bf16; i++) {
    dtype_put(room, DT_BF16, 1, bf16[i].in);
    assert_true(dtype_get(room, DT_BF16, 1) == bf16[i].out);
  }
  dtype_put(room, DT_BF16, 0, (double)NAN);
  assert_true(isnan(dtype_get(room, DT_BF16, 0)));
  static const DType types[] = {DT_F32, DT_F64, DT_I32};
  for (int i = 0; i < 3; i++) {
    dtype_put(room, types[i], 1, -1e6);
    assert_true(dtype_get(room, types[i], 1) == -1e6);
  }
  dtype_put(room, DT_F32, 0, 0.1);
  assert_true(dtype_get(room, DT_F32, 0) == (double)0.1f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_of_every_type),
      cmocka_unit_test(philox_gives_published_vectors),
      cmocka_unit_test(every_part_of_the_key_matters),
      cmocka_unit_test(permutation_is_a_bijection),
      cmocka_unit_test(permutation_is_uniform),
      cmocka_unit_test(normals_have_the_right_moments),
      cmocka_unit_test(normals_are_a_function_of_their_number),
      cmocka_unit_test(uniforms_fill_their_range),
      cmocka_unit_test(hash_gives_published_vectors),
      cmocka_unit_test(hash_sum_ignores_cuts_but_not_places),
      cmocka_unit_test(arena_gives_zeroed_aligned_memory),
      cmocka_unit_test(arena_dies_when_full),
      cmocka_unit_test(die_reports_and_ends),
      cmocka_unit_test(err_keeps_the_first_and_wraps),
      cmocka_unit_test(dtypes_have_sizes_and_names),
      cmocka_unit_test(log_speaks_on_one_rank_without_a_bar_in_files),
      cmocka_unit_test(clock_moves_forward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
