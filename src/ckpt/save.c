#define _GNU_SOURCE /* fallocate */
/* Saving: metadata first, then space, then data, then the name. Every rank takes every step, and all agree after each, so a failure anywhere ends the
 * save on all ranks with one message and without a trace. */
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

enum { SLICE_BYTES = 512 << 20, HEADER_BYTES = 1024 /* per tensor, with room to spare */, FILE_BYTES = 1 << 20 };

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

static hid_t file_create(const Save *s, Err *e) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_mpio(access, *(MPI_Comm *)world_mpi_comm(s->w), MPI_INFO_NULL);
  H5Pset_coll_metadata_write(access, true);
  H5Pset_all_coll_metadata_ops(access, true);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110); /* headers with checksums, attributes above 64 KiB */
  hid_t file = H5Fcreate(s->part, H5F_ACC_TRUNC, H5P_DEFAULT, access);
  H5Pclose(access);
  if (file < 0) h5_fail(e, s->part, "cannot be created");
  return file;
}

static bool write_headers(const Save *s, hid_t file, uint64_t *end, Err *e) {
  if (!meta_write(file, s->meta, world_library(s->w), set_count_tensors(s->set, s->n_set)))
    return h5_fail(e, s->part, "group /meta cannot be written");
  TRY(tensor_create_all(file, s->set, s->n_set, s->part, end, e));
  return H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0 || h5_fail(e, s->part, "cannot be flushed");
}

/* Every data set has its place by now: makes the disk promise the blocks, so that the data cannot run out of space half-way. */
static bool reserve_space(const Save *s, uint64_t bytes, Err *e) {
  int fd = open(s->part, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return err_set(e, ERR_CKPT, "%s: %s", s->part, strerror(errno));
  int code = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
  close(fd);
  if (code == 0 || code == EOPNOTSUPP || code == ENOSYS) return true; /* file systems without it: check_space has to do */
  return err_set(e, ERR_CKPT, "%s: %" PRIu64 " bytes cannot be reserved: %s", s->part, bytes, strerror(code));
}

/* Walks the slices, of at most SLICE_BYTES, of this rank's pieces of one tensor. */
typedef struct Slices {
  const CkptSet *s;
  const PieceIndex *x;
  int at, end;
  int64_t done;
} Slices;

static bool slice_next(Slices *it, CkptPiece *out) {
  for (; it->at < it->end; it->at++, it->done = 0) {
    *out = it->s->piece[it->x->order[it->at]];
    if (out->n_col == 0 || it->done >= out->n_row) continue;
    size_t row_bytes = (size_t)out->n_col * dtype_size(it->s->tensor[out->tensor].dtype);
    int64_t most = SLICE_BYTES / (int64_t)row_bytes;
    if (most < 1) most = 1;
    if (most > out->n_row - it->done) most = out->n_row - it->done;
    out->row += it->done;
    out->n_row = most;
    out->data = (char *)out->data + (size_t)it->done * row_bytes;
    it->done += most;
    return true;
  }
  return false;
}

static Slices slices_of(const CkptSet *s, const PieceIndex *x, int tensor) {
  return (Slices){.s = s, .x = x, .at = x->start[tensor], .end = x->start[tensor + 1]};
}

static bool slice_write(hid_t d, hid_t transfer, const CkptTensor *t, const CkptPiece *p) {
  hid_t in_file = -1, in_memory = -1;
  char nothing = 0;
  bool ok = tensor_select(d, t, p, &in_file, &in_memory) &&
            H5Dwrite(d, tensor_type(t->dtype), in_memory, in_file, transfer, p ? p->data : &nothing) >= 0;
  if (in_file >= 0) H5Sclose(in_file);
  if (in_memory >= 0) H5Sclose(in_memory);
  return ok;
}

/* As many collective writes as the rank with the most slices needs. A rank that fails goes on taking part: the others wait for it. */
static bool tensor_write(const Save *s, hid_t group, hid_t transfer, const CkptSet *set, const PieceIndex *x, int tensor, uint64_t rounds,
                         Err *e) {
  const CkptTensor *t = &set->tensor[tensor];
  hid_t d = H5Dopen2(group, t->name, H5P_DEFAULT);
  if (d < 0) return h5_fail(e, s->part, "/%s/%s cannot be opened", set->group, t->name);
  Slices it = slices_of(set, x, tensor);
  bool ok = true;
  for (uint64_t k = 0; k < rounds; k++) {
    CkptPiece p;
    bool more = slice_next(&it, &p);
    if (!slice_write(d, transfer, t, more ? &p : NULL)) ok = h5_fail(e, s->part, "/%s/%s cannot be written", set->group, t->name);
  }
  return H5Dclose(d) >= 0 && ok;
}

static bool set_write(const Save *s, hid_t file, const CkptSet *set, Err *e) {
  if (set->same_as) return true;
  ArenaMark mark = arena_mark(s->scratch);
  PieceIndex x = piece_index(s->scratch, set);
  uint64_t *rounds = ARENA_NEW(s->scratch, uint64_t, set->n_tensor);
  for (int t = 0; t < set->n_tensor; t++) {
    Slices it = slices_of(set, &x, t);
    CkptPiece p;
    while (slice_next(&it, &p)) rounds[t]++;
  }
  comm_allreduce_max_u64(s->w, AXES_WORLD, rounds, set->n_tensor);
  hid_t group = H5Gopen2(file, set->group, H5P_DEFAULT), transfer = H5Pcreate(H5P_DATASET_XFER);
  H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
  bool ok = group >= 0;
  if (!ok) h5_fail(e, s->part, "group /%s cannot be opened", set->group);
  for (int t = 0; t < set->n_tensor && group >= 0; t++) ok &= tensor_write(s, group, transfer, set, &x, t, rounds[t], e);
  H5Pclose(transfer);
  if (group >= 0) H5Gclose(group);
  arena_release(s->scratch, mark);
  return ok;
}

static bool file_fill(const Save *s, hid_t file, Err *e) {
  uint64_t end = 0;
  write_headers(s, file, &end, e);
  if (!world_agree(s->w, e)) return false;
  if (world_rank(s->w) == 0) reserve_space(s, end, e);
  if (!world_agree(s->w, e)) return false;
  for (int i = 0; i < s->n_set; i++) set_write(s, file, &s->set[i], e);
  if (!world_agree(s->w, e)) return false;
  if (H5Fflush(file, H5F_SCOPE_GLOBAL) < 0) h5_fail(e, s->part, "cannot be flushed");
  return world_agree(s->w, e);
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

static bool save_run(const Save *s, int keep_last, Err *e) {
  bool first = world_rank(s->w) == 0;
  check_cover(s);
  if (first && make_directories(s->scratch, s->dir, e)) check_space(s, e);
  if (!world_agree(s->w, e)) return false;
  hid_t file = file_create(s, e);
  bool ok = world_agree(s->w, e) && file_fill(s, file, e);
  if (file >= 0 && H5Fclose(file) < 0) h5_fail(e, s->part, "cannot be closed");
  ok = world_agree(s->w, e) && ok;
  if (first && ok && move_into_place(s->part, s->path, s->dir, e) && latest_write(s, e) && keep_last > 0) delete_older(s, keep_last, e);
  if (first && !ok) unlink(s->part);
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
