/* Saves in the background and compressed saves: the same bytes as a plain save whoever owns what, failures that are heard, damage that is found, and the
 * newest good checkpoint of a directory. */
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

enum { BIG_ROWS = 9000, BIG_COLS = 67 };
typedef struct Fixture {
  World *w;
  Arena a;
  Err bad;
  char *dir;
} Fixture;

/* The tensors of ckpt_model.h and one of several chunks, easy to compress; its rows are dealt in runs of 100 to the owners. */
typedef struct Model {
  CkptSet set[2];
} Model;
static float big_value(int64_t row, int64_t col) { return (float)((row * 3 + col) % 17); }
static Model model_make(Fixture *f, int n_owner) {
  Arena *a = &f->a;
  int self = world_rank(f->w), n = 0;
  Deal *d = deal_model(a, n_owner, self, false, 5);
  deal_fill(d, 0);
  CkptTensor *big = ARENA_NEW(a, CkptTensor, 1);
  *big = (CkptTensor){.name = "big", .dtype = DT_F32, .n_dim = 2, .rows = BIG_ROWS, .cols = BIG_COLS};
  CkptPiece *piece = ARENA_NEW(a, CkptPiece, BIG_ROWS / 100);
  for (int k = 0; k < BIG_ROWS / 100; k++) {
    if (k % n_owner != self) continue;
    float *data = ARENA_NEW(a, float, 100 * BIG_COLS);
    for (int64_t i = 0; i < 100 * BIG_COLS; i++) data[i] = big_value(k * 100 + i / BIG_COLS, i % BIG_COLS);
    piece[n++] = (CkptPiece){.row = k * 100, .n_row = 100, .n_col = BIG_COLS, .data = data};
  }
  return (Model){{{.group = "weights", .tensor = model_list(a, 0), .n_tensor = MODEL_TENSORS, .piece = d->piece, .n_piece = d->n_piece},
                  {.group = "moments/m", .tensor = big, .n_tensor = 1, .piece = piece, .n_piece = n}}};
}

static bool save(Fixture *f, const char *dir, int64_t step, int n_owner, int compress, Err *e) {
  Model m = model_make(f, n_owner);
  CkptMeta meta = model_meta(step);
  return ckpt_save(f->w, &f->a, dir, &meta, m.set, 2, &(CkptPolicy){.compress = compress}, e);
}

/* In the background; polled as a run would, `borders` times at most. The state changes as soon as the copy is taken. */
static bool save_behind(Fixture *f, const char *dir, int64_t step, int n_owner, int borders, Err *e) {
  Model m = model_make(f, n_owner);
  CkptMeta meta = model_meta(step);
  CkptRoom room;
  size_t bytes = 0;
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < m.set[i].n_piece; k++)
      bytes += (size_t)(m.set[i].piece[k].n_row * m.set[i].piece[k].n_col) * dtype_size(m.set[i].tensor[m.set[i].piece[k].tensor].dtype);
  ckpt_room_open(&room, bytes, m.set[0].n_piece + m.set[1].n_piece, MODEL_TENSORS + 1);
  CkptTask *t = ckpt_task_begin(f->w, &room, dir, &meta, m.set, 2, &(CkptPolicy){0});
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < m.set[i].n_piece; k++) {
      const CkptPiece *p = &m.set[i].piece[k];
      memset(p->data, 0x5a, (size_t)(p->n_row * p->n_col) * dtype_size(m.set[i].tensor[p->tensor].dtype));
    }
  bool over = false;
  while (borders-- > 0 && !over) {
    over = ckpt_task_poll(t, false, e);
    usleep(1000);
  }
  while (!over) over = ckpt_task_poll(t, true, e);
  ckpt_room_close(&room);
  return e->code == ERR_NONE;
}

static unsigned char *file_read(Fixture *f, const char *path, size_t *n) {
  FILE *in = fopen(path, "rb");
  if (!in) return *n = 0, NULL;
  fseek(in, 0, SEEK_END);
  *n = (size_t)ftell(in);
  rewind(in);
  unsigned char *p = arena_alloc(&f->a, *n + 1, 1);
  if (fread(p, 1, *n, in) != *n) *n = 0;
  fclose(in);
  return p;
}

static void same_files(Fixture *f, const char *x, const char *y, int line) {
  size_t n, m;
  unsigned char *a = file_read(f, x, &n), *b = file_read(f, y, &m);
  WANT(f, n > 0 && n == m && memcmp(a, b, n) == 0, "line %d: %s (%zu bytes) and %s (%zu bytes)", line, x, n, y, m);
}

static void test_background_has_the_same_bytes(void **s) {
  Fixture *f = *s;
  Err e = {0};
  WANT(f, save(f, arena_printf(&f->a, "%s/now", f->dir), 1, 1, 0, &e), "%s", e.text);
  for (int borders = 0; borders < 1000; borders += 333) {
    WANT(f, save_behind(f, arena_printf(&f->a, "%s/behind", f->dir), 1, 3, borders, &e), "%s", e.text);
    same_files(f, arena_printf(&f->a, "%s/now/step_00000001.h5", f->dir), arena_printf(&f->a, "%s/behind/step_00000001.h5", f->dir),
               __LINE__);
  }
  SETTLE(f);
}

static void test_background_failure_is_heard(void **s) {
  Fixture *f = *s;
  char *dir = arena_printf(&f->a, "%s/deaf", f->dir);
  static const char *const spec[] = {"ckpt.piece(big)@2:3=fail", "ckpt.structure=fail", "ckpt.sync@1=fail", "ckpt.count=fail"};
  for (size_t i = 0; i < sizeof spec / sizeof *spec; i++) {
    Err e = {0};
    fault_arm(world_fault(f->w), spec[i], world_rank(f->w), &e);
    bool ok = save_behind(f, dir, 2, 3, i % 2 ? 100 : 0, &e);
    WANT(f, !ok && e.code == ERR_CKPT && strstr(e.text, "a test said so"), "%s: %s", spec[i], e.text);
    WANT(f, access(arena_printf(&f->a, "%s/step_00000002.h5.part", dir), F_OK) != 0, "%s: a leftover", spec[i]);
  }
  fault_arm(world_fault(f->w), NULL, 0, &f->bad);
  SETTLE(f);
}

static bool load(Fixture *f, const char *path, int n_owner, CkptMeta *meta, char **note, Err *e) {
  char *file;
  Model m = model_make(f, n_owner);
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < m.set[i].n_piece; k++) {
      const CkptPiece *p = &m.set[i].piece[k];
      memset(p->data, 0, (size_t)(p->n_row * p->n_col) * dtype_size(m.set[i].tensor[p->tensor].dtype));
    }
  if (!ckpt_load_newest(f->w, &f->a, path, meta, m.set, 2, &file, note, e)) return false;
  for (int k = 0; k < m.set[1].n_piece; k++) {
    const CkptPiece *p = &m.set[1].piece[k];
    for (int64_t i = 0; i < p->n_row * p->n_col; i++)
      WANT(f, ((float *)p->data)[i] == big_value(p->row + i / BIG_COLS, i % BIG_COLS), "piece %d, element %lld", k, (long long)i);
  }
  return true;
}

static void test_compressed(void **s) {
  Fixture *f = *s;
  Err e = {0};
  CkptMeta meta;
  char *note, *one = arena_printf(&f->a, "%s/z1", f->dir), *three = arena_printf(&f->a, "%s/z3", f->dir);
  WANT(f, save(f, one, 7, 1, 6, &e) && save(f, three, 7, 3, 6, &e), "%s", e.text);
  char *x = arena_printf(&f->a, "%s/step_00000007.h5", one), *y = arena_printf(&f->a, "%s/step_00000007.h5", three);
  same_files(f, x, y, __LINE__);
  size_t n;
  file_read(f, x, &n);
  WANT(f, n > 0 && n < BIG_ROWS * BIG_COLS * sizeof(float) / 4, "%zu bytes", n);
  for (int n_owner = 1; n_owner <= 3; n_owner++)
    WANT(f, load(f, three, n_owner, &meta, &note, &e) && meta.step == 7 && !note, "%s", e.text);
  if (world_rank(f->w) == 0) {
    FILE *out = fopen("/dev/null", "w");
    WANT(f, ckpt_verify(&f->a, x, out, &e), "%s", e.text);
    fclose(out);
  }
  SETTLE(f);
}

/* Changes the byte in the middle, or cuts the file off there: it lies in the data of the large tensor. */
static void damage(Fixture *f, const char *path, int flip, bool cut) {
  comm_barrier(f->w);
  size_t n;
  ArenaMark mark = arena_mark(&f->a);
  unsigned char *p = file_read(f, path, &n);
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) {
    FILE *out = fopen(path, "wb");
    p[n / 2] ^= (unsigned char)flip;
    CHECK(fwrite(p, 1, cut ? n / 2 : n, out) && fclose(out) == 0, "%s", path);
  }
  arena_release(&f->a, mark);
  comm_barrier(f->w);
}

/* Compressed or not: the damaged are passed over and named, one after the other; a file that the user names is not. */
static void newest_good(Fixture *f, int compress) {
  char *dir = arena_printf(&f->a, "%s/newest%d", f->dir, compress), *file[5], *note;
  Err e = {0};
  CkptMeta meta;
  for (int step = 1; step <= 4; step++) {
    WANT(f, save(f, dir, step, 3, compress, &e), "%s", e.text);
    file[step] = arena_printf(&f->a, "%s/step_%08d.h5", dir, step);
  }
  WANT(f, load(f, dir, 2, &meta, &note, &e) && meta.step == 4 && !note, "%s", e.text);
  damage(f, file[4], 0x20, false);
  WANT(f,
       load(f, dir, 2, &meta, &note, &e) && meta.step == 3 && note && strstr(note, "step_00000004.h5") && strstr(note, "step_00000003.h5"),
       "step %lld, %s", (long long)meta.step, note ? note : e.text);
  damage(f, file[3], 0, true);
  WANT(f, load(f, dir, 3, &meta, &note, &e) && meta.step == 2 && strstr(note, "cut short") && !strchr(note, '\n'), "%s", e.text);
  WANT(f, !load(f, file[4], 3, &meta, &note, &e) && e.code == ERR_CKPT && strstr(e.text, file[4]) && !note, "%s", e.text);
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) unlink(arena_printf(&f->a, "%s/latest", dir));
  comm_barrier(f->w);
  e = (Err){0};
  WANT(f, load(f, dir, 3, &meta, &note, &e) && meta.step == 2, "%s", e.text);
  WANT(f, world_rank(f->w) != 0 || (note && strstr(note, "/latest: No such file") && strstr(note, file[2])), "%s", note ? note : "no note");
  damage(f, file[2], 1, false);
  damage(f, file[1], 1, false);
  WANT(f,
       !load(f, dir, 3, &meta, &note, &e) && e.code == ERR_CKPT && strstr(e.text, "no checkpoint in it is whole") &&
           strstr(e.text, file[1]),
       "%s", e.text);
  SETTLE(f);
}
static void test_newest_good(void **s) { newest_good(*s, 0); }
static void test_newest_good_compressed(void **s) { newest_good(*s, 1); }

/* A whole checkpoint of another model is no reason to take an older one. */
static void test_other_model_is_not_passed_over(void **s) {
  Fixture *f = *s;
  char *dir = arena_printf(&f->a, "%s/other", f->dir), *note;
  Err e = {0};
  CkptMeta meta = model_meta(9);
  WANT(f, save(f, dir, 8, 3, 0, &e), "%s", e.text);
  WANT(f, model_save(f->w, &f->a, dir, &meta, 3, 1, 0, &e), "%s", e.text);
  WANT(f, !load(f, dir, 3, &meta, &note, &e) && strstr(e.text, "another model") && strstr(e.text, "step_00000009.h5"), "%s", e.text);
  SETTLE(f);
}

int main(int argc, char **argv) {
  Fixture f = {0};
  Err e = {0};
  arena_open(&f.a, "test", (size_t)1 << 30);
  if (!world_open(&f.w, &f.a, &argc, &argv, &e)) return world_close(f.w, &e);
  f.dir = model_directory(f.w, &f.a, "fire");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_background_has_the_same_bytes),
      cmocka_unit_test(test_background_failure_is_heard),
      cmocka_unit_test(test_compressed),
      cmocka_unit_test(test_newest_good),
      cmocka_unit_test(test_newest_good_compressed),
      cmocka_unit_test(test_other_model_is_not_passed_over),
  };
  void *state = &f;
  struct CMUnitTest with[sizeof tests / sizeof *tests];
  memcpy(with, tests, sizeof tests);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) with[i].initial_state = state;
  int failed = cmocka_run_group_tests(with, NULL, NULL);
  model_remove(f.w, &f.a, f.dir);
  world_close(f.w, &e);
  return failed != 0;
}
