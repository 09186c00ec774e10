/* Compressed data. Where a deflated chunk lies is known only once the chunks before it are there, so one rank writes: slab by slab, some rows of a tensor
 * each, the pieces come to rank 0. Every rank knows all pieces, so both sides count the same bytes and nobody asks. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ckpt/h5util.h"
#include "ckpt/save.h"

enum { SLAB_BYTES = 32 << 20 };

typedef struct Entry {
  int32_t tensor; /* of all sets */
  int32_t rank;
  int64_t row, n_row, col, n_col;
} Entry;
typedef struct Gather {
  const Save *s;
  Entry *entry;            /* of all ranks; those of tensor t: order[start[t]] .. order[start[t + 1] - 1], rank by rank */
  const CkptPiece **piece; /* of this rank's entries, else NULL */
  int *start, *order, n_entry;
  RowSeg *seg; /* [world size] */
  char *pack, *recv, *slab;
  hid_t file; /* rank 0; < 0: an error is known, go through the motions */
} Gather;

static void list_own(Gather *g, int at) {
  const Save *s = g->s;
  for (int i = 0, first = 0; i < s->n_set; first += s->set[i++].n_tensor)
    for (int k = 0; k < s->set[i].n_piece; k++, at++) {
      const CkptPiece *p = &s->set[i].piece[k];
      g->piece[at] = p;
      g->entry[at] = (Entry){first + p->tensor, world_rank(s->w), p->row, p->n_row, p->col, p->n_col};
    }
}

static void list_all(Gather *g, Arena *a) {
  const Save *s = g->s;
  int p = world_size(s->w), self = world_rank(s->w);
  uint64_t *count = ARENA_NEW(a, uint64_t, p);
  int64_t *bound = ARENA_NEW(a, int64_t, p + 1);
  for (int i = 0; i < s->n_set; i++) count[self] += (uint64_t)s->set[i].n_piece;
  comm_allreduce_u64(s->w, AXES_WORLD, count, p);
  for (int r = 0; r < p; r++) bound[r + 1] = bound[r] + (int64_t)count[r];
  g->n_entry = (int)bound[p];
  g->entry = ARENA_NEW(a, Entry, g->n_entry);
  g->piece = ARENA_NEW(a, const CkptPiece *, g->n_entry);
  list_own(g, (int)bound[self]);
  comm_allgather(s->w, AXES_WORLD, g->entry, bound, sizeof(Entry));
  g->start = ARENA_NEW(a, int, s->n_tensor + 2);
  g->order = ARENA_NEW(a, int, g->n_entry);
  for (int i = 0; i < g->n_entry; i++) g->start[g->entry[i].tensor + 2]++;
  for (int t = 0; t < s->n_tensor; t++) g->start[t + 2] += g->start[t + 1];
  for (int i = 0; i < g->n_entry; i++) g->order[g->start[g->entry[i].tensor + 1]++] = i;
}

static int64_t slab_rows(const CkptTensor *t) {
  int64_t chunk = tensor_chunk_rows(t), fit = (int64_t)(SLAB_BYTES / tensor_row_bytes(t)) / chunk * chunk;
  return fit > chunk ? fit : chunk;
}

static void open_buffers(Gather *g, Arena *a) {
  const Save *s = g->s;
  size_t most = 0;
  for (int i = 0; i < s->n_set; i++)
    for (int t = 0; t < s->set[i].n_tensor; t++) {
      int64_t rows = slab_rows(&s->set[i].tensor[t]);
      if (rows > s->set[i].tensor[t].rows) rows = s->set[i].tensor[t].rows;
      size_t n = (size_t)rows * tensor_row_bytes(&s->set[i].tensor[t]);
      if (n > most) most = n;
    }
  bool first = world_rank(s->w) == 0;
  g->seg = ARENA_NEW(a, RowSeg, world_size(s->w));
  g->pack = arena_alloc(a, most, 1);
  g->recv = first ? arena_alloc(a, most, 1) : NULL;
  g->slab = first ? arena_alloc(a, most, 1) : NULL;
}

/* Rows of an entry that lie in the slab. */
static int64_t rows_in(const Entry *x, int64_t row, int64_t n_row, int64_t *from) {
  int64_t end = x->row + x->n_row < row + n_row ? x->row + x->n_row : row + n_row;
  *from = x->row > row ? x->row : row;
  return end > *from ? end - *from : 0;
}

/* The slab [row, row + n_row) of tensor number at. */
static void slab_collect(Gather *g, const CkptTensor *t, int at, int64_t row, int64_t n_row) {
  int p = world_size(g->s->w), self = world_rank(g->s->w);
  size_t elem = dtype_size(t->dtype), packed = 0;
  for (int r = 0; r < p; r++) g->seg[r] = (RowSeg){.peer = r};
  for (int k = g->start[at]; k < g->start[at + 1]; k++) {
    const Entry *x = &g->entry[g->order[k]];
    int64_t from, n = rows_in(x, row, n_row, &from);
    size_t bytes = (size_t)(n * x->n_col) * elem;
    g->seg[x->rank].n_row += (int64_t)bytes;
    if (x->rank != self || !bytes) continue;
    const char *data = g->piece[g->order[k]]->data;
    memcpy(g->pack + packed, data + (size_t)((from - x->row) * x->n_col) * elem, bytes);
    packed += bytes;
  }
  for (int r = 1; r < p; r++) g->seg[r].row = g->seg[r - 1].row + g->seg[r - 1].n_row;
  RowSeg out = {.peer = 0, .n_row = (int64_t)packed};
  comm_exchange_rows(g->s->w, AXES_WORLD, g->pack, &out, 1, g->recv, g->seg, self == 0 ? p : 0, 1);
}

static void slab_unpack(Gather *g, const CkptTensor *t, int at, int64_t row, int64_t n_row) {
  size_t elem = dtype_size(t->dtype);
  const char *p = g->recv;
  for (int k = g->start[at]; k < g->start[at + 1]; k++) {
    const Entry *x = &g->entry[g->order[k]];
    int64_t from, n = rows_in(x, row, n_row, &from);
    for (int64_t r = 0; r < n; r++, p += (size_t)x->n_col * elem)
      memcpy(g->slab + (size_t)((from + r - row) * t->cols + x->col) * elem, p, (size_t)x->n_col * elem);
  }
}

static bool slab_write(Gather *g, hid_t d, const CkptSet *set, const CkptTensor *t, int64_t row, int64_t n_row, Err *e) {
  char detail[256];
  snprintf(detail, sizeof detail, "%s/%s", set->group, t->name);
  bool fails = fault_fails(g->s->fault, FAULT_CKPT_PIECE, detail);
  CkptPiece p = {.row = row, .n_row = n_row, .n_col = t->cols, .data = g->slab};
  if (!fails && tensor_write(d, t, &p)) return true;
  return h5_fail(e, g->s->part, "/%s/%s cannot be written%s", set->group, t->name, fails ? ": a test said so" : "");
}

static void tensor_collect(Gather *g, const CkptSet *set, const CkptTensor *t, int at, Err *e) {
  hid_t d = g->file >= 0 ? tensor_open(g->file, g->s->part, set->group, t, e) : -1;
  int64_t step = slab_rows(t);
  for (int64_t row = 0; row < t->rows; row += step) {
    int64_t n_row = t->rows - row < step ? t->rows - row : step;
    slab_collect(g, t, at, row, n_row);
    if (d < 0 || e->code != ERR_NONE) continue;
    slab_unpack(g, t, at, row, n_row);
    slab_write(g, d, set, t, row, n_row, e);
  }
  if (d >= 0 && H5Dclose(d) < 0) h5_fail(e, g->s->part, "/%s/%s cannot be closed", set->group, t->name);
}

bool save_write_compressed(const Save *s, Err *e) {
  Gather g = {.s = s, .file = -1};
  ArenaMark mark = arena_mark(s->scratch);
  list_all(&g, s->scratch);
  open_buffers(&g, s->scratch);
  if (world_rank(s->w) == 0) g.file = h5_open_write(s->part, e);
  for (int i = 0, at = 0; i < s->n_set; at += s->set[i++].n_tensor)
    for (int t = 0; t < s->set[i].n_tensor && !s->set[i].same_as; t++) tensor_collect(&g, &s->set[i], &s->set[i].tensor[t], at + t, e);
  if (g.file >= 0 && fault_fails(s->fault, FAULT_CKPT_SYNC, NULL)) err_set(e, ERR_CKPT, "%s: cannot be closed: a test said so", s->part);
  if (g.file >= 0 && H5Fclose(g.file) < 0) h5_fail(e, s->part, "cannot be closed");
  arena_release(s->scratch, mark);
  return e->code == ERR_NONE;
}
