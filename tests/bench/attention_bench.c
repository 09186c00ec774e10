/* Attention on one thread: time and GFLOP/s of the causal products alone (the masked half is not counted), beside this core's FP32 peak. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "base/timer.h"
#include "kernel.h"

typedef struct Bench {
  KCtx ctx;
  const Kernels *k;
  AttnArgs args;
  TokenView view;
  void *q, *key, *v, *o, *lse, *delta, *d_o, *dq, *dk, *dv, *work_fwd, *work_bwd;
} Bench;

/* Independent chains of fused multiply-adds in registers. */
static double peak_gflops(void) {
  enum { CHAINS = 12, WIDTH = 16, ROUNDS = 1000000, TRIES = 20 };
  typedef float Vec __attribute__((vector_size(WIDTH * sizeof(float))));
  Vec a[CHAINS];
  for (int i = 0; i < CHAINS; i++)
    for (int j = 0; j < WIDTH; j++) a[i][j] = (float)(i + j);
  double best = 1e30;
  for (int t = 0; t < TRIES; t++) {
    double start = timer_now();
    for (long n = 0; n < ROUNDS; n++)
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; i++) a[i] = a[i] * 0.5f + 1.0f;
    double seconds = timer_now() - start;
    best = seconds < best ? seconds : best;
  }
  volatile float keep = 0;
  for (int i = 0; i < CHAINS; i++) keep += a[i][0];
  return 2.0 * CHAINS * WIDTH * ROUNDS / best * 1e-9;
}

static void *random_real(Arena *a, const Kernels *k, int64_t n, uint64_t stream) {
  void *p = arena_alloc(a, (size_t)n, k->real_size);
  for (int64_t i = 0; i < n; i++) {
    double x = 2 * rng_uniform((RngKey){1, stream, RNG_TEST}, (uint64_t)i) - 1;
    if (k->real_size == sizeof(double))
      ((double *)p)[i] = x;
    else
      ((float *)p)[i] = (float)x;
  }
  return p;
}

static Bench bench_open(Arena *a, const Kernels *k, int S, int D, int heads, int kv_heads, int window) {
  int32_t *start = ARENA_NEW(a, int32_t, 2), *position = ARENA_NEW(a, int32_t, S);
  start[1] = S;
  for (int t = 0; t < S; t++) position[t] = t;
  Bench b = {.ctx = {.threads = 1}, .k = k};
  b.args = (AttnArgs){{1, 0, 1, heads, D}, {1, 0, 1, kv_heads, D}, D, window, 0.125, false, false};
  b.view = (TokenView){.n_token = S, .n_seq = 1, .n_window = 1, .seq_start = start, .window_start = start, .position = position};
  int64_t n = (int64_t)S * heads * D;
  b.q = random_real(a, k, n, 1), b.key = random_real(a, k, n, 2), b.v = random_real(a, k, n, 3), b.d_o = random_real(a, k, n, 4);
  void **out[] = {&b.o, &b.lse, &b.dq, &b.dk, &b.dv, &b.delta};
  for (int i = 0; i < 6; i++) *out[i] = arena_alloc(a, (size_t)n, k->real_size);
  b.work_fwd = arena_alloc(a, k->attention_work(&b.ctx, &b.args, &b.view, &b.view, ATTN_FWD), 1);
  b.work_bwd = arena_alloc(a, k->attention_work(&b.ctx, &b.args, &b.view, &b.view, ATTN_BWD), 1);
  return b;
}

static void run(Bench *b, bool backward) {
  b->ctx.work = backward ? b->work_bwd : b->work_fwd;
  if (backward)
    b->k->attention_delta(&b->ctx, b->delta, b->d_o, b->o, &b->args, &b->view),
        b->k->attention_bwd(&b->ctx, b->dq, b->dk, b->dv, b->d_o, b->lse, b->delta, b->q, b->key, b->v, &b->args, &b->view, &b->view);
  else
    b->k->attention_fwd(&b->ctx, b->o, b->lse, b->q, b->key, b->v, &b->args, &b->view, &b->view);
}

static double best_seconds(Bench *b, bool backward) {
  double best = 1e30;
  for (double end = timer_now() + 0.7; timer_now() < end;) {
    double start = timer_now();
    run(b, backward);
    double t = timer_now() - start;
    best = t < best ? t : best;
  }
  return best;
}

static void row(const Kernels *k, int S, int D, int heads, int kv_heads, int window, double peak) {
  Arena a;
  arena_open(&a, "bench", (size_t)1 << 30);
  Bench b = bench_open(&a, k, S, D, heads, kv_heads, window);
  double pairs = 0;
  for (int t = 0; t < S; t++) pairs += window && t >= window ? window : t + 1;
  double products = 2.0 * D * heads * pairs; /* multiply-adds of one of the 2 (forward) or 5 (backward) products, times 2 */
  double fwd = best_seconds(&b, false), bwd = best_seconds(&b, true);
  printf("%-8s %6d %4d %4d/%-3d %6d | %9.3f %7.1f %4.0f%% | %9.3f %7.1f %4.0f%%\n", k->name, S, D, heads, kv_heads, window, fwd * 1e3,
         2 * products / fwd * 1e-9, 200 * products / fwd * 1e-9 / peak, bwd * 1e3, 5 * products / bwd * 1e-9,
         500 * products / bwd * 1e-9 / peak);
  arena_close(&a);
}

int main(void) {
  double peak = peak_gflops();
  printf("FP32 peak of this core, measured: %.0f GFLOP/s (shares of FP64 rows are of half of it)\n", peak);
  printf("%-8s %6s %4s %4s/%-3s %6s | %9s %7s %5s | %9s %7s %5s\n", "table", "S", "D", "h", "kv", "window", "fwd ms", "GF/s", "peak",
         "bwd ms", "GF/s", "peak");
  row(&kernels_cpu_f32, 128, 64, 8, 8, 0, peak);
  row(&kernels_cpu_f32, 512, 64, 8, 8, 0, peak);
  row(&kernels_cpu_f32, 512, 64, 8, 2, 0, peak);
  row(&kernels_cpu_f32, 512, 80, 8, 8, 0, peak);
  row(&kernels_cpu_f32, 512, 128, 8, 8, 0, peak);
  row(&kernels_cpu_f32, 2048, 64, 8, 8, 0, peak);
  row(&kernels_cpu_f32, 2048, 64, 8, 8, 256, peak);
  row(&kernels_cpu_f64, 512, 64, 8, 8, 0, peak / 2);
  return 0;
}
