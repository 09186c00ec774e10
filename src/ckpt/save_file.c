#define _GNU_SOURCE /* fallocate */
/* Files and directories of a save: what rank 0 does before the data is written and after it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/h5util.h"
#include "ckpt/save.h"

enum { HEADER_BYTES = 1024 /* per tensor, with room to spare */, FILE_BYTES = 1 << 20 };

/* An upper bound. Deflate makes nothing larger by more than a thousandth and some bytes a chunk; each chunk has an entry in an index. */
static uint64_t bytes_needed(const Save *s) {
  uint64_t n = FILE_BYTES + (s->meta.config ? strlen(s->meta.config) : 0);
  for (int i = 0; i < s->n_set; i++)
    for (int t = 0; t < s->set[i].n_tensor; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      uint64_t data = s->set[i].same_as ? 0 : (uint64_t)x->rows * tensor_row_bytes(x);
      n += HEADER_BYTES + data + (s->policy.compress ? data / 512 + 4096 : 0);
    }
  return n;
}

static bool check_space(const Save *s, Err *e) {
  struct statvfs v;
  if (statvfs(s->dir, &v) != 0) return err_set(e, ERR_CKPT, "%s: free space cannot be asked for: %s", s->dir, strerror(errno));
  uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, need = bytes_needed(s);
  if (room >= need) return true;
  return err_set(e, ERR_CKPT,
                 "%s: a checkpoint of %" PRIu64 " bytes does not fit, %" PRIu64
                 " are free. Free some space, lower checkpoint.keep_last or change checkpoint.dir",
                 s->path, need, room);
}

/* Creates the file or changes its size on disk: blocks that are reserved cannot be missing half-way through the data. */
static bool reserve_space(const Save *s, int flags, uint64_t bytes, Err *e) {
  int fd = open(s->part, O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return err_set(e, ERR_CKPT, "%s: cannot be opened for writing: %s", s->part, strerror(errno));
  int code = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
  close(fd);
  if (code == 0 || code == EOPNOTSUPP || code == ENOSYS) return true; /* file systems without it: check_space has to do */
  return err_set(e, ERR_CKPT, "%s: %" PRIu64 " bytes cannot be reserved: %s", s->part, bytes, strerror(code));
}

static bool write_structure(const Save *s, Err *e) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_obj_track_times(create, false);
  H5Pset_file_locking(access, false, true);
  /* headers with checksums, attributes above 64 KiB; of chunks, indexes with checksums */
  H5Pset_libver_bounds(access, s->policy.compress ? H5F_LIBVER_V110 : H5F_LIBVER_V18, H5F_LIBVER_V110);
  hid_t file = H5Fcreate(s->part, H5F_ACC_TRUNC, create, access);
  H5Pclose(access);
  H5Pclose(create);
  if (file < 0) return h5_fail(e, s->part, "cannot be created");
  bool ok = meta_write(file, &s->meta, world_library(s->w), s->n_tensor) || h5_fail(e, s->part, "group /meta cannot be written");
  ok = ok && tensor_create_all(file, s->set, s->n_set, s->policy.compress, s->part, s->offset, e);
  if (H5Fclose(file) < 0) ok = h5_fail(e, s->part, "cannot be closed");
  return ok;
}

/* Where the last byte of all data sets lies. */
static uint64_t data_end(const Save *s) {
  const uint64_t *offset = s->offset;
  uint64_t end = 0;
  for (int i = 0; i < s->n_set; offset += s->set[i++].n_tensor)
    for (int t = 0; t < s->set[i].n_tensor && !s->set[i].same_as; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      uint64_t last = offset[t] + (uint64_t)x->rows * tensor_row_bytes(x);
      if (last > end) end = last;
    }
  return end;
}

/* The upper bound is reserved first, so that HDF5 never meets a full disk (it cannot close a file then), the exact size once it is known. A compressed
 * file's size is not known before it is written. */
bool save_prepare_file(const Save *s, Err *e) {
  if (fault_fails(s->fault, FAULT_CKPT_RESERVE, NULL)) return err_set(e, ERR_CKPT, "%s: space cannot be reserved: a test said so", s->part);
  TRY(save_make_directory(s->scratch, s->dir, e));
  TRY(check_space(s, e));
  TRY(reserve_space(s, O_CREAT | O_TRUNC, bytes_needed(s), e));
  if (fault_fails(s->fault, FAULT_CKPT_STRUCTURE, NULL)) return err_set(e, ERR_CKPT, "%s: cannot be created: a test said so", s->part);
  TRY(write_structure(s, e));
  return s->policy.compress > 0 || reserve_space(s, 0, data_end(s), e);
}

static bool sync_path(const char *path, int flags, Err *e) {
  int fd = open(path, flags | O_CLOEXEC);
  bool ok = fd >= 0 && fsync(fd) == 0;
  if (!ok) err_set(e, ERR_CKPT, "%s: cannot be synced to disk: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  return ok;
}

static bool move_into_place(const Save *s, const char *from, const char *to, FaultPoint point, Err *e) {
  TRY(sync_path(from, O_RDONLY, e));
  if (fault_fails(s->fault, point, to)) return err_set(e, ERR_CKPT, "%s: cannot be renamed to %s: a test said so", from, to);
  if (rename(from, to) != 0) return err_set(e, ERR_CKPT, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
  return sync_path(s->dir, O_RDONLY | O_DIRECTORY, e);
}

static bool latest_write(const Save *s, Err *e) {
  char *path = arena_printf(s->scratch, "%s/latest", s->dir), *part = arena_printf(s->scratch, "%s/latest.part", s->dir);
  if (fault_fails(s->fault, FAULT_CKPT_LATEST, path)) return err_set(e, ERR_CKPT, "%s: cannot be written: a test said so", part);
  FILE *f = fopen(part, "w");
  if (!f) return err_set(e, ERR_CKPT, "%s: %s", part, strerror(errno));
  bool ok = fprintf(f, "%s\n", s->name) > 0;
  ok = fclose(f) == 0 && ok;
  if (!ok) return err_set(e, ERR_CKPT, "%s: cannot be written: %s", part, strerror(errno));
  return move_into_place(s, part, path, FAULT_CKPT_COUNT, e);
}

static int step_descending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

static bool delete_file(const Save *s, const char *name, const char *what, Err *e) {
  char *path = arena_printf(s->scratch, "%s/%s", s->dir, name);
  bool fails = fault_fails(s->fault, FAULT_CKPT_DELETE, path);
  if (!fails && unlink(path) == 0) return true;
  return err_set(e, ERR_CKPT, "%s: %s cannot be deleted: %s", path, what, fails ? "a test said so" : strerror(errno));
}

/* "step_00000100.h5.part": a save that did not end. */
static bool is_leftover(const char *name) {
  static const char tail[] = ".part";
  char file[32];
  int64_t step;
  size_t n = strlen(name), m = strlen(tail);
  if (n <= m || n - m >= sizeof file || strcmp(name + n - m, tail) != 0) return false;
  memcpy(file, name, n - m);
  file[n - m] = 0;
  return ckpt_parse_name(file, &step);
}

/* Not of the history of the state that was saved: of a run before this one, or of steps that this one went back from. */
static bool goes(const Save *s, int64_t step) {
  if (step <= s->policy.own || step == s->meta.step) return false;
  return s->policy.others == CKPT_OTHERS_GO || (s->policy.others == CKPT_OTHERS_PASSED && step < s->meta.step);
}

static bool delete_checkpoint(const Save *s, int64_t step, const char *what, Err *e) {
  return delete_file(s, arena_printf(s->scratch, "step_%08" PRId64 ".h5", step), what, e);
}

static bool delete_older(const Save *s, Err *e) {
  DIR *d = opendir(s->dir);
  if (!d) return err_set(e, ERR_CKPT, "%s: %s", s->dir, strerror(errno));
  int n = 0, n_file = 0, keep = s->policy.keep_last;
  while (readdir(d)) n_file++;
  rewinddir(d);
  int64_t *step = ARENA_NEW(s->scratch, int64_t, n_file);
  bool ok = true;
  for (struct dirent *f; ok && n < n_file && (f = readdir(d));) {
    if (is_leftover(f->d_name))
      ok = delete_file(s, f->d_name, "what is left of a save that did not end", e);
    else if (ckpt_parse_name(f->d_name, &step[n]) && goes(s, step[n]))
      ok = delete_checkpoint(s, step[n], "a checkpoint that is not of this run", e);
    else if (ckpt_parse_name(f->d_name, &step[n]) && step[n] <= s->meta.step)
      n++;
  }
  closedir(d);
  qsort(step, (size_t)n, sizeof *step, step_descending);
  for (int i = keep > 0 ? keep : n; i < n && ok; i++) ok = delete_checkpoint(s, step[i], "an older checkpoint", e);
  return ok;
}

bool save_finish_file(const Save *s, Err *e) {
  TRY(move_into_place(s, s->part, s->path, FAULT_CKPT_RENAME, e));
  TRY(latest_write(s, e));
  return delete_older(s, e);
}
