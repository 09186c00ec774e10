/* Does a product's row depend on the other rows? (gemm.h) */
#include "gemm.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct Bench {
  Gemm *g;
  const GemmShape *s;
  size_t in, row_a, row_c; /* bytes */
  char *base;
  size_t cap, used;
  char *a, *b, *c, *a2, *c2, *scratch;
} Bench;

/* Each buffer starts at another offset from a cache line, so that alignment is tried as well. */
static char *take(Bench *t, size_t bytes, size_t offset) {
  char *p = t->base + t->used + offset;
  t->used += (bytes + offset + 127) / 64 * 64;
  return p;
}

static double noise(uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (double)(int64_t)(x ^ (x >> 31)) * 0x1p-63;
}

/* BF16: the upper half of a float. */
static void fill(char *p, size_t n, GemmType type, uint64_t seed) {
  for (size_t i = 0; i < n; i++) {
    double x = noise(seed + i);
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    const void *value[N_GEMM_TYPE] = {[GEMM_F32] = &f, [GEMM_F64] = &x, [GEMM_BF16] = &half};
    memcpy(p + i * gemm_in_size(type), value[type], gemm_in_size(type));
  }
}

static bool open_bench(Bench *t) {
  const GemmShape *s = t->s;
  size_t M = (size_t)s->M, b = (size_t)(s->trans_b ? s->N : s->K) * (size_t)s->ldb;
  t->in = gemm_in_size(s->type);
  t->row_a = (size_t)s->lda * t->in;
  t->row_c = (size_t)s->ldc * gemm_out_size(s->type);
  size_t scratch = gemm_scratch(t->g, s);
  t->cap = 2 * M * (t->row_a + t->row_c) + b * t->in + scratch + 4096;
  void *p = mmap(NULL, t->cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return false;
  t->base = p;
  t->scratch = take(t, scratch, 0);
  t->a = take(t, M * t->row_a, 0);
  t->a2 = take(t, M * t->row_a, 3 * t->in);
  t->b = take(t, b * t->in, t->in);
  t->c = take(t, M * t->row_c, 0);
  t->c2 = take(t, M * t->row_c, 5 * gemm_out_size(s->type));
  fill(t->a, M * (size_t)s->lda, s->type, 0);
  fill(t->b, b, s->type, 1u << 30);
  return true;
}

/* Rows of the second product: row i of the first goes to (stride i + shift) mod M when it is kept. */
static int place(const GemmShape *s, int stride, int shift, int i) { return (int)(((int64_t)stride * i + shift) % s->M); }

static int first_difference(Bench *t, int stride, int shift, int keep_every) {
  const GemmShape *s = t->s;
  size_t n = (size_t)s->N * gemm_out_size(s->type);
  memset(t->a2, 0, (size_t)s->M * t->row_a);
  memset(t->c, 0, (size_t)s->M * t->row_c);
  memset(t->c2, 0, (size_t)s->M * t->row_c);
  for (int i = 0; i < s->M; i += keep_every)
    memcpy(t->a2 + (size_t)place(s, stride, shift, i) * t->row_a, t->a + (size_t)i * t->row_a, t->row_a);
  gemm_run(t->g, s, 0, t->a, t->b, t->c, t->scratch);
  gemm_run(t->g, s, 0, t->a2, t->b, t->c2, t->scratch);
  for (int i = 0; i < s->M; i += keep_every)
    if (memcmp(t->c + (size_t)i * t->row_c, t->c2 + (size_t)place(s, stride, shift, i) * t->row_c, n) != 0) return i;
  return -1;
}

bool gemm_self_test(Gemm *g, const GemmShape *s, char *why, size_t why_size) {
  GemmInfo info = gemm_info(g);
  Bench t = {.g = g, .s = s};
  if (s->M != ROW_BLOCK || s->trans_a) {
    snprintf(why, why_size, "row independence is a property of products of %d rows of an untransposed A, not of M %d", ROW_BLOCK, s->M);
    return false;
  }
  if (!open_bench(&t)) {
    snprintf(why, why_size, "no memory for the self-test of GEMM provider %s", info.name);
    return false;
  }
  static const struct {
    int stride, shift, keep_every;
    const char *what;
  } trial[] = {
      {1, 0, 1, "at another alignment"},
      {1, 1, 1, "after a rotation of the rows"},
      {37, 5, 1, "after a permutation of the rows"},
      {1, 0, 7, "with most rows zeroed"},
      {29, 11, ROW_BLOCK, "alone"},
  };
  bool ok = true;
  for (size_t k = 0; k < sizeof trial / sizeof *trial && ok; k++) {
    int row = first_difference(&t, trial[k].stride, trial[k].shift, trial[k].keep_every);
    if (row < 0) continue;
    ok = false;
    snprintf(why, why_size, "GEMM provider %s %s: row %d of a product of %d x %d x %d has other bits %s", info.name, info.version, row,
             s->M, s->N, s->K, trial[k].what);
  }
  munmap(t.base, t.cap);
  return ok;
}
