/* How a world ends: exit codes, one message, nobody left behind. Runs itself under mpirun, once per way to fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "comm/comm.h"

enum { RANKS = 3 };

static int child(int argc, char **argv, const char *how) {
  Arena a;
  World *w;
  Err e = {0};
  arena_open(&a, "test", (size_t)16 << 20);
  if (!world_open(&w, &a, &argc, &argv, &e)) return world_close(w, &e);
  int rank = world_rank(w);
  if (strcmp(how, "user") == 0 && rank > 0) err_set(&e, ERR_DATA, "rank %d: shard 3 is cut short", rank);
  if (strcmp(how, "resume") == 0) err_set(&e, ERR_RESUME, "stopped on request at step 7");
  if (strcmp(how, "bug") == 0 && rank == 2) CHECK(rank < 2, "two and two make %d", 5);
  if (strcmp(how, "set") == 0 && rank == 1) comm_allreduce_u64(w, AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_EP), &(uint64_t){0}, 1);
  if (strcmp(how, "short") == 0) /* rank 0 sends two rows where rank 1 waits for three */
    comm_exchange_rows(w, AXES_WORLD, "abcdef", &(RowSeg){1, 0, 2}, rank == 0, (char[8]){0}, &(RowSeg){0, 0, 3}, rank == 1, 1);
  world_agree(w, &e);
  return world_close(w, &e);
}

static int run(const char *self, const char *how, char *out, size_t size) {
  char command[1024];
  snprintf(command, sizeof command, MPIRUN " -n %d %s %s 2>&1", RANKS, self, how);
  FILE *p = popen(command, "r");
  if (!p) fail_msg("popen");
  size_t n = fread(out, 1, size - 1, p);
  out[n] = 0;
  int status = pclose(p);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int count(const char *text, const char *word) {
  int n = 0;
  for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
  return n;
}

static const char *self_path;

static void ends_with(const char *how, int code, const char *message) {
  static char out[1 << 16];
  int got = run(self_path, how, out, sizeof out);
  if (got != code || count(out, message) != 1) fail_msg("%s: exit %d, output:\n%s", how, got, out);
}

static void test_clean(void **s) {
  (void)s;
  static char out[1 << 16];
  assert_int_equal(run(self_path, "clean", out, sizeof out), 0);
  assert_string_equal(out, "");
}
static void test_user_error(void **s) {
  (void)s;
  ends_with("user", ERR_DATA, "error: rank 1: shard 3 is cut short\n");
}
static void test_resume(void **s) {
  (void)s;
  ends_with("resume", ERR_RESUME, "stopped on request at step 7\n");
}
static void test_bug(void **s) {
  (void)s;
  ends_with("bug", ERR_BUG, "two and two make 5");
}
static void test_unknown_set(void **s) {
  (void)s;
  ends_with("set", ERR_BUG, "has no group");
}
static void test_short_message(void **s) {
  (void)s;
  ends_with("short", ERR_BUG, "sent 2 bytes where 3 were due");
}

int main(int argc, char **argv) {
  if (argc > 1) return child(argc, argv, argv[1]);
  self_path = argv[0];
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_clean),       cmocka_unit_test(test_user_error),
                                     cmocka_unit_test(test_resume),      cmocka_unit_test(test_bug),
                                     cmocka_unit_test(test_unknown_set), cmocka_unit_test(test_short_message)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
