/* Speed of products: GEMM shapes as the linear kernels issue them, then the kernels themselves, on 1 and 2 threads.
 * Prints, asserts nothing. */
#include "bench/gemm_time.h"

enum { MAX_GROUP = 64, MAX_LEAF = 4096 };
static const double SECONDS = 0.15; /* per measurement */

static const char *const type_name[N_GEMM_TYPE] = {[GEMM_F32] = "f32", [GEMM_F64] = "f64", [GEMM_BF16] = "bf16"};

static void bench_gemm(Arena *arena, const char *provider, GemmShape s) {
  printf("%-7s %-4s  %5d x %5d x %5d %-4s%-4s %7.1f GFLOP/s\n", provider, type_name[s.type], s.M, s.N, s.K, s.trans_a ? "A^T" : "",
         s.trans_b ? "B^T" : "", 1e-9 * gemm_rate(arena, provider, s, SECONDS));
}

static void bench_gemms(Arena *arena) {
  static const struct {
    int M, N, K;
    bool ta, tb;
  } shape[] = {
      {2048, 2048, 2048, false, false}, {64, 512, 256, false, true},  {64, 512, 256, false, false},  {64, 256, 512, false, true},
      {64, 256, 512, false, false},     {64, 1536, 768, false, true}, {256, 1536, 768, false, true}, {16, 512, 256, false, true},
      {128, 512, 16, true, false},      {128, 512, 64, true, false},  {128, 512, 256, true, false},  {256, 256, 64, true, false},
  };
  for (int kind = 0; kind < 2 * N_GEMM_TYPE; kind++)
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
      bench_gemm(arena, kind & 1 ? "plain" : "auto",
                 dense_shape(shape[i].M, shape[i].N, shape[i].K, shape[i].ta, shape[i].tb, (GemmType)(kind / 2)));
}

typedef struct Layer {
  int64_t tokens, in, out;
  int experts, shards;
  int64_t window;
  bool canonical;
  GemmType type;
} Layer;

typedef struct Data {
  Rows rows;
  RowGroup group[MAX_GROUP];
  RowLeaf leaf[MAX_LEAF];
  int64_t offset[8];
} Data;

/* Rows dealt evenly to experts; each window sends its share. */
static void fill_rows(Data *d, const Layer *l) {
  int64_t per_expert = l->tokens / l->experts, per_leaf = l->window / l->experts;
  int leaf = 0;
  for (int e = 0; e < l->experts; e++) {
    d->group[e] = (RowGroup){.expert = e, .row = e * per_expert, .n_row = per_expert, .leaf = leaf, .n_leaf = (int)(per_expert / per_leaf)};
    for (int64_t r = 0; r < per_expert; r += per_leaf)
      d->leaf[leaf++] = (RowLeaf){.row = e * per_expert + r, .n_row = per_leaf, .n_token = l->window};
  }
  d->rows = (Rows){
      .n_row = l->tokens, .n_group = l->experts, .group = d->group, .leaf = d->leaf, .blocked = l->canonical, .row_bound = l->tokens};
}

static void bench_layer(Arena *arena, const Layer *l, int threads) {
  ArenaMark mark = arena_mark(arena);
  Data *d = ARENA_NEW(arena, Data, 1);
  fill_rows(d, l);
  const Kernels *k = kernels_of(l->type);
  Shards cut = {.n = l->shards, .count = l->shards, .units = l->out, .unit = 1};
  int64_t n_weight = l->in * l->out;
  for (int j = 0; j < l->shards; j++) d->offset[j] = shard_begin(&cut, j) * l->in;
  Weight w = {.data = random_buffer(arena, l->type, l->experts * n_weight, 1).p, .expert_stride = n_weight, .offset = d->offset};
  uint64_t fault = 0;
  Accum acc = {.data = arena_alloc(arena, (size_t)(l->experts * n_weight), 8),
               .expert_stride = n_weight,
               .offset = d->offset,
               .exact = l->canonical,
               .shift = 35,
               .fault = &fault};
  LinArgs fwd = {.mode = LIN_MAP, .trans = true, .n_fixed = l->in, .cut = cut, .w = w},
          dx = {.mode = LIN_REDUCE, .n_fixed = l->in, .cut = cut, .w = w};
  LinGrad dw = {.cut_out = true, .n_fixed = l->in, .cut = cut, .acc = acc};
  void *x = random_buffer(arena, l->type, l->tokens * l->in, 2).p, *y = random_buffer(arena, l->type, l->tokens * l->out, 3).p;
  KCtx c = {.threads = threads, .gemm = open_gemm("auto", threads)};
  double gflop = 2e-9 * (double)l->tokens * (double)n_weight;
  void *dxs = random_buffer(arena, l->type, l->tokens * l->in, 4).p;
  Timing tf = {.seconds = SECONDS}, tx = tf, tw = tf;
  c.work = arena_alloc(arena, k->linear_work(&c, &fwd, &d->rows), 1);
  while (timing_more(&tf)) k->linear(&c, y, x, &fwd, &d->rows);
  c.work = arena_alloc(arena, k->linear_work(&c, &dx, &d->rows), 1);
  while (timing_more(&tx)) k->linear(&c, dxs, y, &dx, &d->rows);
  c.work = arena_alloc(arena, k->linear_dw_work(&c, &dw, &d->rows, l->window), 1);
  while (timing_more(&tw)) k->linear_dw(&c, y, x, &dw, &d->rows);
  printf("%-4s %-9s %2d experts %d shards, window %4ld, %5ld rows, %4ld -> %4ld, %d threads: fwd %6.1f  dX %6.1f  dW %6.1f GFLOP/s\n",
         type_name[l->type], l->canonical ? "canonical" : "native", l->experts, l->shards, (long)l->window, (long)l->tokens, (long)l->in,
         (long)l->out, threads, gflop / tf.best, gflop / tx.best, gflop / tw.best);
  gemm_close(c.gemm);
  arena_release(arena, mark);
}

int main(void) {
  Arena arena;
  arena_open(&arena, "bench", (size_t)1 << 30);
  bench_gemms(&arena);
  static const Layer layers[] = {
      {2048, 256, 512, 1, 1, 2048, false, GEMM_F32},  {2048, 256, 512, 1, 1, 256, true, GEMM_F32},
      {2048, 256, 512, 1, 2, 128, true, GEMM_F32},    {4096, 256, 512, 8, 1, 4096, false, GEMM_F32},
      {4096, 256, 512, 8, 1, 512, true, GEMM_F32},    {4096, 256, 512, 8, 1, 128, true, GEMM_F32},
      {2048, 768, 1536, 1, 1, 256, true, GEMM_F32},   {2048, 768, 1536, 1, 1, 2048, false, GEMM_F32},
      {4096, 256, 512, 8, 1, 4096, false, GEMM_BF16}, {4096, 256, 512, 8, 1, 512, true, GEMM_BF16},
      {2048, 768, 1536, 1, 1, 256, true, GEMM_BF16},  {2048, 768, 1536, 1, 1, 2048, false, GEMM_BF16},
  };
  for (int threads = 1; threads <= 2; threads++)
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) bench_layer(&arena, &layers[i], threads);
  arena_close(&arena);
  return 0;
}
