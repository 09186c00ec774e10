/* What the kernel tests share: guarded buffers of either element type, random inputs, token views, comparison with references in FP64.
 * A reference is a plain loop over doubles; gradients are checked against central differences of the reference.                    */
#ifndef ETALON_TEST_KERNELS_H
#define ETALON_TEST_KERNELS_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "kernel.h"

enum { GUARD = 64, MAX_BUFFER = 256, GUARD_BYTE = 0x5a, MAX_TOKEN = 512, MAX_WINDOW = 512, MAX_SEQ = 16 };

typedef struct Fix {
  Arena arena;
  const Kernels *k;
  bool f64;
  KCtx ctx;
  char *buffer[MAX_BUFFER];
  size_t size[MAX_BUFFER];
  int n_buffer;
  uint64_t draws, fault;
} Fix;

static inline void fix_open(Fix *f, bool f64) {
  memset(f, 0, sizeof *f);
  arena_open(&f->arena, "test", (size_t)256 << 20);
  f->f64 = f64;
  f->k = f64 ? &kernels_cpu_f64 : &kernels_cpu_f32;
  f->ctx.threads = 1;
}

/* Every byte 0xff: NaN as real, -1 as integer. Sentinels before and behind. */
static inline void *fix_bytes(Fix *f, size_t n) {
  size_t padded = (n + 63) / 64 * 64;
  char *p = arena_alloc(&f->arena, padded + 2 * GUARD, 1);
  memset(p, GUARD_BYTE, padded + 2 * GUARD);
  memset(p + GUARD, 0xff, n);
  assert_true(f->n_buffer < MAX_BUFFER);
  f->buffer[f->n_buffer] = p + GUARD, f->size[f->n_buffer++] = n;
  return p + GUARD;
}
static inline void *fix_real(Fix *f, int64_t n) { return fix_bytes(f, (size_t)n * f->k->real_size); }
static inline int32_t *fix_i32(Fix *f, int64_t n) { return fix_bytes(f, (size_t)n * sizeof(int32_t)); }
static inline uint64_t *fix_u64(Fix *f, int64_t n) { return memset(fix_bytes(f, (size_t)n * 8), 0, (size_t)n * 8); }

static inline void fix_check_guards(const Fix *f) {
  for (int i = 0; i < f->n_buffer; i++) {
    size_t padded = (f->size[i] + 63) / 64 * 64;
    for (int j = 0; j < GUARD; j++) assert_int_equal(f->buffer[i][j - GUARD], GUARD_BYTE);
    for (size_t j = f->size[i]; j < padded + GUARD; j++) assert_int_equal(f->buffer[i][j], GUARD_BYTE);
  }
}
static inline void fix_close(Fix *f) {
  fix_check_guards(f);
  arena_close(&f->arena);
}

static inline double fix_at(const Fix *f, const void *p, int64_t i) {
  return f->f64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void fix_put(const Fix *f, void *p, int64_t i, double v) {
  if (f->f64)
    ((double *)p)[i] = v;
  else
    ((float *)p)[i] = (float)v;
}
/* To the element type. volatile: gcc 12 loses the rounding in the remainder of a loop that it vectorises. */
static inline double fix_round(const Fix *f, double v) {
  volatile float narrow = (float)v;
  return f->f64 ? v : (double)narrow;
}

static inline void *fix_copy(Fix *f, const double *x, int64_t n) {
  void *p = fix_real(f, n);
  for (int64_t i = 0; i < n; i++) fix_put(f, p, i, x[i]);
  return p;
}
/* Uniform in [lo, hi), representable in FP32, the same for both types. */
static inline double *fix_random(Fix *f, int64_t n, double lo, double hi) {
  double *x = ARENA_NEW(&f->arena, double, n + 1);
  for (int64_t i = 0; i < n; i++) x[i] = (double)(float)(lo + (hi - lo) * rng_uniform((RngKey){11, 5, RNG_TEST}, f->draws++));
  return x;
}
static inline double *fix_zeros(Fix *f, int64_t n) { return ARENA_NEW(&f->arena, double, n + 1); }

/* |kernel - reference| <= tolerance * (1 + |reference|); the tolerance is in units of the type's rounding error. */
static inline void fix_compare(const Fix *f, const char *what, const void *got, const double *want, int64_t n, double ulps) {
  double tolerance = ulps * (f->f64 ? 2.3e-16 : 1.2e-7);
  for (int64_t i = 0; i < n; i++) {
    double v = fix_at(f, got, i);
    if (!(fabs(v - want[i]) <= tolerance * (1 + fabs(want[i]))))
      fail_msg("%s %s[%d]: %.17g, reference %.17g", f->k->name, what, (int)i, v, want[i]);
  }
}
static inline void fix_same_bits(const Fix *f, const char *what, const void *a, const void *b, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    size_t s = f->k->real_size;
    if (memcmp((const char *)a + (size_t)i * s, (const char *)b + (size_t)i * s, s) != 0)
      fail_msg("%s %s[%d]: %.17g and %.17g differ in bits", f->k->name, what, (int)i, fix_at(f, a, i), fix_at(f, b, i));
  }
}

/* Kernel gradient d of `loss` with respect to x against central differences. */
static inline void fix_check_gradient(const Fix *f, const char *what, double (*loss)(void *), void *arg, double *x, const void *d,
                                      int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double keep = x[i], h = 1e-5;
    x[i] = keep + h;
    double up = loss(arg);
    x[i] = keep - h;
    double down = loss(arg);
    x[i] = keep;
    double want = (up - down) / (2 * h), got = fix_at(f, d, i);
    if (!(fabs(got - want) <= (f->f64 ? 2e-8 : 3e-5) * (1 + fabs(want))))
      fail_msg("%s %s[%d]: %.12g, differences %.12g", f->k->name, what, (int)i, got, want);
  }
}

static inline double dot(const double *a, const double *b, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
  return s;
}

typedef struct View {
  TokenView v;
  int32_t seq[MAX_SEQ + 1], window[MAX_WINDOW + 1], of[MAX_WINDOW], position[MAX_TOKEN], doc[MAX_TOKEN];
  int64_t number[MAX_WINDOW];
} View;

static inline void view_close(View *w, int64_t n_token, int n_seq, int n_window, bool docs) {
  w->v = (TokenView){.n_token = n_token, .n_seq = n_seq, .n_window = n_window, .seq_start = w->seq, .window_start = w->window,
                     .position = w->position, .window_number = w->number, .window_seq = w->of, .doc_start = docs ? w->doc : NULL};
}
/* Whole sequences of the given lengths, cut into windows of `window` tokens. */
static inline void view_make(View *w, const int *length, int n_seq, int window, int64_t first_token) {
  int t = 0, n = 0;
  w->seq[0] = w->window[0] = 0;
  for (int s = 0; s < n_seq; s++) {
    for (int p = 0; p < length[s]; p++) {
      if (p % window == 0) w->window[n] = t, w->of[n] = s, w->number[n++] = first_token + t;
      w->position[t++] = p;
    }
    w->seq[s + 1] = t;
  }
  w->window[n] = t;
  view_close(w, t, n_seq, n, false);
}
/* Documents of the given length in every sequence. */
static inline void view_documents(View *w, int length) {
  for (int64_t t = 0; t < w->v.n_token; t++) w->doc[t] = w->position[t] / length * length;
  w->v.doc_start = w->doc;
}
/* A part of a view: windows [a, b) as a view of its own (sequences are not kept apart). */
static inline void view_part(View *out, const View *in, int a, int b) {
  int32_t from = in->window[a];
  for (int w = a; w < b; w++) out->window[w - a] = in->window[w] - from, out->number[w - a] = in->number[w], out->of[w - a] = 0;
  int32_t n = out->window[b - a] = in->window[b] - from;
  memcpy(out->position, in->position + from, (size_t)n * sizeof(int32_t));
  out->seq[0] = 0, out->seq[1] = n;
  view_close(out, n, 1, b - a, false);
}
/* The windows that `rank` of `ranks` owns, dealt in turn in runs of `run`; sequences as in the whole. token: where each token was. */
static inline void view_deal(View *out, int32_t *token, const View *in, int ranks, int rank, int run) {
  int t = 0, n = 0;
  out->seq[0] = 0;
  for (int s = 0, w = 0; s < in->v.n_seq; s++) {
    for (; w < in->v.n_window && in->of[w] == s; w++) {
      if (w / run % ranks != rank) continue;
      out->window[n] = t, out->of[n] = s, out->number[n++] = in->number[w];
      for (int i = in->window[w]; i < in->window[w + 1]; i++, t++) {
        token[t] = i, out->position[t] = in->position[i];
        if (in->v.doc_start) out->doc[t] = in->doc[i];
      }
    }
    out->seq[s + 1] = t;
  }
  out->window[n] = t;
  view_close(out, t, in->v.n_seq, n, in->v.doc_start != NULL);
}

/* Row-major [rows][total] <-> shard-major */
static inline double *shard_pack(Fix *f, const double *x, const Shards *s, int64_t rows) {
  int64_t total = s->units * s->unit;
  double *y = fix_zeros(f, rows * total);
  for (int i = 0; i < s->n; i++)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0, begin = shard_begin(s, i), width = shard_width(s, i); j < width; j++)
        y[begin * rows + r * width + j] = x[r * total + begin + j];
  return y;
}
/* Rows of a shard-major buffer of the element type, of the blocks in `s`: to[i] = from[row[i]]; back: to[row[i]] = from[i]. `n_from`,
 * `n_to`: rows. */
static inline void shard_rows(const Fix *f, void *to, int64_t n_to, const void *from, int64_t n_from, const int32_t *row, int64_t n,
                              const Shards *s, bool back) {
  size_t z = f->k->real_size;
  for (int j = s->first; j < s->first + s->count; j++)
    for (int64_t i = 0, width = shard_width(s, j), before = shard_local(s, j); i < n; i++) {
      int64_t a = back ? row[i] : i, b = back ? i : row[i];
      memcpy((char *)to + (size_t)(before * n_to + a * width) * z, (const char *)from + (size_t)(before * n_from + b * width) * z,
             (size_t)width * z);
    }
}
static inline Shards shards_all(int n, int64_t units, int64_t unit) { return (Shards){n, 0, n, units, unit}; }
/* Blocks of one of several ranks: contiguous shares. */
static inline Shards shards_rank(const Shards *all, int ranks, int rank) {
  int first = all->n * rank / ranks;
  return (Shards){all->n, first, all->n * (rank + 1) / ranks - first, all->units, all->unit};
}

#define FOR_BOTH_TYPES(f)                     \
  for (int type_ = 0; type_ < 2; type_++)     \
    for (bool open_ = (fix_open(&(f), type_ == 1), true); open_; fix_close(&(f)), open_ = false)
#endif
