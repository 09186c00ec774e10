#define _GNU_SOURCE /* fallocate */
/* Saving. Rank 0 writes the file's structure with serial HDF5 and makes the disk promise every byte; then each rank writes its pieces straight to where
 * the data sets lie. No collective I/O: when a collective HDF5 call fails on one rank, the others wait in MPI_File_sync for ever (HDF5 1.10, Open MPI 4.1),
 * and MPI-IO prints messages of its own. Here ranks meet only to agree, so a failure anywhere ends the save on all ranks with one message and no trace. */
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

enum { HEADER_BYTES = 1024 /* per tensor, with room to spare */, FILE_BYTES = 1 << 20, WRITE_BYTES = 1 << 30 };

typedef struct Save {
  World *w;
  Arena *scratch;
  const char *dir;
  const CkptMeta *meta;
  const CkptSet *set;
  int n_set;
  char *name, *path, *part;
} Save;

static bool make_directories(Arena *a, const char *dir, Err *e) {
  char *path = arena_printf(a, "%s", dir);
  for (char *p = path + 1;; p++) {
    if (*p && *p != '/') continue;
    char was = *p;
    *p = 0;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
      return err_set(e, ERR_CKPT, "%s: the directory cannot be made: %s", path, strerror(errno));
    if (!was) break;
    *p = was;
  }
  struct stat st;
  if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) return err_set(e, ERR_CKPT, "%s: not a directory", dir);
  return true;
}

static uint64_t bytes_needed(const Save *s) {
  uint64_t n = FILE_BYTES + (s->meta->config ? strlen(s->meta->config) : 0);
  for (int i = 0; i < s->n_set; i++)
    for (int t = 0; t < s->set[i].n_tensor; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      n += HEADER_BYTES + (s->set[i].same_as ? 0 : (uint64_t)x->rows * tensor_row_bytes(x));
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

static bool write_structure(const Save *s, uint64_t *offset, Err *e) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_obj_track_times(create, false);
  H5Pset_file_locking(access, false, true);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110); /* headers with checksums, attributes above 64 KiB */
  hid_t file = H5Fcreate(s->part, H5F_ACC_TRUNC, create, access);
  H5Pclose(access);
  H5Pclose(create);
  if (file < 0) return h5_fail(e, s->part, "cannot be created");
  bool ok = meta_write(file, s->meta, world_library(s->w), set_count_tensors(s->set, s->n_set)) ||
            h5_fail(e, s->part, "group /meta cannot be written");
  ok = ok && tensor_create_all(file, s->set, s->n_set, s->part, offset, e);
  if (H5Fclose(file) < 0) ok = h5_fail(e, s->part, "cannot be closed");
  return ok;
}

/* Where the last byte of all data sets lies. */
static uint64_t data_end(const Save *s, const uint64_t *offset) {
  uint64_t end = 0;
  for (int i = 0; i < s->n_set; offset += s->set[i++].n_tensor)
    for (int t = 0; t < s->set[i].n_tensor && !s->set[i].same_as; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      uint64_t last = offset[t] + (uint64_t)x->rows * tensor_row_bytes(x);
      if (last > end) end = last;
    }
  return end;
}

/* The upper bound is reserved first, so that HDF5 never meets a full disk (it cannot close a file then), the exact size once it is known. */
static bool prepare_file(const Save *s, uint64_t *offset, Err *e) {
  TRY(make_directories(s->scratch, s->dir, e));
  TRY(check_space(s, e));
  TRY(reserve_space(s, O_CREAT | O_TRUNC, bytes_needed(s), e));
  TRY(write_structure(s, offset, e));
  return reserve_space(s, 0, data_end(s, offset), e);
}

static bool write_run(int fd, const char *p, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    ssize_t n = pwrite(fd, p, bytes < WRITE_BYTES ? bytes : WRITE_BYTES, (off_t)at);
    if (n < 0 && errno != EINTR) return false;
    if (n <= 0) continue;
    p += n;
    at += (uint64_t)n;
    bytes -= (size_t)n;
  }
  return true;
}

/* A piece of whole rows is one run in the file, any other a run per row. */
static bool piece_write(int fd, const CkptTensor *t, const CkptPiece *p, uint64_t offset) {
  size_t elem = dtype_size(t->dtype), run = (size_t)p->n_col * elem;
  uint64_t at = offset + (uint64_t)(p->row * t->cols + p->col) * elem;
  if (p->n_col == t->cols) return write_run(fd, p->data, (size_t)p->n_row * run, at);
  for (int64_t r = 0; r < p->n_row; r++)
    if (!write_run(fd, (const char *)p->data + (size_t)r * run, run, at + (uint64_t)r * tensor_row_bytes(t))) return false;
  return true;
}

static bool write_pieces(const Save *s, const uint64_t *offset, Err *e) {
  int fd = open(s->part, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return err_set(e, ERR_CKPT, "%s: cannot be opened for writing: %s", s->part, strerror(errno));
  bool ok = true;
  for (int i = 0; i < s->n_set && ok; offset += s->set[i++].n_tensor)
    for (int k = 0; k < s->set[i].n_piece && ok; k++) {
      const CkptPiece *p = &s->set[i].piece[k];
      const CkptTensor *t = &s->set[i].tensor[p->tensor];
      ok = piece_write(fd, t, p, offset[p->tensor]) ||
           err_set(e, ERR_CKPT, "%s: /%s/%s cannot be written: %s", s->part, s->set[i].group, t->name, strerror(errno));
    }
  if (ok && fsync(fd) != 0) ok = err_set(e, ERR_CKPT, "%s: cannot be synced to disk: %s", s->part, strerror(errno));
  if (close(fd) != 0 && ok) ok = err_set(e, ERR_CKPT, "%s: cannot be closed: %s", s->part, strerror(errno));
  return ok;
}

static bool sync_path(const char *path, int flags, Err *e) {
  int fd = open(path, flags | O_CLOEXEC);
  bool ok = fd >= 0 && fsync(fd) == 0;
  if (!ok) err_set(e, ERR_CKPT, "%s: cannot be synced to disk: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  return ok;
}

static bool move_into_place(const char *from, const char *to, const char *dir, Err *e) {
  TRY(sync_path(from, O_RDONLY, e));
  if (rename(from, to) != 0) return err_set(e, ERR_CKPT, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
  return sync_path(dir, O_RDONLY | O_DIRECTORY, e);
}

static bool latest_write(const Save *s, Err *e) {
  char *path = arena_printf(s->scratch, "%s/latest", s->dir), *part = arena_printf(s->scratch, "%s/latest.part", s->dir);
  FILE *f = fopen(part, "w");
  if (!f) return err_set(e, ERR_CKPT, "%s: %s", part, strerror(errno));
  bool ok = fprintf(f, "%s\n", s->name) > 0;
  ok = fclose(f) == 0 && ok;
  if (!ok) return err_set(e, ERR_CKPT, "%s: cannot be written: %s", part, strerror(errno));
  return move_into_place(part, path, s->dir, e);
}

static int step_descending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

/* Steps after this one stay: they belong to a run that went further before this one was resumed. */
static bool delete_older(const Save *s, int keep_last, Err *e) {
  DIR *d = opendir(s->dir);
  if (!d) return err_set(e, ERR_CKPT, "%s: %s", s->dir, strerror(errno));
  int n = 0, n_file = 0;
  while (readdir(d)) n_file++;
  rewinddir(d);
  int64_t *step = ARENA_NEW(s->scratch, int64_t, n_file);
  for (struct dirent *f; n < n_file && (f = readdir(d));)
    if (ckpt_parse_name(f->d_name, &step[n]) && step[n] <= s->meta->step) n++;
  closedir(d);
  qsort(step, (size_t)n, sizeof *step, step_descending);
  for (int i = keep_last; i < n; i++) {
    char *path = arena_printf(s->scratch, "%s/step_%08" PRId64 ".h5", s->dir, step[i]);
    if (unlink(path) != 0) return err_set(e, ERR_CKPT, "%s: older checkpoint cannot be deleted: %s", path, strerror(errno));
  }
  return true;
}

static void check_cover(const Save *s) {
  uint64_t *count = ARENA_NEW(s->scratch, uint64_t, set_count_tensors(s->set, s->n_set));
  piece_count_elements(s->w, s->set, s->n_set, count);
  for (int i = 0; i < s->n_set; count += s->set[i++].n_tensor)
    for (int t = 0; t < s->set[i].n_tensor; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      uint64_t want = s->set[i].same_as ? 0 : (uint64_t)(x->rows * x->cols);
      CHECK(count[t] == want, "/%s/%s: the ranks' pieces hold %" PRIu64 " elements of %" PRIu64, s->set[i].group, x->name, count[t], want);
    }
}

static bool finish_file(const Save *s, int keep_last, Err *e) {
  TRY(move_into_place(s->part, s->path, s->dir, e));
  TRY(latest_write(s, e));
  return keep_last == 0 || delete_older(s, keep_last, e);
}

static bool save_run(const Save *s, int keep_last, Err *e) {
  bool first = world_rank(s->w) == 0;
  int n_tensor = set_count_tensors(s->set, s->n_set);
  uint64_t *offset = ARENA_NEW(s->scratch, uint64_t, n_tensor);
  check_cover(s);
  if (first) prepare_file(s, offset, e);
  bool ok = world_agree(s->w, e);
  if (ok) {
    comm_bcast(s->w, offset, (size_t)n_tensor * sizeof *offset, 0);
    write_pieces(s, offset, e);
    ok = world_agree(s->w, e);
  }
  if (first && !(ok && finish_file(s, keep_last, e))) unlink(s->part);
  return world_agree(s->w, e);
}

bool ckpt_save(World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, int keep_last, Err *e) {
  h5_silence();
  ArenaMark mark = arena_mark(scratch);
  Save s = {.w = w, .scratch = scratch, .dir = dir, .meta = m, .set = set, .n_set = n_set};
  s.name = arena_printf(scratch, "step_%08" PRId64 ".h5", m->step);
  s.path = arena_printf(scratch, "%s/%s", dir, s.name);
  s.part = arena_printf(scratch, "%s.part", s.path);
  bool ok = save_run(&s, keep_last, e);
  arena_release(scratch, mark);
  return ok;
}
