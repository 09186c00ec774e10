/* Kernels of the BF16 table: what they store as BF16 is what the FP32 kernels, which have references of their own, give on the same numbers,
 * rounded once; what they store as FP32 has the FP32 kernels' bits. Rounding itself is checked against its definition. */
#include "kernels_common.h"

enum { T = 13, H = 37, SHIFT = 44, D = 10, HEADS = 6, KV = 3, K = 2 };

/* The nearest of the two BF16 beside x, the one with the even fraction when both are as near: BF16 are the floats whose low half is 0. */
static uint16_t nearest(float x) {
  uint32_t bits;
  float low, high;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  uint32_t down = bits & 0xffff0000u, up = down + 0x10000u;
  memcpy(&low, &down, sizeof low), memcpy(&high, &up, sizeof high);
  double to_high = isinf(high) ? ldexp(1, 128) : fabs((double)high), before = fabs((double)x) - fabs((double)low),
         after = to_high - fabs((double)x);
  if (isinf(x) || before < after) return (uint16_t)(down >> 16);
  return (uint16_t)((before > after || (down >> 16 & 1) ? up : down) >> 16);
}

typedef struct Both {
  Fix f;
  const Kernels *half, *full;
} Both;

static void both_open(Both *b) {
  fix_open(&b->f, false);
  b->half = &kernels_cpu_bf16, b->full = &kernels_cpu_f32;
}

/* n random numbers that are BF16: as BF16 and as FP32 */
typedef struct Act {
  uint16_t *half;
  float *full;
} Act;
static Act act_random(Both *b, int64_t n, double lo, double hi) {
  Act a = {fix_bytes(&b->f, (size_t)n * 2), fix_bytes(&b->f, (size_t)n * 4)};
  double *x = fix_random(&b->f, n, lo, hi);
  for (int64_t i = 0; i < n; i++) {
    a.half[i] = nearest((float)x[i]);
    uint32_t bits = (uint32_t)a.half[i] << 16;
    memcpy(&a.full[i], &bits, 4);
  }
  return a;
}
static Act act_new(Both *b, int64_t n) { return (Act){fix_bytes(&b->f, (size_t)n * 2), fix_bytes(&b->f, (size_t)n * 4)}; }
static float *real_random(Both *b, int64_t n) { return fix_copy(&b->f, fix_random(&b->f, n, -1, 1), n); }

static void rounded(const char *what, Act got, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (got.half[i] != nearest(got.full[i])) fail_msg("%s[%d] is %04x, FP32 gives %.9g", what, (int)i, got.half[i], (double)got.full[i]);
}
static void same(const char *what, const float *half, const float *full, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(half + i, full + i, 4) != 0) fail_msg("%s[%d] is %.9g, FP32 gives %.9g", what, (int)i, (double)half[i], (double)full[i]);
}

/* Every exponent and sign with low halves around the ties, and special values. */
static void rounding_is_to_nearest_even(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  enum { N = 512 * 8 * 5 };
  static const uint32_t high[] = {0, 1, 2, 3, 0x7e, 0x7f, 0x40, 0x55}, low[] = {0, 1, 0x7fff, 0x8000, 0x8001};
  Act x = act_new(&b, N);
  int n = 0;
  for (uint32_t e = 0; e < 512; e++)
    for (int h = 0; h < 8; h++)
      for (int l = 0; l < 5; l++) {
        uint32_t bits = e << 23 | high[h] << 16 | low[l];
        memcpy(&x.full[n++], &bits, 4);
      }
  b.half->narrow(&b.f.ctx, x.half, x.full, N);
  rounded("narrow", x, N);
  float *back = fix_bytes(&b.f, N * 4);
  b.half->widen(&b.f.ctx, back, x.half, N);
  for (int i = 0; i < N; i++) {
    uint32_t bits;
    memcpy(&bits, &back[i], 4);
    assert_int_equal(bits, (uint32_t)x.half[i] << 16);
  }
  fix_close(&b.f);
}

static void norms(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  View v;
  view_make(&v, (int[]){T}, 1, 5, 0);
  Act x = act_random(&b, T * H, -2, 2), y = act_new(&b, T * H), dx = act_new(&b, T * H);
  float *gain = real_random(&b, H), *dy = real_random(&b, T * H), *r = fix_bytes(&b.f, T * 4), *r2 = fix_bytes(&b.f, T * 4);
  uint64_t *acc = fix_u64(&b.f, H), *acc2 = fix_u64(&b.f, H);
  b.half->rmsnorm_fwd(&b.f.ctx, y.half, r, x.half, gain, T, H, 1e-5);
  b.full->rmsnorm_fwd(&b.f.ctx, y.full, r2, x.full, gain, T, H, 1e-5);
  rounded("norm", y, T * H), same("rstd", r, r2, T);
  b.half->rmsnorm_dx(&b.f.ctx, dx.half, dy, x.half, r, gain, T, H);
  b.full->rmsnorm_dx(&b.f.ctx, dx.full, dy, x.full, r, gain, T, H);
  rounded("norm/dX", dx, T * H);
  b.half->rmsnorm_dw(&b.f.ctx, &(Accum){acc, 0, (int64_t[]){0}, true, SHIFT, &b.f.fault}, dy, x.half, r, H, &v.v);
  b.full->rmsnorm_dw(&b.f.ctx, &(Accum){acc2, 0, (int64_t[]){0}, true, SHIFT, &b.f.fault}, dy, x.full, r, H, &v.v);
  assert_memory_equal(acc, acc2, H * 8);
  fix_close(&b.f);
}

static void embedding_and_rows(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  View v;
  view_make(&v, (int[]){T}, 1, 5, 0);
  enum { VOCAB = 7 };
  Shards vocab = shards_all(2, VOCAB, 1);
  const int64_t offset[] = {0, 3 * H};
  int32_t token[T], row_of[T * K];
  for (int t = 0; t < T; t++) token[t] = (t * 5) % VOCAB;
  for (int i = 0; i < T * K; i++) row_of[i] = (i * 7) % (T * K);
  Act w = act_random(&b, VOCAB * H, -1, 1), x = act_new(&b, T * H), d = act_random(&b, T * H, -1, 1);
  uint64_t *acc = fix_u64(&b.f, VOCAB * H), *acc2 = fix_u64(&b.f, VOCAB * H);
  b.half->embed_fwd(&b.f.ctx, x.half, &(Weight){w.half, 0, offset}, &vocab, H, token, T);
  b.full->embed_fwd(&b.f.ctx, x.full, &(Weight){w.full, 0, offset}, &vocab, H, token, T);
  rounded("embedding", x, T * H);
  b.half->embed_dw(&b.f.ctx, &(Accum){acc, 0, offset, true, SHIFT, &b.f.fault}, &vocab, H, token, d.half, &v.v);
  b.full->embed_dw(&b.f.ctx, &(Accum){acc2, 0, offset, true, SHIFT, &b.f.fault}, &vocab, H, token, d.full, &v.v);
  assert_memory_equal(acc, acc2, VOCAB * H * 8);
  Act rows = act_new(&b, T * K * H), y = act_new(&b, T * H), big = act_random(&b, T * K * 600, -1, 1), sum = act_new(&b, T * 600);
  b.half->rows_scatter(&b.f.ctx, rows.half, x.half, row_of, T, K, H);
  b.full->rows_scatter(&b.f.ctx, rows.full, x.full, row_of, T, K, H);
  rounded("scatter", rows, T * K * H);
  b.half->rows_combine(&b.f.ctx, y.half, rows.half, row_of, T, K, H);
  b.full->rows_combine(&b.f.ctx, y.full, rows.full, row_of, T, K, H);
  rounded("combine", y, T * H);
  b.half->rows_combine(&b.f.ctx, sum.half, big.half, row_of, T, K, 600);
  b.full->rows_combine(&b.f.ctx, sum.full, big.full, row_of, T, K, 600);
  rounded("combine of wide rows", sum, T * 600);
  b.half->add(&b.f.ctx, y.half, x.half, d.half, T * H);
  b.full->add(&b.f.ctx, y.full, x.full, d.full, T * H);
  rounded("add", y, T * H);
  memset(y.half, 0, T * H * 2);
  b.half->bits_add(&b.f.ctx, y.half, x.half, T * H);
  assert_memory_equal(y.half, x.half, T * H * 2);
  fix_close(&b.f);
}

static void rotation_and_gates(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  View v;
  view_make(&v, (int[]){T}, 1, 5, 0);
  Shards heads = shards_all(2, HEADS, D), width = shards_all(3, H, 1);
  float *x = real_random(&b, T * HEADS * D), *w = real_random(&b, T), *dy = real_random(&b, T * H);
  Act y = act_new(&b, T * HEADS * D);
  for (int sign = -1; sign <= 1; sign += 2) {
    b.half->rope(&b.f.ctx, y.half, x, &heads, 1e4, sign, &v.v);
    b.full->rope(&b.f.ctx, y.full, x, &heads, 1e4, sign, &v.v);
    rounded("rope", y, T * HEADS * D);
  }
  Act g = act_random(&b, T * H, -4, 4), u = act_random(&b, T * H, -2, 2), a = act_new(&b, T * H), dg = act_new(&b, T * H),
      du = act_new(&b, T * H);
  float *dw = fix_bytes(&b.f, T * 4), *dw2 = fix_bytes(&b.f, T * 4);
  for (int weighted = 0; weighted < 2; weighted++) {
    const float *weight = weighted ? w : NULL;
    b.half->swiglu_fwd(&b.f.ctx, a.half, g.half, u.half, weight, &width, T);
    b.full->swiglu_fwd(&b.f.ctx, a.full, g.full, u.full, weight, &width, T);
    rounded("swiglu", a, T * H);
    b.half->swiglu_bwd(&b.f.ctx, dg.half, du.half, dw, dy, g.half, u.half, weight, &width, T);
    b.full->swiglu_bwd(&b.f.ctx, dg.full, du.full, dw2, dy, g.full, u.full, weight, &width, T);
    rounded("d_gate", dg, T * H), rounded("d_up", du, T * H), same("dw", dw, dw2, T);
  }
  fix_close(&b.f);
}

static void *work_of(Both *b, size_t n) { return fix_bytes(&b->f, n); }

static void attention(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  View v;
  view_make(&v, (int[]){100, 30}, 2, 16, 0);
  enum { N = 130, Q = N * HEADS * D, KEYS = N * KV * D };
  AttnArgs a = {.q = shards_all(3, HEADS, D), .kv = shards_all(3, KV, D), .head_dim = D, .scale = 0.3, .dv_real = false};
  Act q = act_random(&b, Q, -2, 2), k = act_random(&b, KEYS, -2, 2), val = act_random(&b, KEYS, -1, 1), d_o = act_random(&b, Q, -1, 1);
  Act o = act_new(&b, Q), dv = act_new(&b, KEYS);
  float *lse[2], *delta[2], *dq[2], *dk[2], *real_dv = fix_bytes(&b.f, KEYS * 4);
  for (int i = 0; i < 2; i++) {
    const Kernels *t = i ? b.full : b.half;
    lse[i] = fix_bytes(&b.f, N * HEADS * 4), delta[i] = fix_bytes(&b.f, N * HEADS * 4);
    dq[i] = fix_bytes(&b.f, Q * 4), dk[i] = fix_bytes(&b.f, KEYS * 4);
#define OF(x) (i ? (void *)x.full : (void *)x.half)
    KCtx c = {.threads = 1, .work = work_of(&b, t->attention_work(&b.f.ctx, &a, &v.v, &v.v, ATTN_FWD))};
    t->attention_fwd(&c, OF(o), lse[i], OF(q), OF(k), OF(val), &a, &v.v, &v.v);
    c.work = work_of(&b, t->attention_work(&b.f.ctx, &a, &v.v, &v.v, ATTN_BWD));
    if (i == 0) {
      t->attention_delta(&c, delta[0], d_o.half, o.half, &a, &v.v);
      t->attention_bwd(&c, dq[0], dk[0], dv.half, d_o.half, lse[0], delta[0], q.half, k.half, val.half, &a, &v.v, &v.v);
      a.dv_real = true;
      t->attention_bwd(&c, dq[0], dk[0], real_dv, d_o.half, lse[0], delta[0], q.half, k.half, val.half, &a, &v.v, &v.v);
    } else {
      rounded("attention", o, Q), same("lse", lse[0], lse[1], N * HEADS);
      b.half->widen(&c, o.full, o.half, Q); /* backward starts from what was stored */
      t->attention_delta(&c, delta[1], d_o.full, o.full, &a, &v.v);
      t->attention_bwd(&c, dq[1], dk[1], dv.full, d_o.full, lse[1], delta[1], q.full, k.full, val.full, &a, &v.v, &v.v);
    }
#undef OF
  }
  same("delta", delta[0], delta[1], N * HEADS), same("dq", dq[0], dq[1], Q), same("dk", dk[0], dk[1], KEYS);
  rounded("dv", dv, KEYS), same("dv", real_dv, dv.full, KEYS);
  fix_close(&b.f);
}

static void sums_and_losses(void **state) {
  (void)state;
  Both b;
  both_open(&b);
  float *part[3];
  const void *plane[3];
  const TreeNode node[3] = {{0, 4}, {2, 0}, {1, 3}};
  for (int i = 0; i < 3; i++) plane[i] = part[i] = real_random(&b, T * H);
  Act y = act_new(&b, T * H);
  b.half->tree_merge(&b.f.ctx, y.half, plane, node, 3, T, H, H, H);
  b.full->tree_merge(&b.f.ctx, y.full, plane, node, 3, T, H, H, H);
  rounded("tree", y, T * H);
  Shards vocab = shards_all(3, H, 1);
  int32_t label[T];
  for (int t = 0; t < T; t++) label[t] = t % 4 == 3 ? -100 : (t * 11) % H;
  float *lse = real_random(&b, T);
  b.half->xent_bwd(&b.f.ctx, y.half, part[0], lse, &vocab, label, T);
  b.full->xent_bwd(&b.f.ctx, y.full, part[0], lse, &vocab, label, T);
  rounded("d_logits", y, T * H);
  assert_ptr_equal(b.half->wide, b.full);
  assert_ptr_equal(b.full->wide, b.full);
  fix_close(&b.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rounding_is_to_nearest_even), cmocka_unit_test(norms),     cmocka_unit_test(embedding_and_rows),
      cmocka_unit_test(rotation_and_gates),          cmocka_unit_test(attention), cmocka_unit_test(sums_and_losses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
