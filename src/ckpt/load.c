/* Loading. Each rank opens the file by itself (posix reads), so a failing read on one rank holds up nobody; ranks meet only to agree and to add hashes. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/h5util.h"

/* Sums over the ranks, one entry per tensor of all sets. `stored` comes from the owner of the tensor's first row. */
typedef struct Hashes {
  uint64_t *computed, *stored;
  int n;
} Hashes;

typedef struct Load {
  World *w;
  Arena *scratch;
  const char *path;
  hid_t file;
  CkptSet *set;
  int n_set;
  Hashes hash;
  void *buf; /* CKPT_CHUNK_BYTES */
} Load;

/* All rows of all tensors in a line, dealt by elements: a row belongs to the rank that its first element falls to. */
typedef struct RowShare {
  int64_t from, to;
} RowShare;
static RowShare row_share(int64_t first, const CkptTensor *t, int64_t begin, int64_t end) {
  int64_t from = begin > first ? (begin - first + t->cols - 1) / t->cols : 0, to = end > first ? (end - first + t->cols - 1) / t->cols : 0;
  if (to > t->rows) to = t->rows;
  return (RowShare){from < to ? from : to, to};
}

static bool tensor_verify(Load *l, const CkptSet *s, const CkptTensor *t, RowShare r, int at, Err *e) {
  pulse_beat(world_pulse(l->w));
  hid_t d = tensor_open(l->file, l->path, s->group, t, e);
  if (d < 0) return false;
  bool ok = tensor_hash_rows(d, t, r.from, r.to, l->buf, CKPT_CHUNK_BYTES, &l->hash.computed[at]);
  if (ok && r.from == 0) ok = h5_get_u64(d, "hash", &l->hash.stored[at]);
  if (!ok) h5_fail(e, l->path, "/%s/%s cannot be read", s->group, t->name);
  H5Dclose(d);
  return ok;
}

static bool share_verify(Load *l, Err *e) {
  int64_t total = 0, first = 0;
  for (int i = 0; i < l->n_set; i++)
    for (int t = 0; t < l->set[i].n_tensor; t++) total += l->set[i].tensor[t].rows * l->set[i].tensor[t].cols;
  int p = world_size(l->w), rank = world_rank(l->w), at = 0;
  int64_t begin = share_begin(total, p, rank), end = share_begin(total, p, rank + 1);
  for (int i = 0; i < l->n_set; i++)
    for (int k = 0; k < l->set[i].n_tensor; k++, at++) {
      const CkptTensor *t = &l->set[i].tensor[k];
      RowShare r = row_share(first, t, begin, end);
      if (r.from < r.to) TRY(tensor_verify(l, &l->set[i], t, r, at, e));
      first += t->rows * t->cols;
    }
  return true;
}

static bool hashes_compare(Load *l, Err *e) {
  int at = 0, n_bad = 0;
  const char *group = "", *name = "";
  for (int i = 0; i < l->n_set; i++)
    for (int k = 0; k < l->set[i].n_tensor; k++, at++) {
      l->set[i].tensor[k].hash = l->hash.stored[at];
      if (l->hash.stored[at] == l->hash.computed[at]) continue;
      if (n_bad++ == 0) group = l->set[i].group, name = l->set[i].tensor[k].name;
    }
  if (n_bad == 0) return true;
  return err_set(e, ERR_CKPT,
                 "%s: /%s/%s is damaged: its content does not have the hash that was stored with it (%d of %d tensors). Resume from "
                 "another checkpoint",
                 l->path, group, name, n_bad, l->hash.n);
}

static bool name_is_known(const Load *l, const char *group, const char *name) {
  for (int i = 0; i < l->n_set; i++) {
    if (strcmp(l->set[i].group, group) != 0) continue;
    for (int t = 0; t < l->set[i].n_tensor; t++)
      if (strcmp(l->set[i].tensor[t].name, name) == 0) return true;
  }
  return false;
}

typedef struct Extra {
  const Load *l;
  const char *group;
  Err *e;
} Extra;
static herr_t extra_find(hid_t g, const char *name, const H5L_info_t *info, void *ctx) {
  (void)g, (void)info;
  const Extra *x = ctx;
  if (name_is_known(x->l, x->group, name)) return 0;
  err_set(x->e, ERR_CKPT, "%s: /%s/%s is in the file but not in the model here. The checkpoint is of another model", x->l->path, x->group,
          name);
  return 1;
}

/* Missing tensors show when their owners open them; here only the number of links is compared, and names when it is too high. */
static bool group_has_no_extra(const Load *l, const char *group, Err *e) {
  uint64_t known = 0;
  for (int i = 0; i < l->n_set; i++)
    if (strcmp(l->set[i].group, group) == 0) known += (uint64_t)l->set[i].n_tensor;
  hid_t g = H5Gopen2(l->file, group, H5P_DEFAULT);
  H5G_info_t info = {0};
  bool read = g >= 0 && H5Gget_info(g, &info) >= 0;
  if (!read)
    h5_fail(e, l->path, "group /%s cannot be opened", group);
  else if (info.nlinks > known)
    H5Literate(g, H5_INDEX_NAME, H5_ITER_INC, NULL, extra_find, &(Extra){l, group, e});
  if (g >= 0) H5Gclose(g);
  return e->code == ERR_NONE;
}

static void check_cover(const Load *l) {
  ArenaMark mark = arena_mark(l->scratch);
  uint64_t *count = ARENA_NEW(l->scratch, uint64_t, l->hash.n);
  piece_count_elements(l->w, l->set, l->n_set, count);
  for (int i = 0; i < l->n_set; count += l->set[i++].n_tensor)
    for (int t = 0; t < l->set[i].n_tensor; t++) {
      const CkptTensor *x = &l->set[i].tensor[t];
      CHECK(count[t] >= (uint64_t)(x->rows * x->cols), "/%s/%s: the ranks' pieces hold %" PRIu64 " elements of %" PRId64, l->set[i].group,
            x->name, count[t], x->rows * x->cols);
    }
  arena_release(l->scratch, mark);
}

static bool set_fill(Load *l, const CkptSet *s, Err *e) {
  PieceIndex x = piece_index(l->scratch, s);
  bool ok = true;
  for (int t = 0; t < s->n_tensor && ok; t++) {
    if (x.start[t] == x.start[t + 1]) continue;
    hid_t d = tensor_open(l->file, l->path, s->group, &s->tensor[t], e);
    ok = d >= 0;
    for (int k = x.start[t]; k < x.start[t + 1] && ok; k++) {
      const CkptPiece *p = &s->piece[x.order[k]];
      pulse_beat(world_pulse(l->w));
      if (p->n_row > 0 && p->n_col > 0)
        ok = tensor_read(d, &s->tensor[t], p) || h5_fail(e, l->path, "/%s/%s cannot be read", s->group, s->tensor[t].name);
    }
    if (d >= 0) H5Dclose(d);
  }
  return ok;
}

static bool file_open(Load *l, Err *e) {
  CkptMeta m;
  int64_t n_tensor;
  ArenaMark mark = arena_mark(l->scratch);
  l->file = h5_open_read(l->path, e);
  bool ok = l->file >= 0 && meta_read(l->file, l->path, l->scratch, &m, &n_tensor, e);
  arena_release(l->scratch, mark);
  for (int i = 0; i < l->n_set && ok; i++)
    if (i % world_size(l->w) == world_rank(l->w)) ok = group_has_no_extra(l, l->set[i].group, e);
  return ok;
}

static bool load_run(Load *l, Err *e) {
  check_cover(l);
  if (file_open(l, e)) share_verify(l, e);
  if (!world_agree(l->w, e)) return false;
  comm_allreduce_u64(l->w, AXES_WORLD, l->hash.computed, 2 * l->hash.n);
  if (!hashes_compare(l, e)) return false; /* the same on all ranks */
  for (int i = 0; i < l->n_set && e->code == ERR_NONE; i++) set_fill(l, &l->set[i], e);
  return world_agree(l->w, e);
}

bool ckpt_load(World *w, Arena *scratch, const char *file, CkptSet *set, int n_set, Err *e) {
  h5_silence();
  ArenaMark mark = arena_mark(scratch);
  Load l = {.w = w, .scratch = scratch, .path = file, .file = -1, .set = set, .n_set = n_set};
  l.hash.n = set_count_tensors(set, n_set);
  l.hash.computed = ARENA_NEW(scratch, uint64_t, 2 * l.hash.n);
  l.hash.stored = l.hash.computed + l.hash.n;
  l.buf = arena_alloc(scratch, CKPT_CHUNK_BYTES, 1);
  bool ok = load_run(&l, e);
  if (l.file >= 0) H5Fclose(l.file);
  arena_release(scratch, mark);
  return ok;
}
