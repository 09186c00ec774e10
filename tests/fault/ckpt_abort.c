/* Saves that fail or die half-way, and checkpoints that change the number of processes or the program that reads them. Runs itself under mpirun. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/ckpt_model.h"

enum { LIMIT_BYTES = 12000 /* inside the data */ };

/* From now on this process can write no file beyond LIMIT_BYTES: an error, or its death. */
static void limit_files(bool deadly) {
  struct rlimit limit = {LIMIT_BYTES, LIMIT_BYTES};
  signal(SIGXFSZ, deadly ? SIG_DFL : SIG_IGN);
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

static bool child_save(World *w, Arena *a, const char *how, const char *dir, Err *e) {
  CkptMeta m = model_meta(strcmp(how, "save") == 0 ? 1 : 2);
  if (strcmp(how, "limit-first") == 0 && world_rank(w) == 0) limit_files(false);
  if (strcmp(how, "limit-last") == 0 && world_rank(w) == world_size(w) - 1) limit_files(false);
  if (strcmp(how, "limit-all") == 0) limit_files(false);
  if (strcmp(how, "die") == 0 && world_rank(w) == world_size(w) - 1) limit_files(true);
  return model_save(w, a, dir, &m, world_size(w) + (strcmp(how, "hole") == 0), 3, 0, e); /* hole: one owner is not there */
}

static bool child_load(World *w, Arena *a, const char *dir, Err *e) {
  CkptMeta m;
  char *file = NULL;
  int64_t wrong = -1;
  bool read = ckpt_read_meta(a, dir, &m, &file, e);
  if (!world_agree(w, e) || !read || !model_load(w, a, file, world_size(w), true, 77, &wrong, e)) return false;
  if (world_rank(w) == 0) printf("step %lld\n", (long long)m.step);
  return wrong == 0 || err_set(e, ERR_MISMATCH, "%lld elements are wrong", (long long)wrong);
}

static int child(int argc, char **argv) {
  Arena a;
  World *w;
  Err e = {0};
  const char *how = argv[1], *dir = argv[2];
  arena_open(&a, "test", (size_t)64 << 20);
  if (!world_open(&w, &a, &argc, &argv, &e)) return world_close(w, &e);
  if (strcmp(how, "load") == 0)
    child_load(w, &a, dir, &e);
  else
    child_save(w, &a, how, dir, &e);
  world_agree(w, &e);
  return world_close(w, &e);
}

static const char *self_path;
static char output[1 << 16];

static int shell(const char *command) {
  FILE *p = popen(command, "r");
  if (!p) fail_msg("popen");
  size_t n = fread(output, 1, sizeof output - 1, p);
  output[n] = 0;
  int status = pclose(p);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run(int ranks, const char *how, const char *dir) {
  char command[1024];
  snprintf(command, sizeof command, MPIRUN " -n %d %s %s %s 2>&1", ranks, self_path, how, dir);
  return shell(command);
}

static int count(const char *word) {
  int n = 0;
  for (const char *p = output; (p = strstr(p, word)); p += strlen(word)) n++;
  return n;
}

static void ends_with(int ranks, const char *how, const char *dir, int code, const char *message) {
  int got = run(ranks, how, dir);
  if (got != code || (*message && count(message) != 1) || count("error: ") > 1)
    fail_msg("%s on %d: exit %d, wanted %d and '%s'; output:\n%s", how, ranks, got, code, message, output);
}

static bool exists(const char *dir, const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return access(path, F_OK) == 0;
}

typedef struct Place {
  char dir[64];
} Place;

static int open_place(void **s) {
  static Place p;
  snprintf(p.dir, sizeof p.dir, "%s/etalon-abort-XXXXXX", P_tmpdir);
  *s = &p;
  return mkdtemp(p.dir) == NULL;
}

static int close_place(void **s) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", ((Place *)*s)->dir);
  return system(command);
}

/* The bytes of the file tell neither the layout nor the hour. */
static void test_other_number_of_ranks(void **s) {
  const char *dir = ((Place *)*s)->dir;
  char command[256];
  ends_with(1, "save", dir, 0, "");
  ends_with(4, "load", dir, 0, "step 1\n");
  snprintf(command, sizeof command, "mv %s/step_00000001.h5 %s/of_one", dir, dir);
  assert_int_equal(shell(command), 0);
  ends_with(3, "save", dir, 0, "");
  ends_with(2, "load", dir, 0, "step 1\n");
  snprintf(command, sizeof command, "cmp %s/step_00000001.h5 %s/of_one 2>&1", dir, dir);
  if (shell(command) != 0) fail_msg("%s", output);
}

static void test_other_readers(void **s) {
  const char *dir = ((Place *)*s)->dir;
  char command[512];
  if (shell("h5dump --version 2>&1") != 0 || shell("/usr/bin/python3 -c 'import h5py, numpy' 2>&1") != 0) skip();
  ends_with(2, "save", dir, 0, "");
  snprintf(command, sizeof command, "h5dump -d /moments/m/model.norm.weight %s/step_00000001.h5 2>&1", dir);
  if (shell(command) != 0 || !strstr(output, "SIMPLE { ( 12 ) / ( 12 ) }")) fail_msg("%s", output);
  snprintf(command, sizeof command, "/usr/bin/python3 " SOURCE_DIR "/tests/fault/ckpt_h5py.py %s/step_00000001.h5 2>&1", dir);
  if (shell(command) != 0 || strcmp(output, "24 tensors read by h5py\n") != 0) fail_msg("%s", output);
}

/* A failed save of step 2 leaves step 1 as the one that counts, and nothing else behind. */
static void test_write_fails(void **s) {
  const char *dir = ((Place *)*s)->dir;
  static const struct {
    const char *how, *message;
  } ways[] = {{"limit-first", "cannot be reserved: File too large"},
              {"limit-last", "cannot be written: File too large"},
              {"limit-all", "cannot be reserved: File too large"}};
  ends_with(2, "save", dir, 0, "");
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    ends_with(3, ways[i].how, dir, ERR_CKPT, ways[i].message);
    assert_false(exists(dir, "step_00000002.h5") || exists(dir, "step_00000002.h5.part"));
  }
  ends_with(2, "load", dir, 0, "step 1\n");
}

static void test_death_while_writing(void **s) {
  const char *dir = ((Place *)*s)->dir;
  ends_with(2, "save", dir, 0, "");
  int code = run(3, "die", dir);
  assert_int_not_equal(code, 0);
  assert_false(exists(dir, "step_00000002.h5"));
  ends_with(2, "load", dir, 0, "step 1\n");
  ends_with(2, "again", dir, 0, ""); /* what was left behind does not hinder the next save */
  ends_with(3, "load", dir, 0, "step 2\n");
  assert_false(exists(dir, "step_00000002.h5.part"));
}

static void test_full_disk(void **s) {
  const char *dir = ((Place *)*s)->dir;
  char sub[128];
  snprintf(sub, sizeof sub, "%s/small", dir);
  assert_int_equal(mkdir(sub, 0777), 0);
  if (mount("none", sub, "tmpfs", 0, "size=256k") != 0) skip();
  int code = run(2, "save", sub);
  bool clean = !exists(sub, "step_00000001.h5") && !exists(sub, "step_00000001.h5.part");
  assert_int_equal(umount2(sub, MNT_DETACH), 0);
  if (code != ERR_CKPT || count("does not fit") != 1 || count("error: ") != 1 || !clean) fail_msg("exit %d:\n%s", code, output);
}

static void test_no_directory(void **s) {
  char sub[128];
  snprintf(sub, sizeof sub, "%s/file/below", ((Place *)*s)->dir);
  char *below = strrchr(sub, '/');
  *below = 0;
  FILE *f = fopen(sub, "w");
  fclose(f);
  *below = '/';
  ends_with(2, "save", sub, ERR_CKPT, "the directory cannot be made: Not a directory");
  ends_with(2, "load", sub, ERR_CKPT, "error: ");
}

/* Every rank sees it, so there may be a message of each. */
static void test_hole_is_a_bug(void **s) {
  int code = run(2, "hole", ((Place *)*s)->dir);
  if (code != ERR_BUG || count("the ranks' pieces hold") == 0) fail_msg("exit %d:\n%s", code, output);
}

int main(int argc, char **argv) {
  if (argc > 2) return child(argc, argv);
  self_path = argv[0];
  const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_place, close_place)
      CASE(test_other_number_of_ranks), CASE(test_other_readers), CASE(test_write_fails),
      CASE(test_death_while_writing),   CASE(test_full_disk),     CASE(test_no_directory),
      CASE(test_hole_is_a_bug),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
