/* Devices: slabs, ordered and asynchronous copies, events across streams, and that a forgotten wait is seen. */
#include "device/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 16, CHAIN = 12 };

typedef struct Bench {
  Device d;
  unsigned char *dev, *host;
} Bench;

static void bench_open(Bench *b, const char *name) {
  Err e = {0};
  if (!device_open(&b->d, name, "plain", 1, 7, &e)) fail_msg("%s", e.text);
  b->dev = b->d.ops->alloc(&b->d, SPACE_DEVICE, 16 * BYTES);
  b->host = b->d.ops->alloc(&b->d, SPACE_HOST, 16 * BYTES);
  assert_non_null(b->dev);
  assert_non_null(b->host);
}

static void bench_close(Bench *b) {
  b->d.ops->sync(&b->d);
  b->d.ops->release(&b->d, SPACE_DEVICE, b->dev, 16 * BYTES);
  b->d.ops->release(&b->d, SPACE_HOST, b->host, 16 * BYTES);
  device_close(&b->d);
}

/* A long way through buffers 0, 1, ... CHAIN-1 of `slab` on one stream: right only when every copy has been made, in order. */
static void chain_start(Bench *b, StreamId s, unsigned char *slab, int value) {
  memset(slab, value, BYTES);
  for (int i = 1; i < CHAIN; i++) b->d.ops->copy(&b->d, s, slab + i * BYTES, slab + (i - 1) * BYTES, BYTES);
}

static bool all_are(const unsigned char *p, int value) {
  for (int i = 0; i < BYTES; i++)
    if (p[i] != value) return false;
  return true;
}

static void copies_are_ordered(void **state) {
  const char *const names[] = {"cpu", "cpu-lag"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    Bench b;
    bench_open(&b, names[i]);
    chain_start(&b, STREAM_IN, b.dev, 41);
    chain_start(&b, STREAM_OUT, b.host, 42);
    b.d.ops->record(&b.d, STREAM_IN, 3);
    b.d.ops->record(&b.d, STREAM_OUT, 4);
    b.d.ops->wait(&b.d, STREAM_COMPUTE, 4);
    assert_true(all_are(b.host + (CHAIN - 1) * BYTES, 42));
    b.d.ops->wait(&b.d, STREAM_COMPUTE, 3);
    assert_true(all_are(b.dev + (CHAIN - 1) * BYTES, 41));
    bench_close(&b);
  }
}

static void copies_are_asynchronous(void **state) {
  (void)state;
  Bench b;
  bench_open(&b, "cpu-lag");
  chain_start(&b, STREAM_IN, b.dev, 43);
  assert_false(all_are(b.dev + (CHAIN - 1) * BYTES, 43)); /* not there yet: the caller did not wait */
  b.d.ops->sync(&b.d);
  assert_true(all_are(b.dev + (CHAIN - 1) * BYTES, 43));
  b.d.ops->copy(&b.d, STREAM_COMPUTE, b.host, b.dev, BYTES); /* the compute stream is the caller: done on return */
  assert_true(all_are(b.host, 43));
  bench_close(&b);
}

/* host chain on OUT, then its last buffer to the device on IN. */
static bool cross_streams(bool wait) {
  Bench b;
  bench_open(&b, "cpu-lag");
  chain_start(&b, STREAM_OUT, b.host, 44);
  b.d.ops->record(&b.d, STREAM_OUT, 0);
  if (wait) b.d.ops->wait(&b.d, STREAM_IN, 0);
  b.d.ops->copy(&b.d, STREAM_IN, b.dev, b.host + (CHAIN - 1) * BYTES, BYTES);
  b.d.ops->sync(&b.d);
  bool right = all_are(b.dev, 44);
  bench_close(&b);
  return right;
}

static void streams_wait_for_each_other(void **state) {
  (void)state;
  assert_true(cross_streams(true));
}

static void forgotten_wait_is_seen(void **state) {
  (void)state;
  assert_false(cross_streams(false));
}

/* Even when the target happened to hold the right bytes already, what is read before the copy ends is marked. */
static void target_is_marked(void **state) {
  (void)state;
  Bench b;
  bench_open(&b, "cpu-lag");
  memset(b.host, 45, BYTES);
  memset(b.dev, 45, BYTES);
  bool seen = false;
  for (int i = 0; i < 8 && !seen; i++) {
    b.d.ops->copy(&b.d, STREAM_IN, b.dev, b.host, BYTES);
    b.d.ops->record(&b.d, STREAM_IN, 0);
    nanosleep(&(struct timespec){0, 200000}, NULL);
    seen = ((volatile unsigned char *)b.dev)[BYTES - 1] == 0xFF;
    b.d.ops->wait(&b.d, STREAM_COMPUTE, 0);
    assert_true(all_are(b.dev, 45));
  }
  assert_true(seen);
  bench_close(&b);
}

/* A wait is for the latest record, and an earlier wait keeps the record that it was made for. */
static void event_is_recorded_again(void **state) {
  (void)state;
  Bench b;
  bench_open(&b, "cpu-lag");
  b.d.ops->record(&b.d, STREAM_COMPUTE, 9); /* nothing to wait for */
  b.d.ops->wait(&b.d, STREAM_COMPUTE, 9);
  chain_start(&b, STREAM_IN, b.dev, 46);
  b.d.ops->record(&b.d, STREAM_IN, 9);
  b.d.ops->wait(&b.d, STREAM_OUT, 9); /* for the chain, although 9 is recorded again below */
  b.d.ops->copy(&b.d, STREAM_OUT, b.host, b.dev + (CHAIN - 1) * BYTES, BYTES);
  b.d.ops->record(&b.d, STREAM_OUT, 9);
  b.d.ops->wait(&b.d, STREAM_COMPUTE, 9);
  assert_true(all_are(b.host, 46));
  bench_close(&b);
}

static void queue_is_bounded(void **state) {
  (void)state;
  Bench b;
  bench_open(&b, "cpu");
  for (int i = 0; i < 5000; i++) {
    b.d.ops->copy(&b.d, STREAM_OUT, b.host + i, b.dev + i, 1);
    b.d.ops->copy(&b.d, STREAM_IN, b.dev + BYTES + i, b.host + BYTES + i, 1);
  }
  b.d.ops->sync(&b.d);
  memset(b.dev, 47, BYTES);
  for (int i = 0; i < BYTES / 64; i++) b.d.ops->copy(&b.d, STREAM_OUT, b.host + i * 64, b.dev + i * 64, 64);
  b.d.ops->sync(&b.d);
  assert_true(all_are(b.host, 47));
  bench_close(&b);
}

static void slab_is_zeroed_and_aligned(void **state) {
  (void)state;
  Bench b;
  bench_open(&b, "cpu");
  assert_int_equal((uintptr_t)b.dev % 4096, 0);
  assert_int_equal((uintptr_t)b.host % 4096, 0);
  assert_true(all_are(b.dev, 0));
  assert_true(all_are(b.host + 15 * BYTES, 0));
  assert_null(b.d.ops->alloc(&b.d, SPACE_DEVICE, (size_t)1 << 60));
  bench_close(&b);
}

static int n_threads(void) {
  DIR *dir = opendir("/proc/self/task");
  assert_non_null(dir);
  int n = 0;
  for (const struct dirent *f; (f = readdir(dir));) n += f->d_name[0] != '.';
  closedir(dir);
  return n;
}

static void no_thread_is_left(void **state) {
  (void)state;
  int before = n_threads();
  Bench b;
  bench_open(&b, "cpu-lag");
  assert_int_equal(n_threads(), before + 2);
  chain_start(&b, STREAM_IN, b.dev, 48);
  bench_close(&b);
  for (int i = 0; i < 100 && n_threads() != before; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
  assert_int_equal(n_threads(), before);
}

/* ---- what is refused ---- */

static void refused(const char *name, const char *gemm, int threads, const char *says) {
  Device d;
  Err e = {0};
  assert_false(device_open(&d, name, gemm, threads, 0, &e));
  assert_int_equal(e.code, ERR_CONFIG);
  if (!strstr(e.text, says)) fail_msg("'%s' is not in: %s", says, e.text);
}

static void unknown_names_are_refused(void **state) {
  (void)state;
  refused("gpu", "plain", 1, "'gpu' is not a device of this build; there are: cpu, cpu-lag");
  refused("cpu", "mkl", 1, "'mkl'");
  refused("cpu", "plain", 0, "0 threads");
}

static int exit_code_of(void (*body)(Device *d)) {
  pid_t pid = fork();
  if (pid == 0) {
    Device d;
    Err e = {0};
    int null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    if (device_open(&d, "cpu", "plain", 1, 0, &e)) body(&d);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void wait_for_nothing(Device *d) { d->ops->wait(d, STREAM_COMPUTE, 5); }
static void event_out_of_range(Device *d) { d->ops->record(d, STREAM_IN, DEVICE_MAX_EVENT); }
static void kernels_of_i32(Device *d) { (void)device_kernels(d, DT_I32); }
static void nothing_wrong(Device *d) { (void)device_kernels(d, DT_F64); }

static void bugs_die(void **state) {
  (void)state;
  assert_int_equal(exit_code_of(nothing_wrong), 0);
  assert_int_equal(exit_code_of(wait_for_nothing), ERR_BUG);
  assert_int_equal(exit_code_of(event_out_of_range), ERR_BUG);
  assert_int_equal(exit_code_of(kernels_of_i32), ERR_BUG);
}

static void device_tells_what_it_is(void **state) {
  (void)state;
  Bench a, b;
  bench_open(&a, "cpu");
  bench_open(&b, "cpu-lag");
  assert_string_equal(a.d.name, "cpu");
  assert_string_equal(b.d.name, "cpu-lag");
  assert_string_equal(a.d.gemm_name, "plain");
  assert_string_equal(a.d.isa, b.d.isa);
  assert_true(strlen(a.d.isa) >= 5 && strlen(a.d.isa) < sizeof a.d.isa - 1);
  assert_non_null(strstr(a.d.isa, ", built for " ETALON_ARCH));
  assert_ptr_equal(device_kernels(&a.d, DT_F32), &kernels_cpu_f32);
  assert_ptr_equal(device_kernels(&a.d, DT_F64), &kernels_cpu_f64);
  assert_ptr_equal(device_kernels(&a.d, DT_BF16), &kernels_cpu_bf16);
  bench_close(&a);
  bench_close(&b);
}

/* An entry that was forgotten in a table would be called, and end the program, at the first step. */
static void kernel_tables_are_complete(void **state) {
  (void)state;
  typedef void Entry(void);
  static const Kernels *const table[] = {&kernels_cpu_f32, &kernels_cpu_f64, &kernels_cpu_bf16};
  enum { FIRST = offsetof(Kernels, widen), N_ENTRY = (sizeof(Kernels) - FIRST) / sizeof(Entry *) };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    Entry *entry[N_ENTRY];
    memcpy(entry, (const char *)table[i] + FIRST, sizeof entry);
    for (int k = 0; k < N_ENTRY; k++)
      if (!entry[k]) fail_msg("%s: entry %d after widen is missing", table[i]->name, k);
    if (!table[i]->name || !table[i]->built_for || !table[i]->real_size || !table[i]->act_size || !table[i]->wide)
      fail_msg("table %zu: what it is is missing", i);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_are_ordered),
      cmocka_unit_test(copies_are_asynchronous),
      cmocka_unit_test(streams_wait_for_each_other),
      cmocka_unit_test(forgotten_wait_is_seen),
      cmocka_unit_test(target_is_marked),
      cmocka_unit_test(event_is_recorded_again),
      cmocka_unit_test(queue_is_bounded),
      cmocka_unit_test(slab_is_zeroed_and_aligned),
      cmocka_unit_test(no_thread_is_left),
      cmocka_unit_test(unknown_names_are_refused),
      cmocka_unit_test(bugs_die),
      cmocka_unit_test(device_tells_what_it_is),
      cmocka_unit_test(kernel_tables_are_complete),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
