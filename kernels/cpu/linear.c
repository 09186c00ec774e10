/* Products of a linear layer over rows (kernel.h): y = x W^T or x W, by blocks of a cut axis, for groups of rows with a weight each.
 * Rows are cut into pieces whose sizes depend on nothing but the group's rows: canonical mode takes ROW_BLOCK rows a call, so that a row's
 * bits are its own; native mode takes the largest of a few static sizes. The last piece of a group is padded with zero rows.           */
#include "cpu_kernels.h"
#include "gemm.h"
#include <omp.h>
#include <string.h>

enum { NATIVE_LARGEST = 256, NATIVE_SMALLEST = 16, ALIGN = 64 };

typedef size_t ScratchOf(Gemm *g, const GemmShape *s);

typedef struct Sizes {              /* elements of a thread's part of the workspace */
  int64_t rows, pad_rows, in, out;  /* pad_rows: most rows of a padded product */
  size_t x, y, tree, scratch, lane; /* bytes */
} Sizes;

typedef struct Job {
  const KCtx *c;
  const LinArgs *a;
  const Rows *rows;
  const act *x;
  void *y;
  bool y_real; /* y's elements are real, else act */
  Sizes size;
  TreeNode root[TREE_ROOTS]; /* of REDUCE, one plane of y each */
  int n_root;
} Job;

typedef struct Lane {
  act *x;
  real *y, *tree;
  void *scratch;
  int thread;
} Lane;

/* What one task computes: `used` rows from row `row` in a product of M rows; block `block` (local number) for MAP, all of them for
 * REDUCE. */
typedef struct Piece {
  int expert, block;
  int64_t row, used, M;
} Piece;

typedef struct Cursor {
  int64_t index;
  int group, block;
  int64_t done;
} Cursor;

static size_t round_bytes(int64_t n, size_t size) { return ((size_t)n * size + ALIGN - 1) / ALIGN * ALIGN; }
/* Products leave real numbers: an y of that type is written in place, another one by way of the lane. */
static bool writes_real(const LinArgs *a) { return ACT_IS_REAL || a->y_real; }

static int64_t in_width(const LinArgs *a, int block) {
  return a->mode == LIN_MAP ? a->n_fixed : shard_width(&a->cut, a->cut.first + block);
}
static int64_t out_width(const LinArgs *a, int block) {
  return a->mode == LIN_MAP ? shard_width(&a->cut, a->cut.first + block) : a->n_fixed;
}

static int64_t piece_rows(bool blocked, int64_t left) {
  if (blocked) return ROW_BLOCK;
  int64_t m = NATIVE_LARGEST;
  while (m > left && m > NATIVE_SMALLEST) m /= 2;
  return m;
}

static GemmShape shape_of(const LinArgs *a, int block, int64_t M) {
  int in = (int)in_width(a, block), out = (int)out_width(a, block);
  return (GemmShape){
      .M = (int)M, .N = out, .K = in, .trans_b = a->trans, .lda = in, .ldb = a->trans ? in : out, .ldc = out, .type = ACT_GEMM};
}

static int tree_levels(int n) {
  int levels = 0;
  while (1 << levels < n) levels++;
  return levels;
}

/* `scratch_of` announces the shapes (gemm_scratch) or relies on their having been (gemm_scratch_known). */
static Sizes sizes_of(const KCtx *c, const LinArgs *a, bool blocked, ScratchOf *scratch_of) {
  Sizes s = {.rows = blocked ? ROW_BLOCK : NATIVE_LARGEST, .pad_rows = blocked ? ROW_BLOCK : NATIVE_SMALLEST};
  for (int j = 0; j < a->cut.count; j++) {
    int64_t in = in_width(a, j), out = out_width(a, j);
    if (in == 0 || out == 0) continue;
    s.in = in > s.in ? in : s.in;
    s.out = out > s.out ? out : s.out;
    for (int64_t m = s.rows; m >= s.pad_rows; m /= 2) {
      GemmShape shape = shape_of(a, j, m);
      size_t n = scratch_of(c->gemm, &shape);
      s.scratch = n > s.scratch ? n : s.scratch;
    }
  }
  s.x = round_bytes(s.pad_rows * s.in, sizeof(act));
  s.y = round_bytes((writes_real(a) ? s.pad_rows : s.rows) * s.out, sizeof(real));
  s.tree = a->mode == LIN_REDUCE ? (size_t)tree_levels(a->cut.n) * round_bytes(s.rows * s.out, sizeof(real)) : 0;
  s.scratch = (s.scratch + ALIGN - 1) / ALIGN * ALIGN;
  s.lane = s.x + s.y + s.tree + s.scratch;
  return s;
}

size_t FN(linear_work)(const KCtx *c, const LinArgs *a, const Rows *rows) {
  return (size_t)c->threads * sizes_of(c, a, rows->blocked, gemm_scratch).lane + ALIGN;
}

void FN(linear_prepare)(const KCtx *c, const LinArgs *a, const Rows *rows, const int64_t *row_sizes, int n_sizes, bool grouped) {
  (void)row_sizes, (void)n_sizes, (void)grouped; /* any number of rows is made of the same few sizes */
  sizes_of(c, a, rows->blocked, gemm_scratch);
}

static Lane lane_of(const Job *b, int thread) {
  char *p = (char *)(((uintptr_t)b->c->work + ALIGN - 1) / ALIGN * ALIGN) + (size_t)thread * b->size.lane;
  const Sizes *s = &b->size;
  return (Lane){
      .x = (act *)p, .y = (real *)(p + s->x), .tree = (real *)(p + s->x + s->y), .scratch = p + s->x + s->y + s->tree, .thread = thread};
}

static void pad_rows(act *to, const act *from, int64_t rows, int64_t width, int64_t padded) {
  for (int64_t i = 0; i < rows * width; i++) to[i] = from[i];
  for (int64_t i = rows * width; i < padded * width; i++) to[i] = 0;
}

/* Where a piece of y is computed: n elements of it from element `at`. */
static real *piece_open(const Job *b, const Lane *l, const Piece *p, int64_t at) {
  return b->y_real && p->used == p->M ? (real *)b->y + at : l->y;
}
static void piece_close(const Job *b, const Lane *l, const Piece *p, int64_t at, int64_t n) {
  if (!b->y_real)
    act_narrow((act *)b->y + at, l->y, n);
  else if (p->used < p->M)
    memcpy((real *)b->y + at, l->y, (size_t)n * sizeof(real));
}

/* Rows of x in block j times the block's weight, to out [M, N]. */
static void product(const Job *b, const Lane *l, const Piece *p, int block, real *out) {
  const LinArgs *a = b->a;
  int64_t in = in_width(a, block);
  int64_t base = a->mode == LIN_MAP ? 0 : b->rows->n_row * shard_local(&a->cut, a->cut.first + block);
  const act *x = b->x + base + p->row * in;
  if (p->used < p->M) {
    pad_rows(l->x, x, p->used, in, p->M);
    x = l->x;
  }
  GemmShape s = shape_of(a, block, p->M);
  const act *w = (const act *)a->w.data + (int64_t)p->expert * a->w.expert_stride + a->w.offset[block];
  gemm_run(b->c->gemm, &s, l->thread, x, w, out, l->scratch);
}

/* Is any local block that is not empty among the global blocks first .. first + count - 1? */
static bool any_block(const Shards *cut, int first, int count) {
  int lo = first > cut->first ? first : cut->first, hi = first + count, end = cut->first + cut->count;
  hi = hi < end ? hi : end;
  return lo < hi && shard_begin(cut, hi) > shard_begin(cut, lo);
}

/* out = sum over the node of the fixed tree that covers `count` (a power of two) global blocks from `first`. */
static void tree_node(const Job *b, const Lane *l, const Piece *p, int first, int count, real *out, real *spare) {
  if (count == 1) {
    product(b, l, p, first - b->a->cut.first, out);
    return;
  }
  int half = count / 2;
  bool left = any_block(&b->a->cut, first, half), right = any_block(&b->a->cut, first + half, half);
  if (!left || !right) {
    tree_node(b, l, p, left ? first : first + half, half, out, spare);
    return;
  }
  tree_node(b, l, p, first, half, out, spare);
  tree_node(b, l, p, first + half, half, spare, spare + round_bytes(p->M * b->a->n_fixed, sizeof(real)) / sizeof(real));
  for (int64_t i = 0; i < p->M * b->a->n_fixed; i++) out[i] += spare[i];
}

static void run_block(const Job *b, const Lane *l, const Piece *p) {
  int64_t width = out_width(b->a, p->block);
  int64_t at = b->rows->n_row * shard_local(&b->a->cut, b->a->cut.first + p->block) + p->row * width;
  product(b, l, p, p->block, piece_open(b, l, p, at));
  piece_close(b, l, p, at, p->used * width);
}

static void run_roots(const Job *b, const Lane *l, const Piece *p) {
  int64_t width = b->a->n_fixed;
  for (int i = 0; i < b->n_root; i++) {
    TreeNode r = b->root[i];
    int64_t at = (i * b->rows->n_row + p->row) * width;
    tree_node(b, l, p, r.index << r.level, 1 << r.level, piece_open(b, l, p, at), l->tree);
    piece_close(b, l, p, at, p->used * width);
  }
}

/* Moves to the piece of the given number, which is not behind the cursor. Order: groups, blocks, rows, so that a weight stays in cache. */
static bool seek_piece(const Job *b, Cursor *u, int64_t index, Piece *p) {
  const Rows *r = b->rows;
  int n_block = b->a->mode == LIN_MAP ? b->a->cut.count : 1;
  for (; u->group < r->n_group; u->group++, u->block = 0) {
    const RowGroup *g = &r->group[u->group];
    for (; u->block < n_block; u->block++, u->done = 0) {
      while (u->done < g->n_row && out_width(b->a, u->block) > 0) {
        int64_t left = g->n_row - u->done, m = piece_rows(r->blocked, left), used = left < m ? left : m;
        *p = (Piece){.expert = g->expert, .block = u->block, .row = g->row + u->done, .used = used, .M = m};
        if (u->index == index) return true;
        u->index++;
        u->done += used;
      }
    }
  }
  return false;
}

void FN(linear)(const KCtx *c, void *y, const void *x, const LinArgs *a, const Rows *rows) {
  Job b = {
      .c = c, .a = a, .rows = rows, .x = x, .y = y, .y_real = writes_real(a), .size = sizes_of(c, a, rows->blocked, gemm_scratch_known)};
  if (a->mode == LIN_REDUCE) b.n_root = linear_roots(a, b.root);
  void (*run)(const Job *, const Lane *, const Piece *) = a->mode == LIN_MAP ? run_block : run_roots;
  int64_t next = 0;
#pragma omp parallel num_threads(c->threads) if (c->threads > 1)
  {
    Lane l = lane_of(&b, omp_get_thread_num());
    Cursor u = {0};
    Piece p;
    while (seek_piece(&b, &u, __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED), &p)) run(&b, &l, &p);
  }
}
