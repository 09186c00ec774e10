/* Embedding, RMSNorm, rotary embedding, SwiGLU, row copies. */
#include "kernels_common.h"

enum { H = 37, VOCAB = 23, SHIFT = 44 };

static void accum_decode(double *out, const uint64_t *acc, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = (double)(int64_t)acc[i] * ldexp(1, -SHIFT);
}
static uint64_t grid(double x) { return (uint64_t)llrint(x * ldexp(1, SHIFT)); }

/* ---- embedding ---- */

static void embedding_rows(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    const int32_t token[] = {0, 22, 7, 7, 15, 3, 14};
    const int64_t offset[] = {5, 5 + 7 * H + 2, 5 + 15 * H + 9}; /* blocks of 7, 8, 8 rows, each where it likes */
    double *table = fix_random(&f, 5 + 23 * H + 20, -1, 1);
    void *w = fix_copy(&f, table, 5 + 23 * H + 20), *x = fix_real(&f, 7 * H);
    for (int first = 0; first < 3; first++) {
      for (int count = 1; first + count <= 3; count++) {
        Shards s = {3, first, count, VOCAB, 1};
        f.k->embed_fwd(&f.ctx, x, &(Weight){w, 0, offset + first}, &s, H, token, 7);
        for (int t = 0; t < 7; t++) {
          int b = token[t] < 7 ? 0 : token[t] < 15 ? 1 : 2, begin = b == 0 ? 0 : b == 1 ? 7 : 15;
          for (int h = 0; h < H; h++)
            assert_true(fix_at(&f, x, t * H + h) == (b >= first && b < first + count ? table[offset[b] + (token[t] - begin) * H + h] : 0));
        }
      }
    }
  }
}

/* Rows from ranks that each hold a part of the vocabulary: the sum of bit patterns is the row, down to the sign of a zero. */
static void embedding_rows_of_several_ranks(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    const int32_t token[] = {0, 22, 7, 7, 15, 3, 14};
    Shards all = shards_all(6, VOCAB, 1);
    double *table = fix_random(&f, VOCAB * H, -1, 1);
    table[7 * H] = -0.0, table[7 * H + 1] = 1e-310;
    void *w = fix_copy(&f, table, VOCAB * H), *want = fix_real(&f, 7 * H);
    int64_t offset[6];
    for (int i = 0; i < 6; i++) offset[i] = shard_begin(&all, i) * H;
    f.k->embed_fwd(&f.ctx, want, &(Weight){w, 0, offset}, &all, H, token, 7);
    for (int ranks = 2; ranks <= 5; ranks++) {
      void *sum = memset(fix_real(&f, 7 * H), 0, 7 * H * f.k->real_size), *x = fix_real(&f, 7 * H);
      for (int r = 0; r < ranks; r++) {
        Shards s = shards_rank(&all, ranks, r);
        f.k->embed_fwd(&f.ctx, x, &(Weight){w, 0, offset + s.first}, &s, H, token, 7);
        f.k->bits_add(&f.ctx, sum, x, 7 * H);
      }
      fix_same_bits(&f, "embedding", sum, want, 7 * H);
    }
    Shards none = {6, 2, 0, VOCAB, 1};
    uint64_t *acc = fix_u64(&f, 1);
    f.k->embed_dw(&f.ctx, &(Accum){acc, 0, NULL, true, SHIFT, &f.fault}, &none, H, token, want, &(TokenView){.n_token = 0});
  }
}

/* Positions count from the beginning of the token's document. */
static void rope_starts_again_with_a_document(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View docs, apart;
    view_make(&docs, (int[]){21}, 1, 5, 0), view_documents(&docs, 8);
    view_make(&apart, (int[]){8, 8, 5}, 3, 5, 0);
    Shards s = shards_all(2, 4, 6);
    void *x = fix_copy(&f, fix_random(&f, 21 * 24, -1, 1), 21 * 24), *a = fix_real(&f, 21 * 24), *b = fix_real(&f, 21 * 24);
    f.k->rope(&f.ctx, a, x, &s, 10000, 1, &docs.v);
    f.k->rope(&f.ctx, b, x, &s, 10000, 1, &apart.v);
    fix_same_bits(&f, "rope", a, b, 21 * 24);
  }
}

static void embedding_gradient_bits(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){9, 6}, 2, 4, 0);
    const int32_t token[] = {3, 1, 3, 3, 22, 3, 22, 22, 3, 8, 8, 1, 0, 5, 3};
    const int64_t offset[] = {0, 7 * H, 15 * H};
    Shards s = shards_all(3, VOCAB, 1);
    double *dx = fix_random(&f, 15 * H, -3, 3);
    void *d = fix_copy(&f, dx, 15 * H);
    uint64_t *want = fix_u64(&f, VOCAB * H);
    for (int w = 0; w < v.v.n_window; w++)
      for (int id = 0; id < VOCAB; id++)
        for (int h = 0; h < H; h++) {
          double leaf = 0;
          for (int t = v.window[w]; t < v.window[w + 1]; t++)
            if (token[t] == id) leaf = fix_round(&f, leaf + dx[t * H + h]);
          want[id * H + h] += grid(leaf);
        }
    for (f.ctx.threads = 1; f.ctx.threads <= 3; f.ctx.threads++) {
      uint64_t *acc = fix_u64(&f, VOCAB * H);
      f.k->embed_dw(&f.ctx, &(Accum){acc, 0, offset, true, SHIFT, &f.fault}, &s, H, token, d, &v.v);
      assert_memory_equal(acc, want, VOCAB * H * 8);
    }
    assert_true(f.fault == 0);
    f.ctx.threads = 1;
    for (int cut = 0; cut <= v.v.n_window; cut++) { /* two calls of whole windows; and only the middle block */
      View part;
      uint64_t *acc = fix_u64(&f, VOCAB * H), *middle = fix_u64(&f, 8 * H);
      for (int i = 0; i < 2; i++) {
        view_part(&part, &v, i ? cut : 0, i ? v.v.n_window : cut);
        int64_t from = i ? v.window[cut] : 0;
        const char *rows = (const char *)d + (size_t)(from * H) * f.k->real_size;
        f.k->embed_dw(&f.ctx, &(Accum){acc, 0, offset, true, SHIFT, &f.fault}, &s, H, token + from, rows, &part.v);
        f.k->embed_dw(&f.ctx, &(Accum){middle, 0, offset, true, SHIFT, &f.fault}, &(Shards){3, 1, 1, VOCAB, 1}, H, token + from, rows,
                      &part.v);
      }
      assert_memory_equal(acc, want, VOCAB * H * 8);
      assert_memory_equal(middle, want + 7 * H, 8 * H * 8);
    }
  }
}

static void leaves_out_of_range_are_faults(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){3}, 1, 3, 0);
    const double bad[] = {128 * 3.0, 128 * 3.0 + 1, NAN, INFINITY, -INFINITY, -1000};
    for (int i = 0; i < 6; i++) {
      double dx[3] = {0, bad[i], 0};
      uint64_t *acc = fix_u64(&f, VOCAB);
      f.fault = 0;
      Accum a = {acc, 0, (int64_t[]){0}, true, SHIFT, &f.fault};
      f.k->embed_dw(&f.ctx, &a, &(Shards){1, 0, 1, VOCAB, 1}, 1, (int32_t[]){1, 2, 3}, fix_copy(&f, dx, 3), &v.v);
      assert_int_equal(f.fault, i > 0);
      assert_true(acc[2] == (i ? 0 : grid(384)));
    }
  }
}

/* Nearest integer, halves to even, at every magnitude. */
static void leaves_are_rounded_to_the_grid(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){1}, 1, 1, 0);
    const double x[] = {0.0625, -0.0625, 0.1875, 0.3125, -0.1875, 0.21, -0.19, 100.3, -1e-30, 0};
    const int64_t want[] = {0, 0, 2, 2, -2, 2, -2, 802, 0, 0}, offset = 0;
    uint64_t *acc = fix_u64(&f, 10), *fine = fix_u64(&f, 10);
    void *dx = fix_copy(&f, x, 10);
    Shards s = {1, 0, 1, 1, 1};
    f.k->embed_dw(&f.ctx, &(Accum){acc, 0, &offset, true, 3, &f.fault}, &s, 10, (int32_t[]){0}, dx, &v.v);
    assert_memory_equal(acc, want, sizeof want);
    f.k->embed_dw(&f.ctx, &(Accum){fine, 0, &offset, true, 46, &f.fault}, &s, 10, (int32_t[]){0}, dx,
                  &v.v); /* 100.3 * 2^46 is above 2^52 */
    for (int i = 0; i < 10; i++) assert_true((int64_t)fine[i] == llrint(ldexp(fix_at(&f, dx, i), 46)));
    uint64_t *top = fix_u64(&f, 10);
    f.k->embed_dw(&f.ctx, &(Accum){top, 0, &offset, true, 55, &f.fault}, &s, 10, (int32_t[]){0}, dx, &v.v);
    for (int i = 0; i < 10; i++) assert_true((int64_t)top[i] == llrint(ldexp(fix_at(&f, dx, i), 55)));
    assert_true(f.fault == 0);
  }
}

static void inexact_gradients_add_up(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){5}, 1, 2, 0);
    double *dx = fix_random(&f, 5, -1, 1), *start = fix_random(&f, 4, -1, 1), want[4];
    void *acc = fix_copy(&f, start, 4);
    const int32_t token[] = {2, 2, 0, 2, 3};
    memcpy(want, start, sizeof want);
    want[2] = fix_round(&f, fix_round(&f, start[2] + fix_round(&f, dx[0] + dx[1])) + dx[3]);
    want[0] = fix_round(&f, start[0] + dx[2]), want[3] = fix_round(&f, start[3] + dx[4]);
    f.k->embed_dw(&f.ctx, &(Accum){acc, 0, (int64_t[]){0}, false, 0, NULL}, &(Shards){1, 0, 1, 4, 1}, 1, token, fix_copy(&f, dx, 5), &v.v);
    for (int i = 0; i < 4; i++) assert_true(fix_at(&f, acc, i) == want[i]);
  }
}

/* ---- RMSNorm ---- */

typedef struct Norm {
  double *x, *gain, *c;
  int T;
} Norm;
static void norm_reference(const Norm *n, double *y, double *rstd) {
  for (int t = 0; t < n->T; t++) {
    const double *x = n->x + t * H;
    double r = 1 / sqrt(dot(x, x, H) / H + 1e-3);
    if (rstd) rstd[t] = r;
    for (int h = 0; h < H; h++) y[t * H + h] = x[h] * r * n->gain[h];
  }
}
static double norm_loss(void *arg) {
  Norm *n = arg;
  double y[8 * H];
  norm_reference(n, y, NULL);
  return dot(n->c, y, n->T * H);
}

static void rmsnorm_forward_and_backward(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){5, 2}, 2, 2, 0);
    Norm n = {fix_random(&f, 7 * H, -2, 2), fix_random(&f, H, 0.5, 2), fix_random(&f, 7 * H, -1, 1), 7};
    double want[7 * H], want_r[7], dw[H];
    norm_reference(&n, want, want_r);
    void *x = fix_copy(&f, n.x, 7 * H), *g = fix_copy(&f, n.gain, H), *dy = fix_copy(&f, n.c, 7 * H);
    void *y = fix_real(&f, 7 * H), *r = fix_real(&f, 7), *dx = fix_real(&f, 7 * H);
    uint64_t *acc = fix_u64(&f, H + 3);
    Accum a = {acc, 0, (int64_t[]){3}, true, SHIFT, &f.fault};
    f.k->rmsnorm_fwd(&f.ctx, y, r, x, g, 7, H, 1e-3);
    fix_compare(&f, "y", y, want, 7 * H, 8);
    fix_compare(&f, "rstd", r, want_r, 7, 8);
    f.k->rmsnorm_dx(&f.ctx, dx, dy, x, r, g, 7, H);
    fix_check_gradient(&f, "dx", norm_loss, &n, n.x, dx, 7 * H);
    f.k->rmsnorm_dw(&f.ctx, &a, dy, x, r, H, &v.v);
    accum_decode(dw, acc + 3, H);
    fix_check_gradient(&f, "dgain", norm_loss, &n, n.gain, fix_copy(&f, dw, H), H);
    assert_true(acc[0] == 0 && acc[2] == 0 && f.fault == 0);
    for (f.ctx.threads = 1; f.ctx.threads <= 3; f.ctx.threads++) { /* a row alone, threads, windows in two calls: the same bits */
      void *y1 = fix_real(&f, H), *r1 = fix_real(&f, 1), *dx1 = fix_real(&f, H);
      size_t row = (size_t)(4 * H) * f.k->real_size;
      f.k->rmsnorm_fwd(&f.ctx, y1, r1, (char *)x + row, g, 1, H, 1e-3);
      f.k->rmsnorm_dx(&f.ctx, dx1, (char *)dy + row, (char *)x + row, r1, g, 1, H);
      fix_same_bits(&f, "row of y", y1, (char *)y + row, H);
      fix_same_bits(&f, "row of dx", dx1, (char *)dx + row, H);
      uint64_t *split = fix_u64(&f, H);
      View part;
      for (int i = 0; i < 2; i++) {
        view_part(&part, &v, i ? f.ctx.threads : 0, i ? v.v.n_window : f.ctx.threads);
        size_t from = (size_t)(i ? v.window[f.ctx.threads] : 0);
        f.k->rmsnorm_dw(&f.ctx, &(Accum){split, 0, (int64_t[]){0}, true, SHIFT, &f.fault}, (char *)dy + from * H * f.k->real_size,
                        (char *)x + from * H * f.k->real_size, (char *)r + from * f.k->real_size, H, &part.v);
      }
      assert_memory_equal(split, acc + 3, H * 8);
    }
  }
}

/* ---- rotary embedding ---- */

static void rope_rotates_by_position(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { D = 10, HEADS = 5 };
    View v;
    view_make(&v, (int[]){3, 40}, 2, 40, 0);
    for (int t = 3; t < 43; t++) v.position[t] += 100000; /* far from the origin, across steps of the table */
    Shards s = shards_all(3, HEADS, D);
    double *x = fix_random(&f, 43 * HEADS * D, -1, 1), *want = fix_zeros(&f, 43 * HEADS * D);
    for (int t = 0; t < 43; t++)
      for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < D / 2; j++) {
          double angle = v.position[t] * pow(10000, -2.0 * j / D), a = x[(t * HEADS + h) * D + j], b = x[(t * HEADS + h) * D + j + D / 2];
          want[(t * HEADS + h) * D + j] = a * cos(angle) - b * sin(angle);
          want[(t * HEADS + h) * D + j + D / 2] = b * cos(angle) + a * sin(angle);
        }
    void *in = fix_copy(&f, shard_pack(&f, x, &s, 43), 43 * HEADS * D), *y = fix_real(&f, 43 * HEADS * D),
         *back = fix_real(&f, 43 * HEADS * D);
    f.k->rope(&f.ctx, y, in, &s, 10000, 1, &v.v);
    fix_compare(&f, "y", y, shard_pack(&f, want, &s, 43), 43 * HEADS * D,
                f.f64 ? 2e5 : 8); /* FP64: the angle itself is rounded at 1e5 * 2^-53 */
    f.k->rope(&f.ctx, back, y, &s, 10000, -1, &v.v);
    fix_compare(&f, "inverse", back, shard_pack(&f, x, &s, 43), 43 * HEADS * D, 8);
    for (f.ctx.threads = 2; f.ctx.threads <= 3; f.ctx.threads++) {
      void *again = fix_real(&f, 43 * HEADS * D);
      f.k->rope(&f.ctx, again, in, &s, 10000, 1, &v.v);
      fix_same_bits(&f, "threads", again, y, 43 * HEADS * D);
    }
  }
}

static void rope_takes_wide_heads(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { D = 2 * 70 };
    View v;
    view_make(&v, (int[]){18}, 1, 18, 0);
    double *x = fix_random(&f, 18 * D, -1, 1), *want = fix_zeros(&f, 18 * D);
    for (int t = 0; t < 18; t++)
      for (int j = 0; j < D / 2; j++) {
        double angle = t * pow(500000, -2.0 * j / D), a = x[t * D + j], b = x[t * D + j + D / 2];
        want[t * D + j] = a * cos(angle) - b * sin(angle), want[t * D + j + D / 2] = b * cos(angle) + a * sin(angle);
      }
    void *y = fix_real(&f, 18 * D);
    f.k->rope(&f.ctx, y, fix_copy(&f, x, 18 * D), &(Shards){1, 0, 1, 1, D}, 500000, 1, &v.v);
    fix_compare(&f, "y", y, want, 18 * D, 16);
  }
}

/* ---- SwiGLU ---- */

typedef struct Glu {
  double *g, *u, *w, *c;
  int rows, n;
} Glu;
static void glu_reference(const Glu *s, double *y) {
  for (int i = 0; i < s->rows * s->n; i++) y[i] = s->g[i] / (1 + exp(-s->g[i])) * s->u[i] * (s->w ? s->w[i / s->n] : 1);
}
static double glu_loss(void *arg) {
  Glu *s = arg;
  double y[4 * 101];
  glu_reference(s, y);
  return dot(s->c, y, s->rows * s->n);
}

static void swiglu_case(Fix *f, int blocks, bool weighted, bool want_dw) {
  enum { ROWS = 3, N = 101 };
  Shards s = shards_all(blocks, N, 1);
  Glu a = {fix_random(f, ROWS * N, -4, 4),
           fix_random(f, ROWS * N, -2, 2),
           weighted ? fix_random(f, ROWS, 0, 1) : NULL,
           fix_random(f, ROWS * N, -1, 1),
           ROWS,
           N};
  double want[ROWS * N];
  glu_reference(&a, want);
  void *g = fix_copy(f, shard_pack(f, a.g, &s, ROWS), ROWS * N), *u = fix_copy(f, shard_pack(f, a.u, &s, ROWS), ROWS * N);
  void *dy = fix_copy(f, shard_pack(f, a.c, &s, ROWS), ROWS * N), *w = weighted ? fix_copy(f, a.w, ROWS) : NULL;
  void *y = fix_real(f, ROWS * N), *dg = fix_real(f, ROWS * N), *du = fix_real(f, ROWS * N), *dw = want_dw ? fix_real(f, ROWS) : NULL;
  f->k->swiglu_fwd(&f->ctx, y, g, u, w, &s, ROWS);
  fix_compare(f, "y", y, shard_pack(f, want, &s, ROWS), ROWS * N, 8);
  f->k->swiglu_bwd(&f->ctx, dg, du, dw, dy, g, u, w, &s, ROWS);
  double *flat = fix_zeros(f, ROWS * N);
  for (int pass = 0; pass < 2; pass++) {
    const void *d = pass ? du : dg;
    for (int b = 0; b < blocks; b++)
      for (int r = 0; r < ROWS; r++)
        for (int64_t j = 0; j < shard_width(&s, b); j++)
          flat[r * N + shard_begin(&s, b) + j] = fix_at(f, d, shard_begin(&s, b) * ROWS + r * shard_width(&s, b) + j);
    fix_check_gradient(f, pass ? "du" : "dg", glu_loss, &a, pass ? a.u : a.g, fix_copy(f, flat, ROWS * N), ROWS * N);
  }
  if (want_dw && weighted) fix_check_gradient(f, "dw", glu_loss, &a, a.w, dw, ROWS);
}

static void swiglu_forward_and_backward(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    for (int blocks = 1; blocks <= 4; blocks++) swiglu_case(&f, blocks, blocks % 2 == 0, true);
    swiglu_case(&f, 1, true, true);
    swiglu_case(&f, 3, true, false);
  }
}

/* Width dealt to ranks: each writes the roots of its blocks in dw; merged they have the bits of one rank. */
static void swiglu_ranks_give_the_bits_of_one(void **state) {
  (void)state;
  const Shards all[] = {{5, 0, 5, 21, 2}, {8, 0, 8, 5, 3}, {7, 0, 7, 40, 1}};
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { N = 9 };
    size_t z = f.k->real_size;
    for (int i = 0; i < 3; i++) {
      int64_t n = N * shard_total(&all[i]);
      char *g = fix_copy(&f, fix_random(&f, n, -2, 2), n), *u = fix_copy(&f, fix_random(&f, n, -2, 2), n);
      char *dy = fix_copy(&f, fix_random(&f, n, -2, 2), n), *dg = fix_real(&f, n), *du = fix_real(&f, n), *dw = fix_real(&f, N);
      void *w = fix_copy(&f, fix_random(&f, N, 0, 1), N), *merged = fix_real(&f, N);
      f.k->swiglu_bwd(&f.ctx, dg, du, dw, dy, g, u, w, &all[i], N);
      for (int ranks = 2; ranks <= 6; ranks += 2) {
        const void *plane[TREE_ROOTS];
        TreeNode node[TREE_ROOTS];
        int n_plane = 0;
        for (int r = 0; r < ranks; r++) {
          Shards own = shards_rank(&all[i], ranks, r);
          size_t at = (size_t)(N * shard_begin(&own, own.first)) * z;
          int64_t part = N * shard_total(&own);
          int roots = shard_roots(&own, node + n_plane);
          char *pg = fix_real(&f, part), *pu = fix_real(&f, part), *pw = fix_real(&f, roots * N);
          f.k->swiglu_bwd(&f.ctx, pg, pu, pw, dy + at, g + at, u + at, w, &own, N);
          fix_same_bits(&f, "d_gate", pg, dg + at, part), fix_same_bits(&f, "d_up", pu, du + at, part);
          for (int k = 0; k < roots; k++) plane[n_plane++] = pw + (size_t)(k * N) * z;
        }
        f.k->tree_merge(&f.ctx, merged, plane, node, n_plane, 1, N, N, N);
        fix_same_bits(&f, "dw", merged, dw, N);
      }
    }
  }
}

static void swiglu_saturates(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    Shards s = shards_all(1, 4, 1);
    void *g = fix_copy(&f, (double[]){-1000, 1000, -90, 0}, 4), *u = fix_copy(&f, (double[]){2, 2, 2, 2}, 4), *y = fix_real(&f, 4);
    void *dg = fix_real(&f, 4), *du = fix_real(&f, 4), *one = fix_copy(&f, (double[]){1, 1, 1, 1}, 4);
    f.k->swiglu_fwd(&f.ctx, y, g, u, NULL, &s, 1);
    f.k->swiglu_bwd(&f.ctx, dg, du, NULL, one, g, u, NULL, &s, 1);
    fix_compare(&f, "y", y, (double[]){0, 2000, 0, 0}, 4, 1);
    fix_compare(&f, "dg", dg, (double[]){0, 2, 0, 1}, 4, 1);
    fix_compare(&f, "du", du, (double[]){0, 1000, 0, 0}, 4, 1);
  }
}

/* dw of a row is the tree over blocks of lane sums: with blocks of one column, exactly ((a + b) + c). */
static void swiglu_weight_gradient_uses_the_tree(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    Shards s = shards_all(3, 3, 1);
    double big = f.f64 ? 0x1p53 : 0x1p24, u[3] = {1, 1, 1}, dy[3] = {big, 1, -big}; /* silu(x) = x for a large gate */
    void *dw = fix_real(&f, 1), *dg = fix_real(&f, 3), *du = fix_real(&f, 3), *g = fix_copy(&f, (double[]){1024, 1024, 1024}, 3);
    f.k->swiglu_bwd(&f.ctx, dg, du, dw, fix_copy(&f, dy, 3), g, fix_copy(&f, u, 3), NULL, &s, 1);
    assert_true(fix_at(&f, dw, 0) == 0); /* (big + 1) rounds to big */
    double later[3] = {1, -big, big};
    f.k->swiglu_bwd(&f.ctx, dg, du, dw, fix_copy(&f, later, 3), g, fix_copy(&f, u, 3), NULL, &s, 1);
    assert_true(fix_at(&f, dw, 0) ==
                1024); /* (1 - big) is exact: the pair (b, c) first would give 1024 too, so the sum above tells them apart */
    Shards four = shards_all(4, 4, 1);
    double pairs[4] = {big, 1, -big, -1};
    void *dw4 = fix_real(&f, 1), *dg4 = fix_real(&f, 4), *du4 = fix_real(&f, 4), *g4 = fix_copy(&f, (double[]){1024, 1024, 1024, 1024}, 4);
    f.k->swiglu_bwd(&f.ctx, dg4, du4, dw4, fix_copy(&f, pairs, 4), g4, fix_copy(&f, (double[]){1, 1, 1, 1}, 4), NULL, &four, 1);
    assert_true(fix_at(&f, dw4, 0) == 0); /* (big + 1) + (-big - 1); a running sum gives -1024 */
  }
}

/* ---- copies ---- */

static void rows_go_and_come_back(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { T = 5, K = 3, N = 7 };
    double *x = fix_random(&f, T * N, -1, 1), *r = fix_random(&f, T * K * N, -1, 1), want[T * N];
    int32_t row_of[T * K];
    for (int i = 0; i < T * K; i++) row_of[i] = (i * 7 + 3) % (T * K);
    void *rows = fix_real(&f, T * K * N), *y = fix_real(&f, T * N), *slots = fix_real(&f, T * K), *back = fix_real(&f, T * K);
    f.k->rows_scatter(&f.ctx, rows, fix_copy(&f, x, T * N), row_of, T, K, N);
    for (int i = 0; i < T * K; i++)
      for (int j = 0; j < N; j++) assert_true(fix_at(&f, rows, row_of[i] * N + j) == x[i / K * N + j]);
    for (int t = 0; t < T; t++)
      for (int j = 0; j < N; j++)
        want[t * N + j] =
            fix_round(&f, fix_round(&f, r[row_of[t * K] * N + j] + r[row_of[t * K + 1] * N + j]) + r[row_of[t * K + 2] * N + j]);
    f.k->rows_combine(&f.ctx, y, fix_copy(&f, r, T * K * N), row_of, T, K, N);
    for (int i = 0; i < T * N; i++) assert_true(fix_at(&f, y, i) == want[i]);
    void *s = fix_copy(&f, r, T * K);
    f.k->slots_to_rows(&f.ctx, slots, s, row_of, T * K);
    for (int i = 0; i < T * K; i++) assert_true(fix_at(&f, slots, row_of[i]) == r[i]);
    f.k->rows_to_slots(&f.ctx, back, slots, row_of, T * K);
    fix_same_bits(&f, "slots", back, s, T * K);
    void *sum = fix_real(&f, T * N);
    f.k->add(&f.ctx, sum, y, y, T * N);
    for (int i = 0; i < T * N; i++) assert_true(fix_at(&f, sum, i) == 2 * want[i]);
  }
}

static void nothing_to_do(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    View v;
    view_make(&v, (int[]){0}, 1, 4, 0);
    Shards s = shards_all(2, 4, 2);
    f.k->embed_fwd(&f.ctx, NULL, &(Weight){NULL, 0, (int64_t[]){0, 4}}, &s, 2, NULL, 0);
    f.k->embed_dw(&f.ctx, &(Accum){NULL, 0, (int64_t[]){0, 4}, true, SHIFT, &f.fault}, &s, 2, NULL, NULL, &v.v);
    f.k->rmsnorm_fwd(&f.ctx, NULL, NULL, NULL, NULL, 0, H, 1e-5);
    f.k->rmsnorm_dw(&f.ctx, &(Accum){NULL, 0, (int64_t[]){0}, true, SHIFT, &f.fault}, NULL, NULL, NULL, H, &v.v);
    f.k->rope(&f.ctx, NULL, NULL, &s, 10000, 1, &v.v);
    f.k->swiglu_fwd(&f.ctx, NULL, NULL, NULL, NULL, &s, 0);
    f.k->rows_combine(&f.ctx, NULL, NULL, NULL, 0, 2, 3);
    assert_true(f.fault == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(embedding_rows),
      cmocka_unit_test(embedding_rows_of_several_ranks),
      cmocka_unit_test(rope_starts_again_with_a_document),
      cmocka_unit_test(embedding_gradient_bits),
      cmocka_unit_test(leaves_out_of_range_are_faults),
      cmocka_unit_test(leaves_are_rounded_to_the_grid),
      cmocka_unit_test(inexact_gradients_add_up),
      cmocka_unit_test(rmsnorm_forward_and_backward),
      cmocka_unit_test(rope_rotates_by_position),
      cmocka_unit_test(rope_takes_wide_heads),
      cmocka_unit_test(swiglu_forward_and_backward),
      cmocka_unit_test(swiglu_ranks_give_the_bits_of_one),
      cmocka_unit_test(swiglu_saturates),
      cmocka_unit_test(swiglu_weight_gradient_uses_the_tree),
      cmocka_unit_test(rows_go_and_come_back),
      cmocka_unit_test(nothing_to_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
