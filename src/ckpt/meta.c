/* The /meta group and the names of checkpoint files. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/h5util.h"

typedef enum { META_I64, META_U64, META_INT, META_TEXT } MetaKind;
typedef struct MetaField {
  const char *name;
  MetaKind kind;
  size_t at;
} MetaField;
static const MetaField meta_fields[] = {
    {"step", META_I64, offsetof(CkptMeta, step)},
    {"consumed_samples", META_I64, offsetof(CkptMeta, consumed_samples)},
    {"seed", META_U64, offsetof(CkptMeta, seed)},
    {"world", META_INT, offsetof(CkptMeta, world)},
    {"config", META_TEXT, offsetof(CkptMeta, config)},
    {"numerics", META_TEXT, offsetof(CkptMeta, numerics)},
    {"code_version", META_TEXT, offsetof(CkptMeta, code_version)},
    {"isa", META_TEXT, offsetof(CkptMeta, isa)},
    {"gemm", META_TEXT, offsetof(CkptMeta, gemm)},
};
enum { N_META_FIELD = sizeof meta_fields / sizeof *meta_fields };

static bool field_write(hid_t group, const MetaField *f, const CkptMeta *m) {
  const void *p = (const char *)m + f->at;
  switch (f->kind) {
  case META_I64:
    return h5_put_i64(group, f->name, *(const int64_t *)p);
  case META_U64:
    return h5_put_u64(group, f->name, *(const uint64_t *)p);
  case META_INT:
    return h5_put_i64(group, f->name, *(const int *)p);
  case META_TEXT:
    return h5_put_text(group, f->name, *(const char *const *)p ? *(const char *const *)p : "");
  }
  return false;
}

bool meta_write(hid_t file, const CkptMeta *m, const char *mpi, int64_t n_tensor) {
  hid_t group = group_create(file, "meta");
  if (group < 0) return false;
  unsigned major, minor, release;
  H5get_libversion(&major, &minor, &release);
  char hdf5[40];
  snprintf(hdf5, sizeof hdf5, "%u.%u.%u", major, minor, release);
  bool ok = h5_put_text(file, "etalon", CKPT_MAGIC) && h5_put_i64(group, "format_version", CKPT_FORMAT_VERSION) &&
            h5_put_i64(group, "n_tensors", n_tensor) && h5_put_text(group, "mpi", mpi) && h5_put_text(group, "hdf5", hdf5);
  for (int i = 0; i < N_META_FIELD; i++) ok = ok && field_write(group, &meta_fields[i], m);
  return H5Gclose(group) >= 0 && ok;
}

static bool field_read(hid_t group, const MetaField *f, Arena *a, CkptMeta *m) {
  void *p = (char *)m + f->at;
  int64_t i = 0;
  switch (f->kind) {
  case META_I64:
    return h5_get_i64(group, f->name, p);
  case META_U64:
    return h5_get_u64(group, f->name, p);
  case META_INT:
    return h5_get_i64(group, f->name, &i) && (*(int *)p = (int)i, true);
  case META_TEXT:
    return (*(const char **)p = h5_get_text(group, f->name, a)) != NULL;
  }
  return false;
}

static bool group_read(hid_t group, const char *path, Arena *a, CkptMeta *m, int64_t *n_tensor, Err *e) {
  int64_t version = 0;
  if (!h5_get_i64(group, "format_version", &version)) return h5_fail(e, path, "attribute /meta format_version cannot be read");
  if (version > CKPT_FORMAT_VERSION || version < 1)
    return err_set(e, ERR_CKPT,
                   "%s: format version %" PRId64 "; this etalon reads versions 1 to %d. Use the etalon that wrote it or a newer one", path,
                   version, CKPT_FORMAT_VERSION);
  if (!h5_get_i64(group, "n_tensors", n_tensor)) return h5_fail(e, path, "attribute /meta n_tensors cannot be read");
  for (int i = 0; i < N_META_FIELD; i++)
    if (!field_read(group, &meta_fields[i], a, m)) return h5_fail(e, path, "attribute /meta %s cannot be read", meta_fields[i].name);
  return true;
}

bool meta_read(hid_t file, const char *path, Arena *a, CkptMeta *m, int64_t *n_tensor, Err *e) {
  ArenaMark mark = arena_mark(a);
  char *magic = h5_get_text(file, "etalon", a);
  bool ours = magic && strcmp(magic, CKPT_MAGIC) == 0;
  arena_release(a, mark);
  H5Eclear2(H5E_DEFAULT);
  if (!ours)
    return err_set(e, ERR_CKPT, "%s: an HDF5 file, but not a checkpoint of etalon (no attribute etalon = \"%s\")", path, CKPT_MAGIC);
  hid_t group = H5Gopen2(file, "meta", H5P_DEFAULT);
  if (group < 0) return h5_fail(e, path, "group /meta cannot be opened");
  bool ok = group_read(group, path, a, m, n_tensor, e);
  H5Gclose(group);
  return ok;
}

bool ckpt_parse_name(const char *name, int64_t *step) {
  static const char head[] = "step_";
  if (strncmp(name, head, strlen(head)) != 0) return false;
  const char *digits = name + strlen(head);
  if (strspn(digits, "0123456789") < 8) return false;
  char *end;
  errno = 0;
  long long n = strtoll(digits, &end, 10);
  *step = n;
  return errno == 0 && strcmp(end, ".h5") == 0;
}

char *ckpt_latest(Arena *a, const char *dir, int64_t *step, Err *e) {
  enum { NAME = 64 };
  char name[NAME] = "";
  char *path = arena_printf(a, "%s/latest", dir);
  FILE *f = fopen(path, "r");
  if (!f) {
    err_set(e, ERR_CKPT, "%s: %s; a checkpoint directory has a file `latest`. Name a step_*.h5 file, or the directory that a run saved to",
            path, strerror(errno));
    return NULL;
  }
  bool read = fgets(name, NAME, f) != NULL;
  int why = ferror(f) ? errno : 0;
  fclose(f);
  if (why) {
    err_set(e, ERR_CKPT, "%s: cannot be read: %s", path, strerror(why));
    return NULL;
  }
  name[strcspn(name, "\n")] = 0;
  if (!read || !ckpt_parse_name(name, step)) {
    err_set(e, ERR_CKPT, "%s: holds '%s', not the name of a checkpoint (step_00000100.h5)", path, name);
    return NULL;
  }
  return arena_printf(a, "%s/%s", dir, name);
}

char *ckpt_resolve(Arena *a, const char *path, Err *e) {
  struct stat st;
  if (stat(path, &st) != 0) {
    err_set(e, ERR_CKPT, "%s: %s", path, strerror(errno));
    return NULL;
  }
  int64_t step;
  char *file = S_ISDIR(st.st_mode) ? ckpt_latest(a, path, &step, e) : arena_printf(a, "%s", path);
  if (file && stat(file, &st) != 0) {
    err_set(e, ERR_CKPT, "%s: %s, though %s/latest names it", file, strerror(errno), path);
    return NULL;
  }
  return file;
}

bool ckpt_read_meta(Arena *a, const char *path, CkptMeta *m, char **file, Err *e) {
  h5_silence();
  *m = (CkptMeta){0};
  *file = ckpt_resolve(a, path, e);
  if (!*file) return false;
  hid_t h = h5_open_read(*file, e);
  if (h < 0) return false;
  int64_t n_tensor;
  bool ok = meta_read(h, *file, a, m, &n_tensor, e);
  H5Fclose(h);
  return ok;
}
