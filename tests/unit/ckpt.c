/* Checkpoints: what one deal of pieces saves, any other loads, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/h5util.h"
#include "unit/ckpt_model.h"
#include "unit/collective.h"

typedef struct Fixture {
  World *w;
  Arena a;
  Err bad;
  const char *dir;
} Fixture;

static char *read_file(Arena *a, const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  *n = (size_t)ftell(f);
  rewind(f);
  char *p = arena_alloc(a, *n + 1, 1);
  CHECK(fread(p, 1, *n, f) == *n, "%s", path);
  fclose(f);
  return p;
}

/* Saved by 1, 2, 3 or 4 of the ranks, loaded by 1 .. 4; ranks beyond hold nothing. The files are the same to the last byte. */
static void test_any_deal_to_any_deal(void **s) {
  Fixture *f = *s;
  char *first = NULL;
  size_t n_first = 0;
  for (int save = 1; save <= 4; save++) {
    ArenaMark mark = arena_mark(&f->a);
    Err e = {0};
    WANT(f, model_save(f->w, &f->a, f->dir, &(CkptMeta){.step = 7, .seed = 1, .config = "x"}, save, (uint64_t)save * 100, 0, &e), "%s",
         e.text);
    char *path = arena_printf(&f->a, "%s/step_00000007.h5", f->dir);
    for (int load = 1; load <= 4; load++) {
      int64_t wrong = -1;
      Err le = {0};
      WANT(f, model_load(f->w, &f->a, path, load, load % 2 == 0, 5000 + (uint64_t)(10 * save + load), &wrong, &le), "%s", le.text);
      WANT(f, wrong == 0, "%d -> %d owners: %lld elements", save, load, (long long)wrong);
    }
    arena_release(&f->a, mark);
    size_t n = 0;
    char *bytes = read_file(&f->a, path = arena_printf(&f->a, "%s/step_00000007.h5", f->dir), &n);
    if (!first) first = bytes, n_first = n;
    WANT(f, first && bytes && n == n_first && memcmp(bytes, first, n) == 0, "file of %d owners", save);
    comm_barrier(f->w);
  }
  SETTLE(f);
}

static void test_meta_and_latest(void **s) {
  Fixture *f = *s;
  enum { LONG = 200000 };
  Err e = {0};
  CkptMeta m = model_meta(12), got;
  char *config = arena_alloc(&f->a, LONG + 1, 1), *deep = arena_printf(&f->a, "%s/not/yet/there", f->dir), *file;
  for (int i = 0; i < LONG; i++) config[i] = (char)('a' + i % 26);
  m.config = config;
  WANT(f, model_save(f->w, &f->a, deep, &m, 2, 1, 0, &e), "%s", e.text);
  WANT(f, ckpt_read_meta(&f->a, deep, &got, &file, &e), "%s", e.text);
  WANT(f, strcmp(file, arena_printf(&f->a, "%s/step_00000012.h5", deep)) == 0, "%s", file);
  WANT(f, got.step == 12 && got.consumed_samples == 96 && got.seed == UINT64_MAX - 5 && got.world == 4, "numbers");
  WANT(f, strcmp(got.config, config) == 0, "config of %zu", strlen(got.config));
  WANT(f,
       strcmp(got.numerics, m.numerics) == 0 && strcmp(got.code_version, m.code_version) == 0 && strcmp(got.isa, m.isa) == 0 &&
           strcmp(got.gemm, m.gemm) == 0,
       "texts");
  WANT(f, access(arena_printf(&f->a, "%s.part", file), F_OK) != 0, "part left");
  SETTLE(f);
}

static bool exists(Fixture *f, const char *dir, int step) { return access(arena_printf(&f->a, "%s/step_%08d.h5", dir, step), F_OK) == 0; }

/* Older ones go, later ones of another branch stay; the same step may be saved again. */
static void test_keep_last(void **s) {
  Fixture *f = *s;
  char *dir = arena_printf(&f->a, "%s/keep", f->dir), *file;
  static const int steps[] = {5, 100000000, 10, 15, 15, 20};
  CkptMeta m;
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    Err e = {0};
    m = model_meta(steps[i]);
    m.consumed_samples = (int64_t)i;
    WANT(f, model_save(f->w, &f->a, dir, &m, 3, i, i < 3 ? 0 : 2, &e), "%s", e.text);
    CkptMeta got;
    WANT(f, ckpt_read_meta(&f->a, dir, &got, &file, &e) && got.step == steps[i] && got.consumed_samples == (int64_t)i, "%s", e.text);
  }
  WANT(f, !exists(f, dir, 5) && !exists(f, dir, 10) && exists(f, dir, 15) && exists(f, dir, 20) && exists(f, dir, 100000000), "files");
  SETTLE(f);
}

static void test_hash_in_pieces(void **s) {
  Fixture *f = *s;
  Err e = {0};
  hid_t file = h5_open_read(arena_printf(&f->a, "%s/step_00000007.h5", f->dir), &e);
  WANT(f, file >= 0, "%s", e.text);
  static const size_t room[] = {8, 24, 40, 100, 1 << 16};
  char buf[1 << 16];
  for (int t = 0; t < MODEL_TENSORS; t++)
    for (size_t k = 0; k < sizeof room / sizeof *room; k++) {
      hid_t d = tensor_open(file, "file", "weights", &model_tensors[t], &e);
      uint64_t sum = 0;
      int64_t cut = model_tensors[t].rows / 3;
      WANT(f, tensor_hash_rows(d, &model_tensors[t], cut, model_tensors[t].rows, buf, room[k], &sum), "tensor %d", t);
      WANT(f, tensor_hash_rows(d, &model_tensors[t], 0, cut, buf, room[k], &sum), "tensor %d", t);
      WANT(f, sum == model_hash(t, 0), "tensor %d, %zu bytes at a time", t, room[k]);
      H5Dclose(d);
    }
  H5Fclose(file);
  SETTLE(f);
}

typedef bool Verb(Arena *a, const char *path, FILE *out, Err *e);
static char *verb_output(Fixture *f, Verb *verb, const char *path, Err *e) {
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  verb(&f->a, path, out, e);
  fclose(out);
  char *copy = arena_printf(&f->a, "%s", text);
  free(text);
  return copy;
}

static void test_list_show_verify(void **s) {
  Fixture *f = *s;
  char *dir = arena_printf(&f->a, "%s/keep", f->dir);
  Err e = {0};
  if (world_rank(f->w) == 0) { /* these verbs are for one process */
    FILE *half = fopen(arena_printf(&f->a, "%s/step_00000030.h5.part", dir), "w"),
         *junk = fopen(arena_printf(&f->a, "%s/step_00000016.h5", dir), "w");
    fputs("junk", junk);
    fclose(half);
    fclose(junk);
    char *list = verb_output(f, ckpt_list, dir, &e);
    char *l15 = strstr(list, "step_00000015.h5"), *l16 = strstr(list, "step_00000016.h5"), *l20 = strstr(list, "step_00000020.h5"),
         *l30 = strstr(list, "step_00000030");
    WANT(f, l15 && l16 > l15 && l20 > l16 && l30 > l20, "%s", list);
    WANT(f,
         strstr(l16, "BROKEN") < l20 && strstr(l20, "latest") < l30 && strstr(l30, "UNFINISHED") &&
             !strstr(strstr(l20, "latest") + 6, "latest"),
         "%s", list);
    WANT(f, strstr(list, "canonical fp32 window 64") && strstr(list, "4 ranks"), "%s", list);
    char *show = verb_output(f, ckpt_show, dir, &e), *line = arena_printf(&f->a, "%016llx", (unsigned long long)model_hash(0, 0));
    WANT(f, strstr(show, "weights/model.embed_tokens.weight") && strstr(show, "[37, 12]") && strstr(show, "[12]") && strstr(show, line),
         "%s", show);
    WANT(f, strstr(show, "24 tensors") && strstr(show, "hidden_size: 12") && strstr(show, "bf16") && strstr(show, "masters/half"), "%s",
         show);
    char *verify = verb_output(f, ckpt_verify, dir, &e);
    WANT(f, strstr(verify, "all hashes right") && e.code == ERR_NONE, "%s%s", verify, e.text);
  }
  SETTLE(f);
}

static Fixture fixture; /* opened in main: MPI starts once a process */
static int give(void **s) { return *s = &fixture, 0; }

int main(int argc, char **argv) {
  Err e = {0};
  arena_open(&fixture.a, "test", (size_t)1 << 30);
  if (!world_open(&fixture.w, &fixture.a, &argc, &argv, &e)) return world_close(fixture.w, &e);
  fixture.dir = model_directory(fixture.w, &fixture.a, "ckpt");
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_deal_to_any_deal), cmocka_unit_test(test_meta_and_latest),
                                     cmocka_unit_test(test_keep_last), cmocka_unit_test(test_hash_in_pieces),
                                     cmocka_unit_test(test_list_show_verify)};
  int failed = cmocka_run_group_tests(tests, give, NULL);
  model_remove(fixture.w, &fixture.a, fixture.dir);
  world_close(fixture.w, &e);
  return failed != 0;
}
