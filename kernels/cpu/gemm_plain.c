/* The plain kernel (plain_gemm.c) as a provider: does every shape and keeps nothing. */
#include "gemm_provider.h"

static size_t (*const scratch_of[N_GEMM_TYPE])(const GemmShape *s) = {
    [GEMM_F32] = plain_gemm_scratch_f32, [GEMM_F64] = plain_gemm_scratch_f64, [GEMM_BF16] = plain_gemm_scratch_bf16};
static void (*const product_of[N_GEMM_TYPE])(const GemmShape *s, const void *A, const void *B, void *C, void *scratch) = {
    [GEMM_F32] = plain_gemm_f32, [GEMM_F64] = plain_gemm_f64, [GEMM_BF16] = plain_gemm_bf16};

static void *plain_open(GemmPool *pool, int threads, const char **version) {
  (void)threads;
  *version = "1";
  return pool->base;
}

static void plain_close(void *self) { (void)self; }

static bool plain_prepare(void *self, GemmPool *pool, const GemmShape *s, GemmPlan *plan) {
  (void)self, (void)pool;
  plan->scratch = scratch_of[s->type](s);
  return true;
}

static void plain_run(const void *state, const GemmShape *s, int thread, const void *A, const void *B, void *C, void *scratch) {
  (void)state, (void)thread;
  product_of[s->type](s, A, B, C, scratch);
}

const GemmProvider gemm_plain = {.name = "plain", .open = plain_open, .close = plain_close, .prepare = plain_prepare, .run = plain_run};
