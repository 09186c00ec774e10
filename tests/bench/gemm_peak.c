/* What one core can do in products: a line a shape, GFLOP/s and M x N x K, with the products that training uses. Part of the rig of the benches. usage: test_gemm_peak f32|bf16 SECONDS */
#include <stdlib.h>

#include "bench/gemm_time.h"

/* Large ones, and row blocks as the linear kernels issue them. */
static const struct {
  int M, N, K;
  bool trans_b;
} shape[] = {{2048, 2048, 2048, false}, {2048, 2048, 2048, true}, {512, 512, 512, true}, {64, 512, 256, false},
             {64, 512, 256, true},      {128, 512, 256, true},    {64, 1536, 768, true}, {256, 1536, 768, true}};

int main(int argc, char **argv) {
  if (argc != 3) return fputs("usage: test_gemm_peak f32|bf16 SECONDS\n", stderr), 2;
  GemmType type = strcmp(argv[1], "bf16") ? GEMM_F32 : GEMM_BF16;
  Arena arena;
  arena_open(&arena, "bench", (size_t)1 << 30);
  for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
    GemmShape s = dense_shape(shape[i].M, shape[i].N, shape[i].K, false, shape[i].trans_b, type);
    printf("%.1f %d x %d x %d%s\n", 1e-9 * gemm_rate(&arena, "auto", s, atof(argv[2])), s.M, s.N, s.K, s.trans_b ? " (B^T)" : "");
  }
  arena_close(&arena);
  return 0;
}
