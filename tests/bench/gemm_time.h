/* Timing of one product, for the benches. */
#ifndef ETALON_BENCH_GEMM_TIME_H
#define ETALON_BENCH_GEMM_TIME_H
#include "base/timer.h"
#include "unit/gemm_rig.h"

typedef struct Timing { double seconds /* to spend; at least FEW calls */; double start, begin, best; int64_t reps; } Timing;

/* The best call: `Timing t = {.seconds = s}; while (timing_more(&t)) call();` */
static inline bool timing_more(Timing *t) {
  enum { FEW = 5 };
  double now = timer_now(), took = now - t->begin;
  if (t->reps == 0) t->start = now;
  else t->best = t->reps == 1 || took < t->best ? took : t->best;
  t->begin = timer_now();
  return t->reps++ < FEW || now - t->start < t->seconds;
}

static inline GemmShape dense_shape(int M, int N, int K, bool trans_a, bool trans_b, GemmType type) {
  return (GemmShape){ .M = M, .N = N, .K = K, .trans_a = trans_a, .trans_b = trans_b, .lda = trans_a ? M : K, .ldb = trans_b ? K : N, .ldc = N, .type = type };
}

/* FLOP/s of the best call on one thread. */
static inline double gemm_rate(Arena *arena, const char *provider, GemmShape s, double seconds) {
  ArenaMark mark = arena_mark(arena);
  Gemm *g = open_gemm(provider, 1);
  void *a = random_buffer(arena, s.type, (int64_t)s.M * s.K, 1).p, *b = random_buffer(arena, s.type, (int64_t)s.N * s.K, 2).p;
  void *c = random_buffer(arena, sum_type(s.type), (int64_t)s.M * s.N, 3).p, *scratch = arena_alloc(arena, gemm_scratch(g, &s), 1);
  Timing t = { .seconds = seconds };
  while (timing_more(&t)) gemm_run(g, &s, 0, a, b, c, scratch);
  gemm_close(g);
  arena_release(arena, mark);
  return 2.0 * s.M * s.N * s.K / t.best;
}
#endif
