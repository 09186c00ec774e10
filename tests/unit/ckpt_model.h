/* A small set of tensors for the checkpoint tests, whose bits follow from (tensor number, element), and ways to deal it to ranks. */
#ifndef ETALON_TEST_CKPT_MODEL_H
#define ETALON_TEST_CKPT_MODEL_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "ckpt/ckpt.h"

enum { MODEL_TENSORS = 8, MODEL_MAX_PIECES = 512 };

static const CkptTensor model_tensors[MODEL_TENSORS] = {
    {.name = "model.embed_tokens.weight", .dtype = DT_F32, .n_dim = 2, .rows = 37, .cols = 12},
    {.name = "model.layers.0.self_attn.q_proj.weight", .dtype = DT_F32, .n_dim = 2, .rows = 24, .cols = 13},
    {.name = "model.layers.0.block_sparse_moe.experts.3.w2.weight", .dtype = DT_F64, .n_dim = 2, .rows = 5, .cols = 31},
    {.name = "model.norm.weight", .dtype = DT_F32, .n_dim = 1, .rows = 1, .cols = 12},
    {.name = "half", .dtype = DT_BF16, .n_dim = 2, .rows = 9, .cols = 7},
    {.name = "counts", .dtype = DT_I64, .n_dim = 1, .rows = 1, .cols = 1},
    {.name = "bytes", .dtype = DT_U8, .n_dim = 2, .rows = 1, .cols = 5},
    {.name = "tall", .dtype = DT_U32, .n_dim = 2, .rows = 700, .cols = 3},
};

/* The element's bits: any pattern, NaNs included. salt tells weights from moments. */
static uint64_t model_bits(int tensor, int64_t index, uint64_t salt) {
  size_t bytes = dtype_size(model_tensors[tensor].dtype);
  uint64_t x = hash_mix((uint64_t)index + 1000003 * (uint64_t)(tensor + 1) + (salt << 40));
  return bytes == 8 ? x : x & (((uint64_t)1 << 8 * bytes) - 1);
}

static uint64_t model_hash(int tensor, uint64_t salt) {
  const CkptTensor *t = &model_tensors[tensor];
  uint64_t sum = 0;
  for (int64_t i = 0; i < t->rows * t->cols; i++) sum += hash_element(hash_name(t->name), (uint64_t)i, model_bits(tensor, i, salt));
  return sum;
}

static CkptTensor *model_list(Arena *a, uint64_t salt) {
  CkptTensor *t = ARENA_NEW(a, CkptTensor, MODEL_TENSORS);
  memcpy(t, model_tensors, sizeof model_tensors);
  for (int i = 0; i < MODEL_TENSORS; i++) t[i].hash = model_hash(i, salt);
  return t;
}

/* A rectangle is cut again and again, along rows or columns as the draw says, then given to one of n owners. Where replicated, everybody else gets a
 * copy now and then. */
typedef struct Deal { Arena *a; int n_owner, self, n_piece; bool replicate; uint64_t stream, n_draw; CkptPiece piece[MODEL_MAX_PIECES]; } Deal;

static int64_t deal_draw(Deal *d, int64_t n) { return (int64_t)rng_below((RngKey){.seed = 3, .stream = d->stream, .purpose = RNG_TEST}, d->n_draw++, (uint64_t)n); }

static void deal_rectangle(Deal *d, CkptPiece p, int depth) {
  if (depth > 0 && p.n_row > 0 && p.n_col > 0) {
    CkptPiece left = p, right = p;
    if (deal_draw(d, 2)) {
      left.n_row = deal_draw(d, p.n_row + 1);
      right.row += left.n_row;
      right.n_row -= left.n_row;
    } else {
      left.n_col = deal_draw(d, p.n_col + 1);
      right.col += left.n_col;
      right.n_col -= left.n_col;
    }
    deal_rectangle(d, left, depth - 1);
    deal_rectangle(d, right, depth - 1);
    return;
  }
  bool mine = deal_draw(d, d->n_owner) == d->self, copy = deal_draw(d, 4) == 0 && d->replicate;
  if (!mine && !copy) return;
  p.data = arena_alloc(d->a, (size_t)(p.n_row * p.n_col), dtype_size(model_tensors[p.tensor].dtype));
  d->piece[d->n_piece++] = p;
}

/* Pieces of rank `self` when all tensors are dealt to ranks 0 .. n_owner - 1; the others get none. */
static Deal *deal_model(Arena *a, int n_owner, int self, bool replicate, uint64_t stream) {
  Deal *d = ARENA_NEW(a, Deal, 1);
  *d = (Deal){.a = a, .n_owner = n_owner, .self = self, .replicate = replicate, .stream = stream};
  for (int t = 0; t < MODEL_TENSORS; t++)
    deal_rectangle(d, (CkptPiece){.tensor = t, .n_row = model_tensors[t].rows, .n_col = model_tensors[t].cols}, 4);
  return d;
}

static uint64_t piece_bits(const CkptPiece *p, int64_t row, int64_t col, uint64_t salt) {
  return model_bits(p->tensor, (p->row + row) * model_tensors[p->tensor].cols + p->col + col, salt);
}

static void deal_fill(Deal *d, uint64_t salt) {
  for (int i = 0; i < d->n_piece; i++) {
    const CkptPiece *p = &d->piece[i];
    size_t bytes = dtype_size(model_tensors[p->tensor].dtype);
    for (int64_t k = 0; k < p->n_row * p->n_col; k++) {
      uint64_t bits = piece_bits(p, k / p->n_col, k % p->n_col, salt);
      memcpy((char *)p->data + (size_t)k * bytes, &bits, bytes); /* little-endian */
    }
  }
}

/* Elements of the pieces that do not have the bits they should. */
static int64_t deal_count_wrong(const Deal *d, uint64_t salt) {
  int64_t wrong = 0;
  for (int i = 0; i < d->n_piece; i++) {
    const CkptPiece *p = &d->piece[i];
    size_t bytes = dtype_size(model_tensors[p->tensor].dtype);
    for (int64_t k = 0; k < p->n_row * p->n_col; k++) {
      uint64_t bits = piece_bits(p, k / p->n_col, k % p->n_col, salt);
      wrong += memcmp((char *)p->data + (size_t)k * bytes, &bits, bytes) != 0;
    }
  }
  return wrong;
}

static CkptMeta model_meta(int64_t step) {
  return (CkptMeta){.step = step, .consumed_samples = 8 * step, .seed = UINT64_MAX - 5, .world = 4, .config = "model:\n  hidden_size: 12\n", .numerics = "canonical fp32 window 64",
                    .code_version = "v0-test", .isa = "avx512", .gemm = "plain"};
}

/* Saves weights, masters as links to them, and one set of moments, dealt to n_owner ranks. */
static inline bool model_save(World *w, Arena *a, const char *dir, const CkptMeta *m, int n_owner, uint64_t stream, int keep_last, Err *e) {
  Deal *weights = deal_model(a, n_owner, world_rank(w), false, stream), *moments = deal_model(a, n_owner, world_rank(w), false, stream + 1);
  deal_fill(weights, 0);
  deal_fill(moments, 1);
  CkptSet set[] = {{.group = "weights", .tensor = model_list(a, 0), .n_tensor = MODEL_TENSORS, .piece = weights->piece, .n_piece = weights->n_piece},
                   {.group = "masters", .tensor = model_list(a, 0), .n_tensor = MODEL_TENSORS, .same_as = "weights"},
                   {.group = "moments/m", .tensor = model_list(a, 1), .n_tensor = MODEL_TENSORS, .piece = moments->piece, .n_piece = moments->n_piece}};
  return ckpt_save(w, a, dir, m, set, 3, &(CkptPolicy){.keep_last = keep_last}, e);
}

/* Loads what model_save saved, the masters too. wrong: elements of this rank that are not as they should be. */
static inline bool model_load(World *w, Arena *a, const char *file, int n_owner, bool replicate, uint64_t stream, int64_t *wrong, Err *e) {
  Deal *deal[3];
  CkptSet set[3];
  static const char *const group[] = {"moments/m", "weights", "masters"};
  for (int i = 0; i < 3; i++) {
    deal[i] = deal_model(a, n_owner, world_rank(w), replicate, stream + (uint64_t)i);
    set[i] = (CkptSet){.group = group[i], .tensor = model_list(a, 7), .n_tensor = MODEL_TENSORS, .piece = deal[i]->piece, .n_piece = deal[i]->n_piece};
  }
  *wrong = 0;
  if (!ckpt_load(w, a, file, set, 3, e)) return false;
  for (int i = 0; i < 3; i++) {
    *wrong += deal_count_wrong(deal[i], i == 0);
    for (int t = 0; t < MODEL_TENSORS; t++) *wrong += set[i].tensor[t].hash != model_hash(t, i == 0);
  }
  return true;
}

/* Makes an empty directory of this name prefix, the same on all ranks. */
static inline char *model_directory(World *w, Arena *a, const char *prefix) {
  char dir[128];
  snprintf(dir, sizeof dir, "%s/etalon-%s-XXXXXX", P_tmpdir, prefix);
  if (world_rank(w) == 0) CHECK(mkdtemp(dir), "mkdtemp %s", dir);
  comm_bcast(w, dir, sizeof dir, 0);
  return arena_printf(a, "%s", dir);
}

static inline void model_remove(World *w, Arena *a, const char *dir) {
  comm_barrier(w);
  if (world_rank(w) == 0) CHECK(system(arena_printf(a, "rm -rf '%s'", dir)) == 0, "rm %s", dir);
}
#endif
