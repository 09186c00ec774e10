/* Weight gradient of a linear layer: dW += dy^T x over the rows of each group (kernel.h). The weight is cut into tiles that stay in a
 * core's cache; a tile takes all leaves of its group before the next tile starts. Exact sums: a leaf's product is rounded to the grid and
 * added as integers, so neither the order of leaves nor their spread over calls matters. Otherwise the products add up in the accumulator
 * itself. Tiles and the cuts of a leaf's rows depend on the geometry of the block and on the leaf alone. */
#include "cpu_kernels.h"
#include "gemm.h"
#include "leaf.h"
#include <omp.h>
#ifdef __AVX512DQ__
#include <immintrin.h>
#endif

enum { TILE = 1 << 16, TILE_ROWS = 256, TILE_COLS = 512, DEPTH = 256, DEPTH_UNIT = 16, ALIGN = 64 };

typedef struct Geometry {
  int64_t rows, cols, tile_rows, tile_cols;
} Geometry; /* of a block's gradient [rows, cols] */

/* A question for sizes. scratch_of: announces the shapes (gemm_scratch) or relies on their having been (gemm_scratch_known). bound: most
 * rows in a leaf. */
typedef struct Ask {
  Gemm *gemm;
  size_t (*scratch_of)(Gemm *, const GemmShape *);
  const LinGrad *g;
  int64_t bound;
} Ask;

typedef struct Sizes {
  size_t tile, dy, x, scratch, lane;
} Sizes; /* bytes */

typedef struct Job {
  const KCtx *c;
  const LinGrad *g;
  const Rows *rows;
  const act *dy, *x;
  Sizes size;
} Job;

typedef struct Lane {
  real *tile;
  act *dy, *x;
  void *scratch;
  int thread;
} Lane;

typedef struct Tile {
  const RowGroup *group;
  Geometry geo;
  int block;
  int64_t row, col, rows, cols;
} Tile;

typedef struct Cursor {
  int64_t index;
  int group, block;
  int64_t row, col;
} Cursor;

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static size_t round_bytes(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static Geometry geometry_of(const LinGrad *g, int block) {
  int64_t width = shard_width(&g->cut, g->cut.first + block);
  Geometry o = {.rows = g->cut_out ? width : g->n_fixed, .cols = g->cut_out ? g->n_fixed : width};
  if (o.rows == 0 || o.cols == 0) return (Geometry){0};
  int64_t parts = (o.cols + TILE_COLS - 1) / TILE_COLS;
  o.tile_cols = at_most(o.cols, round_up((o.cols + parts - 1) / parts, DEPTH_UNIT));
  o.tile_rows = at_most(o.rows, at_most(TILE_ROWS, TILE / o.tile_cols / DEPTH_UNIT * DEPTH_UNIT));
  return o;
}

static GemmShape shape_of(const LinGrad *g, const Geometry *o, int64_t rows, int64_t cols, int64_t depth, bool padded, bool first) {
  bool exact = g->acc.exact;
  return (GemmShape){.M = (int)rows,
                     .N = (int)cols,
                     .K = (int)depth,
                     .trans_a = true,
                     .lda = (int)(padded ? rows : o->rows),
                     .ldb = (int)(padded ? cols : o->cols),
                     .ldc = (int)(exact ? cols : o->cols),
                     .accumulate = !exact || !first,
                     .type = ACT_GEMM};
}

/* Scratch that the hungriest product of a tile of one size takes, over all depths that leaves up to the bound can have. */
static size_t tile_scratch(const Ask *a, const Geometry *o, int64_t rows, int64_t cols) {
  size_t most = 0;
  int kinds = a->bound > DEPTH && a->g->acc.exact ? 4 : 2;
  for (int64_t depth = DEPTH_UNIT; depth <= at_most(DEPTH, round_up(a->bound, DEPTH_UNIT)); depth += DEPTH_UNIT)
    for (int kind = 0; kind < kinds; kind++) {
      GemmShape s = shape_of(a->g, o, rows, cols, depth, kind & 1, kind < 2);
      size_t bytes = a->scratch_of(a->gemm, &s);
      most = bytes > most ? bytes : most;
    }
  return most;
}

static size_t block_scratch(const Ask *a, const Geometry *o) {
  const int64_t rows[] = {o->tile_rows, o->rows % o->tile_rows}, cols[] = {o->tile_cols, o->cols % o->tile_cols};
  size_t most = 0;
  for (int i = 0; i < 4; i++) {
    if (rows[i / 2] == 0 || cols[i % 2] == 0) continue;
    size_t bytes = tile_scratch(a, o, rows[i / 2], cols[i % 2]);
    most = bytes > most ? bytes : most;
  }
  return most;
}

static Sizes sizes_of(const Ask *a) {
  Sizes s = {0};
  size_t depth = (size_t)at_most(DEPTH, round_up(a->bound, DEPTH_UNIT)) * sizeof(act);
  for (int j = 0; j < a->g->cut.count; j++) {
    Geometry o = geometry_of(a->g, j);
    if (o.rows == 0) continue;
    size_t rows = (size_t)o.tile_rows, cols = (size_t)o.tile_cols, tile = rows * cols * sizeof(real), scratch = block_scratch(a, &o);
    s.tile = tile > s.tile ? tile : s.tile;
    s.dy = depth * rows > s.dy ? depth * rows : s.dy;
    s.x = depth * cols > s.x ? depth * cols : s.x;
    s.scratch = scratch > s.scratch ? scratch : s.scratch;
  }
  s.tile = a->g->acc.exact ? round_bytes(s.tile) : 0;
  s.dy = round_bytes(s.dy);
  s.x = round_bytes(s.x);
  s.scratch = round_bytes(s.scratch);
  s.lane = s.tile + s.dy + s.x + s.scratch;
  return s;
}

static Sizes sizes_ahead(const KCtx *c, const LinGrad *g, const Rows *rows, int64_t leaf_bound) {
  Ask a = {.gemm = c->gemm, .scratch_of = gemm_scratch, .g = g, .bound = g->acc.exact ? leaf_bound : rows->row_bound};
  return sizes_of(&a);
}

size_t FN(linear_dw_work)(const KCtx *c, const LinGrad *g, const Rows *rows, int64_t leaf_bound) {
  return (size_t)c->threads * sizes_ahead(c, g, rows, leaf_bound).lane + ALIGN;
}

void FN(linear_dw_prepare)(const KCtx *c, const LinGrad *g, const Rows *rows, const int64_t *row_sizes, int n_sizes, bool grouped,
                           int64_t leaf_bound) {
  (void)row_sizes, (void)n_sizes, (void)grouped; /* any number of rows is made of the same few depths */
  sizes_ahead(c, g, rows, leaf_bound);
}

/* Rows of the largest leaf of the call; a group is one leaf when sums are not exact. */
static int64_t largest_leaf(const LinGrad *g, const Rows *rows) {
  int64_t most = 0;
  for (int i = 0; i < rows->n_group; i++) {
    const RowGroup *r = &rows->group[i];
    if (!g->acc.exact) most = r->n_row > most ? r->n_row : most;
    for (int k = 0; k < r->n_leaf && g->acc.exact; k++) most = rows->leaf[r->leaf + k].n_row > most ? rows->leaf[r->leaf + k].n_row : most;
  }
  return most;
}

static Lane lane_of(const Job *b, int thread) {
  char *p = (char *)(((uintptr_t)b->c->work + ALIGN - 1) / ALIGN * ALIGN) + (size_t)thread * b->size.lane;
  const Sizes *s = &b->size;
  return (Lane){.tile = (real *)p,
                .dy = (act *)(p + s->tile),
                .x = (act *)(p + s->tile + s->dy),
                .scratch = p + s->tile + s->dy + s->x,
                .thread = thread};
}

#if defined(__AVX512DQ__) && defined(REAL_F32)
#define LOAD8(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#elif defined(__AVX512DQ__)
#define LOAD8(p) _mm512_loadu_pd(p)
#endif

/* acc[i] += llrint(x[i] * scale), all within range */
#ifdef LOAD8
static void add_in_range(uint64_t *acc, const real *x, int64_t n, double scale) {
  __m512d by = _mm512_set1_pd(scale);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m512i v = _mm512_cvtpd_epi64(_mm512_mul_pd(LOAD8(x + i), by));
    _mm512_storeu_si512(acc + i, _mm512_add_epi64(_mm512_loadu_si512(acc + i), v));
  }
  for (; i < n; i++) acc[i] += leaf_round((double)x[i] * scale);
}
#else
static void add_in_range(uint64_t *acc, const real *x, int64_t n, double scale) {
  for (int64_t i = 0; i < n; i++) acc[i] += leaf_round((double)x[i] * scale);
}
#endif

/* Magnitudes are ordered like their bits, with infinity and NaN at the top. */
static real largest_magnitude(const real *x, int64_t n) {
  real_uint m = 0;
  for (int64_t i = 0; i < n; i++) {
    real_uint u = real_bits(x[i]) & ~((real_uint)1 << (REAL_BITS - 1));
    m = u > m ? u : m;
  }
  return real_from_bits(m);
}

/* leaf_add_exact for the elements of a tile: the check runs ahead of the conversion, both at the speed of the cache. */
static bool add_row(uint64_t *acc, const real *x, int64_t n, double scale, double bound) {
  if (!((double)largest_magnitude(x, n) <= bound)) return leaf_add_exact(acc, x, n, scale, bound);
  add_in_range(acc, x, n, scale);
  return false;
}

static void copy_padded(act *to, const act *from, int64_t ld, int64_t rows, int64_t cols, int64_t padded) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < cols; i++) to[r * cols + i] = from[r * ld + i];
  for (int64_t i = rows * cols; i < padded * cols; i++) to[i] = 0;
}

/* out = or += dy^T x over n rows from `row`, for a tile */
static void tile_product(const Job *b, const Lane *l, const Tile *t, int64_t row, int64_t n, real *out) {
  const Geometry *o = &t->geo;
  int64_t before = b->rows->n_row * shard_local(&b->g->cut, b->g->cut.first + t->block);
  const act *dy = b->dy + (b->g->cut_out ? before : 0) + row * o->rows + t->row,
            *x = b->x + (b->g->cut_out ? 0 : before) + row * o->cols + t->col;
  for (int64_t from = 0; from < n; from += DEPTH) {
    int64_t k = at_most(DEPTH, n - from), depth = round_up(k, DEPTH_UNIT);
    const act *a = dy + from * o->rows, *c = x + from * o->cols;
    if (depth > k) {
      copy_padded(l->dy, a, o->rows, k, t->rows, depth);
      copy_padded(l->x, c, o->cols, k, t->cols, depth);
      a = l->dy, c = l->x;
    }
    GemmShape s = shape_of(b->g, o, t->rows, t->cols, depth, depth > k, from == 0);
    gemm_run(b->c->gemm, &s, l->thread, a, c, out, l->scratch);
  }
}

static void tile_exact(const Job *b, const Lane *l, const Tile *t, uint64_t *acc) {
  double scale = leaf_pow2(b->g->acc.shift);
  bool bad = false;
  for (int k = 0; k < t->group->n_leaf; k++) {
    const RowLeaf *f = &b->rows->leaf[t->group->leaf + k];
    if (f->n_row == 0) continue;
    tile_product(b, l, t, f->row, f->n_row, l->tile);
    double bound = (double)LEAF_BOUND * (double)f->n_token;
    for (int64_t r = 0; r < t->rows; r++) bad |= add_row(acc + r * t->geo.cols, l->tile + r * t->cols, t->cols, scale, bound);
  }
  if (bad) leaf_fault(b->g->acc.fault);
}

static void run_tile(const Job *b, const Lane *l, const Tile *t) {
  const Accum *a = &b->g->acc;
  int64_t at = (int64_t)t->group->expert * a->expert_stride + a->offset[t->block] + t->row * t->geo.cols + t->col;
  if (a->exact)
    tile_exact(b, l, t, (uint64_t *)a->data + at);
  else
    tile_product(b, l, t, t->group->row, t->group->n_row, (real *)a->data + at);
}

/* Moves to the tile of the given number, which is not behind the cursor. */
static bool seek_tile(const Job *b, Cursor *u, int64_t index, Tile *t) {
  for (; u->group < b->rows->n_group; u->group++, u->block = 0) {
    const RowGroup *g = &b->rows->group[u->group];
    for (; u->block < b->g->cut.count && g->n_row > 0; u->block++, u->row = 0) {
      Geometry o = geometry_of(b->g, u->block);
      for (; u->row < o.rows; u->row += o.tile_rows, u->col = 0)
        for (; u->col < o.cols; u->col += o.tile_cols, u->index++) {
          if (u->index < index) continue;
          *t = (Tile){.group = g, .geo = o, .block = u->block, .row = u->row, .col = u->col};
          t->rows = at_most(o.tile_rows, o.rows - u->row), t->cols = at_most(o.tile_cols, o.cols - u->col);
          return true;
        }
    }
  }
  return false;
}

void FN(linear_dw)(const KCtx *c, const void *dy, const void *x, const LinGrad *g, const Rows *rows) {
  Ask a = {.gemm = c->gemm, .scratch_of = gemm_scratch_known, .g = g, .bound = largest_leaf(g, rows)};
  Job b = {.c = c, .g = g, .rows = rows, .dy = dy, .x = x, .size = sizes_of(&a)};
  int64_t next = 0;
#pragma omp parallel num_threads(c->threads) if (c->threads > 1)
  {
    Lane l = lane_of(&b, omp_get_thread_num());
    Cursor u = {0};
    Tile t;
    while (seek_tile(&b, &u, __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED), &t)) run_tile(&b, &l, &t);
  }
}
