#include "ckpt/h5util.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { REASON_TEXT = 300 };

void h5_silence(void) { H5Eset_auto2(H5E_DEFAULT, NULL, NULL); }

/* The walk goes upwards from where it happened: the first entry is the cause. */
static herr_t reason_take(unsigned n, const H5E_error2_t *entry, void *text) {
  (void)n;
  snprintf(text, REASON_TEXT, "%s", entry->desc ? entry->desc : "");
  for (char *c = text; *c; c++)
    if (*c == '\n') *c = ' '; /* times that it prints end so */
  return 1;
}

bool h5_fail(Err *e, const char *path, const char *fmt, ...) {
  char what[REASON_TEXT], reason[REASON_TEXT] = "";
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, reason_take, reason);
  H5Eclear2(H5E_DEFAULT);
  return err_set(e, ERR_CKPT, "%s: %s%s%s", path, what, reason[0] ? ": HDF5 says: " : "", reason);
}

hid_t h5_open_read(const char *path, Err *e) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS), file = -1;
  H5Pset_file_locking(access, false, true); /* locks fail on some network file systems, and nobody writes a finished checkpoint */
  htri_t is_hdf5 = H5Fis_hdf5(path);
  if (is_hdf5 == 0)
    err_set(e, ERR_CKPT, "%s: not a checkpoint: it has no HDF5 signature", path);
  else if ((file = H5Fopen(path, H5F_ACC_RDONLY, access)) < 0)
    h5_fail(e, path, "cannot be opened (cut short, damaged or not readable)");
  H5Pclose(access);
  return file;
}

hid_t h5_open_write(const char *path, Err *e) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110);
  hid_t file = H5Fopen(path, H5F_ACC_RDWR, access);
  H5Pclose(access);
  if (file < 0) h5_fail(e, path, "cannot be opened for writing");
  return file;
}

static bool attribute_put(hid_t at, const char *name, hid_t type, const void *value) {
  hid_t space = H5Screate(H5S_SCALAR), attr = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  bool ok = attr >= 0 && H5Awrite(attr, type, value) >= 0;
  if (attr >= 0) H5Aclose(attr);
  H5Sclose(space);
  return ok;
}

bool h5_put_text(hid_t at, const char *name, const char *text) {
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, strlen(text) + 1);
  H5Tset_cset(type, H5T_CSET_UTF8);
  bool ok = attribute_put(at, name, type, text);
  H5Tclose(type);
  return ok;
}

bool h5_put_i64(hid_t at, const char *name, int64_t value) { return attribute_put(at, name, H5T_STD_I64LE, &value); }
bool h5_put_u64(hid_t at, const char *name, uint64_t value) { return attribute_put(at, name, H5T_STD_U64LE, &value); }

/* An attribute that is there, is a scalar, and of the class that is expected. */
static hid_t attribute_open(hid_t at, const char *name, H5T_class_t class, hid_t *type) {
  hid_t attr = H5Aopen(at, name, H5P_DEFAULT);
  if (attr < 0) return -1;
  hid_t space = H5Aget_space(attr);
  *type = H5Aget_type(attr);
  bool ok = *type >= 0 && space >= 0 && H5Sget_simple_extent_npoints(space) == 1 && H5Tget_class(*type) == class;
  if (space >= 0) H5Sclose(space);
  if (ok) return attr;
  if (*type >= 0) H5Tclose(*type);
  H5Aclose(attr);
  return -1;
}

char *h5_get_text(hid_t at, const char *name, Arena *a) {
  hid_t type, attr = attribute_open(at, name, H5T_STRING, &type);
  if (attr < 0) return NULL;
  size_t n = H5Tget_size(type);
  char *text = NULL;
  if (H5Tis_variable_str(type) == 0 && n < a->cap - a->used) {
    text = arena_alloc(a, n + 1, 1);
    if (H5Aread(attr, type, text) < 0) text = NULL;
  }
  H5Tclose(type);
  H5Aclose(attr);
  return text;
}

static bool integer_get(hid_t at, const char *name, hid_t memory, void *value) {
  hid_t type, attr = attribute_open(at, name, H5T_INTEGER, &type);
  if (attr < 0) return false;
  bool ok = H5Aread(attr, memory, value) >= 0;
  H5Tclose(type);
  H5Aclose(attr);
  return ok;
}

bool h5_get_i64(hid_t at, const char *name, int64_t *value) { return integer_get(at, name, H5T_NATIVE_INT64, value); }
bool h5_get_u64(hid_t at, const char *name, uint64_t *value) { return integer_get(at, name, H5T_NATIVE_UINT64, value); }
