/* Damaged, foreign and unfitting checkpoints: refused by all ranks with one message that says what is wrong, never loaded, never a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/h5util.h"
#include "unit/ckpt_model.h"
#include "unit/collective.h"

typedef struct Fixture {
  World *w;
  Arena a;
  Err bad;
  char *dir, *good, *copy;
  unsigned char *bytes; /* of the good file */
  size_t n;
  int64_t offset[2][MODEL_TENSORS]; /* of each tensor's data: weights, moments */
} Fixture;

static void write_copy(Fixture *f, const unsigned char *bytes, size_t n) {
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) {
    FILE *out = fopen(f->copy, "wb");
    CHECK(out && fwrite(bytes, 1, n, out) == n && fclose(out) == 0, "%s", f->copy);
  }
  comm_barrier(f->w);
}

/* Loading f->copy fails everywhere, with a message that holds both words. */
static void refused(Fixture *f, const char *a, const char *b, int line) {
  ArenaMark mark = arena_mark(&f->a);
  Err e = {0};
  int64_t wrong;
  bool loaded = model_load(f->w, &f->a, f->copy, 3, false, 11, &wrong, &e);
  WANT(f, !loaded && e.code == ERR_CKPT && strstr(e.text, f->copy) && strstr(e.text, a) && strstr(e.text, b),
       "line %d: wanted '%s' and '%s', got: %s", line, a, b, e.text);
  arena_release(&f->a, mark);
}
#define REFUSED(f, a, b) refused(f, a, b, __LINE__)

static void test_flipped_bit_names_its_tensor(void **s) {
  Fixture *f = *s;
  for (int group = 0; group < 2; group++)
    for (int t = 0; t < MODEL_TENSORS; t++) {
      int64_t size = model_tensors[t].rows * (int64_t)tensor_row_bytes(&model_tensors[t]),
              at = f->offset[group][t] + (t % 2 ? size - 1 : size / 2);
      f->bytes[at] ^= 0x10;
      write_copy(f, f->bytes, f->n);
      f->bytes[at] ^= 0x10;
      char *name = arena_printf(&f->a, "/%s/%s is damaged", group ? "moments/m" : "weights", model_tensors[t].name);
      REFUSED(f, name, group ? "1 of 24" : "2 of 24"); /* masters are the same data */
      if (world_rank(f->w) == 0) {
        char *text = NULL;
        size_t n = 0;
        FILE *out = open_memstream(&text, &n);
        Err e = {0};
        bool whole = ckpt_verify(&f->a, f->copy, out, &e);
        fclose(out);
        WANT(f, !whole && e.code == ERR_CKPT && strstr(e.text, model_tensors[t].name) && strstr(text, model_tensors[t].name), "%s%s",
             e.text, text);
        free(text);
      }
    }
  SETTLE(f);
}

static void test_cut_short(void **s) {
  Fixture *f = *s;
  size_t cut[] = {0, 1, 7, 8, 48, 100, 1000, f->n / 3, f->n / 2, f->n - 4096, f->n - 1};
  for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
    write_copy(f, f->bytes, cut[i]);
    REFUSED(f, "", cut[i] < 8 ? "no HDF5 signature" : "cut short");
  }
  SETTLE(f);
}

/* Any byte of the file may flip: an error or, in gaps that hold nothing, none; tensors never pass. */
static void test_any_byte(void **s) {
  Fixture *f = *s;
  enum { STEP = 41 };
  if (world_rank(f->w) == 0) {
    FILE *out = fopen("/dev/null", "w");
    int n_bad = 0, n_try = 0;
    for (size_t at = 3; at < f->n; at += STEP, n_try++) {
      ArenaMark mark = arena_mark(&f->a);
      f->bytes[at] ^= 0xff;
      FILE *copy = fopen(f->copy, "wb");
      CHECK(copy && fwrite(f->bytes, 1, f->n, copy) == f->n && fclose(copy) == 0, "%s", f->copy);
      f->bytes[at] ^= 0xff;
      Err e = {0};
      bool whole = ckpt_verify(&f->a, f->copy, out, &e);
      n_bad += !whole;
      WANT(f, whole == (e.code == ERR_NONE) && (whole || e.code == ERR_CKPT), "byte %zu: %s", at, e.text);
      for (int k = 0; k < 2 * MODEL_TENSORS; k++) {
        int64_t from = f->offset[k / MODEL_TENSORS][k % MODEL_TENSORS],
                size = model_tensors[k % MODEL_TENSORS].rows * (int64_t)tensor_row_bytes(&model_tensors[k % MODEL_TENSORS]);
        WANT(f, !whole || (int64_t)at < from || (int64_t)at >= from + size, "byte %zu of tensor %d passed", at, k);
      }
      arena_release(&f->a, mark);
    }
    fclose(out);
    WANT(f, n_bad > n_try / 2, "%d of %d flips found", n_bad, n_try);
  }
  SETTLE(f);
}

static void test_not_ours(void **s) {
  Fixture *f = *s;
  static const unsigned char text[] = "step: 100\nthis is no checkpoint at all\n";
  write_copy(f, text, sizeof text);
  REFUSED(f, "not a checkpoint", "");
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) H5Fclose(H5Fcreate(f->copy, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  comm_barrier(f->w);
  REFUSED(f, "not a checkpoint of etalon", "");
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) unlink(f->copy);
  comm_barrier(f->w);
  REFUSED(f, "", "No such file");
  SETTLE(f);
}

typedef void Edit(hid_t file);
static void edited(Fixture *f, Edit *edit, const char *a, const char *b, int line) {
  write_copy(f, f->bytes, f->n);
  if (world_rank(f->w) == 0) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, false, true);
    hid_t file = H5Fopen(f->copy, H5F_ACC_RDWR, access);
    CHECK(file >= 0, "%s", f->copy);
    edit(file);
    H5Fclose(file);
    H5Pclose(access);
  }
  comm_barrier(f->w);
  refused(f, a, b, line);
}
#define EDITED(f, edit, a, b) edited(f, edit, a, b, __LINE__)

static void set_i64(hid_t file, const char *object, const char *name, int64_t value) {
  hid_t o = H5Oopen(file, object, H5P_DEFAULT), a = H5Aopen(o, name, H5P_DEFAULT);
  CHECK(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, &value) >= 0, "%s %s", object, name);
  H5Aclose(a);
  H5Oclose(o);
}

static void edit_version(hid_t file) { set_i64(file, "meta", "format_version", 2); }
static void edit_version_zero(hid_t file) { set_i64(file, "meta", "format_version", 0); }
static void edit_hash(hid_t file) { set_i64(file, "moments/m/half", "hash", 5); }
static void edit_missing(hid_t file) { CHECK(H5Ldelete(file, "weights/tall", H5P_DEFAULT) >= 0, "delete"); }
static void edit_no_meta(hid_t file) { CHECK(H5Adelete_by_name(file, "meta", "config", H5P_DEFAULT) >= 0, "delete"); }
static void edit_no_group(hid_t file) { CHECK(H5Ldelete(file, "moments", H5P_DEFAULT) >= 0, "delete"); }
static void edit_extra(hid_t file) {
  CHECK(H5Lcreate_hard(file, "weights/half", file, "moments/m/more", H5P_DEFAULT, H5P_DEFAULT) >= 0, "link");
}
static void edit_renamed(hid_t file) { CHECK(H5Lmove(file, "weights/half", file, "weights/fifth", H5P_DEFAULT, H5P_DEFAULT) >= 0, "move"); }

static void replace(hid_t file, const char *name, int rank, const hsize_t *dims, hid_t type) {
  CHECK(H5Ldelete(file, name, H5P_DEFAULT) >= 0, "delete");
  hid_t space = H5Screate_simple(rank, dims, NULL), d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  CHECK(h5_put_u64(d, "hash", 1) && h5_put_text(d, "dtype", type == H5T_IEEE_F64LE ? "f64" : "f32"), "attributes");
  H5Dclose(d);
  H5Sclose(space);
}
static void edit_shape(hid_t file) { replace(file, "weights/model.embed_tokens.weight", 2, (hsize_t[]){12, 37}, H5T_IEEE_F32LE); }
static void edit_dims(hid_t file) { replace(file, "weights/model.norm.weight", 2, (hsize_t[]){1, 12}, H5T_IEEE_F32LE); }
static void edit_type(hid_t file) { replace(file, "weights/model.norm.weight", 1, (hsize_t[]){12}, H5T_IEEE_F64LE); }
static void edit_lying_type(hid_t file) { replace(file, "weights/model.norm.weight", 1, (hsize_t[]){12}, H5T_STD_I32LE); }

static void test_edited(void **s) {
  Fixture *f = *s;
  EDITED(f, edit_version, "format version 2", "versions 1 to 1");
  EDITED(f, edit_version_zero, "format version 0", "1 to 1");
  EDITED(f, edit_hash, "/moments/m/half is damaged", "1 of 24");
  EDITED(f, edit_missing, "/weights/tall is missing", "another model");
  EDITED(f, edit_no_meta, "/meta config", "cannot be read");
  EDITED(f, edit_no_group, "/moments/m", "cannot be opened");
  EDITED(f, edit_extra, "/moments/m/more is in the file but not in the model", "");
  EDITED(f, edit_renamed, "/weights/half is missing", "");
  EDITED(f, edit_shape, "/weights/model.embed_tokens.weight", "[12, 37]");
  EDITED(f, edit_dims, "/weights/model.norm.weight has 2 dims", "needs 1");
  EDITED(f, edit_type, "/weights/model.norm.weight is of type f64", "needs f32");
  EDITED(f, edit_lying_type, "/weights/model.norm.weight cannot be read", "");
  SETTLE(f);
}

/* The number of tensors is stored, so that a lost one shows without the model at hand. */
static void test_verify_counts(void **s) {
  Fixture *f = *s;
  EDITED(f, edit_missing, "is missing", "");
  Err e = {0};
  if (world_rank(f->w) == 0) {
    FILE *out = fopen("/dev/null", "w");
    WANT(f, !ckpt_verify(&f->a, f->copy, out, &e) && strstr(e.text, "23 tensors are there, 24 were saved"), "%s", e.text);
    fclose(out);
  }
  SETTLE(f);
}

static void latest_refused(Fixture *f, const char *text, const char *want) {
  comm_barrier(f->w);
  char *path = arena_printf(&f->a, "%s/latest", f->dir), *file;
  if (world_rank(f->w) == 0) {
    FILE *out = fopen(path, "w");
    CHECK(out && fputs(text, out) >= 0 && fclose(out) == 0, "%s", path);
  }
  comm_barrier(f->w);
  CkptMeta m;
  Err e = {0};
  WANT(f, !ckpt_read_meta(&f->a, f->dir, &m, &file, &e) && e.code == ERR_CKPT && strstr(e.text, want), "%s", e.text);
}

static void test_latest(void **s) {
  Fixture *f = *s;
  latest_refused(f, "step_00000099.h5\n", "names it");
  latest_refused(f, "", "not the name of a checkpoint");
  latest_refused(f, "../../etc/passwd\n", "not the name of a checkpoint");
  latest_refused(f, "step_00000007.h5.part\n", "not the name of a checkpoint");
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) unlink(arena_printf(&f->a, "%s/latest", f->dir));
  comm_barrier(f->w);
  CkptMeta m;
  char *file;
  Err e = {0};
  WANT(f, !ckpt_read_meta(&f->a, f->dir, &m, &file, &e) && strstr(e.text, "has a file `latest`"), "%s", e.text);
  comm_barrier(f->w);
  char *path = arena_printf(&f->a, "%s/latest", f->dir);
  if (world_rank(f->w) == 0) CHECK(mkdir(path, 0700) == 0, "%s", path);
  comm_barrier(f->w);
  e = (Err){0};
  WANT(f, !ckpt_read_meta(&f->a, f->dir, &m, &file, &e) && strstr(e.text, "cannot be read: Is a directory"), "%s", e.text);
  comm_barrier(f->w);
  if (world_rank(f->w) == 0) rmdir(path);
  SETTLE(f);
}

static void prepare(Fixture *f) {
  Err e = {0};
  CkptMeta m = model_meta(7);
  f->dir = model_directory(f->w, &f->a, "damage");
  f->good = arena_printf(&f->a, "%s/step_00000007.h5", f->dir);
  f->copy = arena_printf(&f->a, "%s/copy.h5", f->dir);
  CHECK(model_save(f->w, &f->a, f->dir, &m, 3, 1, 0, &e), "%s", e.text);
  int64_t wrong = -1;
  CHECK(model_load(f->w, &f->a, f->good, 3, false, 11, &wrong, &e) && wrong == 0, "%s", e.text);
  FILE *in = fopen(f->good, "rb");
  CHECK(in && fseek(in, 0, SEEK_END) == 0, "%s", f->good);
  f->n = (size_t)ftell(in);
  f->bytes = arena_alloc(&f->a, f->n, 1);
  rewind(in);
  CHECK(fread(f->bytes, 1, f->n, in) == f->n, "%s", f->good);
  fclose(in);
  hid_t file = h5_open_read(f->good, &e);
  for (int k = 0; k < 2 * MODEL_TENSORS; k++) {
    const CkptTensor *t = &model_tensors[k % MODEL_TENSORS];
    hid_t d = tensor_open(file, f->good, k < MODEL_TENSORS ? "weights" : "moments/m", t, &e);
    CHECK(d >= 0, "%s", e.text);
    f->offset[k / MODEL_TENSORS][k % MODEL_TENSORS] = (int64_t)H5Dget_offset(d);
    H5Dclose(d);
  }
  H5Fclose(file);
}

static Fixture fixture; /* opened in main: MPI starts once a process */
static int give(void **s) { return *s = &fixture, 0; }

int main(int argc, char **argv) {
  Err e = {0};
  arena_open(&fixture.a, "test", (size_t)1 << 30);
  if (!world_open(&fixture.w, &fixture.a, &argc, &argv, &e)) return world_close(fixture.w, &e);
  prepare(&fixture);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flipped_bit_names_its_tensor),
      cmocka_unit_test(test_cut_short),
      cmocka_unit_test(test_any_byte),
      cmocka_unit_test(test_not_ours),
      cmocka_unit_test(test_edited),
      cmocka_unit_test(test_latest),
      cmocka_unit_test(test_verify_counts),
  };
  int failed = cmocka_run_group_tests(tests, give, NULL);
  model_remove(fixture.w, &fixture.a, fixture.dir);
  world_close(fixture.w, &e);
  return failed != 0;
}
