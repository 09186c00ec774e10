/* Saving. Rank 0 writes the file's structure with serial HDF5 and makes the disk promise every byte; then each rank writes its pieces straight to where
 * the data sets lie. No collective I/O: when a collective HDF5 call fails on one rank, the others wait in MPI_File_sync for ever (HDF5 1.10, Open MPI 4.1),
 * and MPI-IO prints messages of its own. Here ranks meet only to agree, so a failure anywhere ends the save on all ranks with one message and no trace. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/h5util.h"
#include "ckpt/save.h"

enum { WRITE_BYTES = 1 << 30 };

static void hash_pieces(const Save *s) {
  uint64_t *hash = s->hash;
  for (int i = 0; i < s->n_set; hash += s->set[i++].n_tensor)
    for (int k = 0; k < s->set[i].n_piece; k++) {
      const CkptPiece *p = &s->set[i].piece[k];
      pulse_beat(world_pulse(s->w));
      hash[p->tensor] += piece_hash(&s->set[i].tensor[p->tensor], p);
    }
}

static void spread_hashes(Save *s) {
  comm_allreduce_u64(s->w, AXES_WORLD, s->hash, s->n_tensor);
  for (int i = 0, at = 0; i < s->n_set; i++)
    for (int t = 0; t < s->set[i].n_tensor; t++) s->set[i].tensor[t].hash = s->hash[at++];
}

static bool write_run(const Save *s, int fd, const char *p, size_t bytes, uint64_t at) {
  while (bytes > 0) {
    pulse_beat(world_pulse(s->w));
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
static bool piece_write(const Save *s, int fd, const CkptTensor *t, const CkptPiece *p, uint64_t offset) {
  size_t elem = dtype_size(t->dtype), run = (size_t)p->n_col * elem;
  uint64_t at = offset + (uint64_t)(p->row * t->cols + p->col) * elem;
  if (p->n_col == t->cols) return write_run(s, fd, p->data, (size_t)p->n_row * run, at);
  for (int64_t r = 0; r < p->n_row; r++)
    if (!write_run(s, fd, (const char *)p->data + (size_t)r * run, run, at + (uint64_t)r * tensor_row_bytes(t))) return false;
  return true;
}

/* A test's fault; the detail costs a line of text, so only when one is armed. */
static bool piece_fails(const Save *s, const CkptSet *set, const CkptTensor *t) {
  char detail[256];
  snprintf(detail, sizeof detail, "%s/%s", set->group, t->name);
  return fault_fails(s->fault, FAULT_CKPT_PIECE, detail);
}

static bool write_pieces(const Save *s, Err *e) {
  const uint64_t *offset = s->offset;
  int fd = open(s->part, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return err_set(e, ERR_CKPT, "%s: cannot be opened for writing: %s", s->part, strerror(errno));
  bool ok = true;
  for (int i = 0; i < s->n_set && ok; offset += s->set[i++].n_tensor)
    for (int k = 0; k < s->set[i].n_piece && ok; k++) {
      const CkptPiece *p = &s->set[i].piece[k];
      const CkptTensor *t = &s->set[i].tensor[p->tensor];
      bool fails = s->fault->point == FAULT_CKPT_PIECE && piece_fails(s, &s->set[i], t);
      ok = !fails && piece_write(s, fd, t, p, offset[p->tensor]);
      if (!ok)
        err_set(e, ERR_CKPT, "%s: /%s/%s cannot be written: %s", s->part, s->set[i].group, t->name,
                fails ? "a test said so" : strerror(errno));
    }
  bool fails = ok && fault_fails(s->fault, FAULT_CKPT_SYNC, NULL);
  if (fails || (ok && fsync(fd) != 0))
    ok = err_set(e, ERR_CKPT, "%s: cannot be synced to disk: %s", s->part, fails ? "a test said so" : strerror(errno));
  if (close(fd) != 0 && ok) ok = err_set(e, ERR_CKPT, "%s: cannot be closed: %s", s->part, strerror(errno));
  return ok;
}

static void check_cover(const Save *s) {
  uint64_t *count = ARENA_NEW(s->scratch, uint64_t, s->n_tensor);
  piece_count_elements(s->w, s->set, s->n_set, count);
  for (int i = 0; i < s->n_set; count += s->set[i++].n_tensor)
    for (int t = 0; t < s->set[i].n_tensor; t++) {
      const CkptTensor *x = &s->set[i].tensor[t];
      uint64_t want = s->set[i].same_as ? 0 : (uint64_t)(x->rows * x->cols);
      CHECK(count[t] == want, "/%s/%s: the ranks' pieces hold %" PRIu64 " elements of %" PRIu64, s->set[i].group, x->name, count[t], want);
    }
}

bool save_part(Save *s, SavePart part, Err *e) {
  bool first = world_rank(s->w) == 0;
  switch (part) {
  case SAVE_HASH:
    return hash_pieces(s), true;
  case SAVE_STRUCTURE:
    return !first || save_prepare_file(s, e);
  case SAVE_DATA:
    return s->policy.compress ? save_write_compressed(s, e) : write_pieces(s, e);
  case SAVE_FINISH:
    return !first || save_finish_file(s, e);
  default:
    return true;
  }
}

bool save_border(Save *s, SavePart part, Err *e) {
  bool ok = world_agree(s->w, e);
  if (ok && part == SAVE_HASH) spread_hashes(s);
  if (ok && part == SAVE_STRUCTURE) comm_bcast(s->w, s->offset, (size_t)s->n_tensor * sizeof *s->offset, 0);
  if (!ok && part >= SAVE_STRUCTURE && world_rank(s->w) == 0) unlink(s->part);
  if (!ok) comm_barrier(s->w); /* whoever returns finds it gone */
  return ok;
}

static const char *copy_text(Arena *a, const char *text) { return text ? arena_printf(a, "%s", text) : NULL; }

/* The save may outlive the caller's lists. */
static void copy_lists(Save *s, const CkptMeta *m, const CkptSet *set) {
  Arena *a = s->scratch;
  s->meta = *m;
  s->meta.config = copy_text(a, m->config), s->meta.numerics = copy_text(a, m->numerics);
  s->meta.code_version = copy_text(a, m->code_version), s->meta.isa = copy_text(a, m->isa), s->meta.gemm = copy_text(a, m->gemm);
  s->set = ARENA_NEW(a, CkptSet, s->n_set);
  for (int i = 0; i < s->n_set; i++) {
    s->set[i] = set[i];
    s->set[i].tensor = ARENA_NEW(a, CkptTensor, set[i].n_tensor);
    memcpy(s->set[i].tensor, set[i].tensor, (size_t)set[i].n_tensor * sizeof *set[i].tensor);
    for (int t = 0; t < set[i].n_tensor; t++) s->set[i].tensor[t].name = copy_text(a, set[i].tensor[t].name);
  }
}

void save_open(Save *s, World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, const CkptPolicy *p) {
  h5_silence();
  *s = (Save){.w = w, .fault = world_fault(w), .scratch = scratch, .dir = copy_text(scratch, dir), .n_set = n_set, .policy = *p};
  copy_lists(s, m, set);
  s->n_tensor = set_count_tensors(set, n_set);
  s->hash = ARENA_NEW(scratch, uint64_t, 2 * s->n_tensor);
  s->offset = s->hash + s->n_tensor;
  s->name = arena_printf(scratch, "step_%08" PRId64 ".h5", m->step);
  s->path = ckpt_path(scratch, dir, m->step);
  s->part = arena_printf(scratch, "%s.part", s->path);
  check_cover(s);
}

bool ckpt_save(World *w, Arena *scratch, const char *dir, const CkptMeta *m, const CkptSet *set, int n_set, const CkptPolicy *p, Err *e) {
  ArenaMark mark = arena_mark(scratch);
  Save s;
  save_open(&s, w, scratch, dir, m, set, n_set, p);
  bool ok = true;
  for (SavePart part = 0; part < N_SAVE_PART && ok; part++) {
    save_part(&s, part, e);
    ok = save_border(&s, part, e);
  }
  arena_release(scratch, mark);
  return ok;
}
