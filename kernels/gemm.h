/* Matrix products for the CPU kernels: C[M,N] = op(A) op(B) (+ C), row-major, through one provider chosen at start-up.
 * Static shapes: a provider may build something per shape (`gemm_prepare`, before step 1); a call with a shape that was not announced is
 * a bug. Every call runs on the calling thread; callers run many at once. Which kernel does a shape depends on the shape and on the processor: oneDNN
 * does dense products with untransposed A in FP32 and, where there are tiles (AMX), in BF16; the plain kernel does all others (weight
 * gradients, FP64) and everything under provider "plain".                                                                         */
#ifndef ETALON_GEMM_H
#define ETALON_GEMM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel.h"
typedef struct Gemm Gemm;
/* Element type of A and B; C is of the same type, but float where they are BF16. */
typedef enum { GEMM_F32, GEMM_F64, GEMM_BF16, N_GEMM_TYPE } GemmType;
static inline size_t gemm_in_size(GemmType t) { return t == GEMM_F64 ? 8 : t == GEMM_F32 ? 4 : 2; }
static inline size_t gemm_out_size(GemmType t) { return t == GEMM_F64 ? 8 : 4; }
typedef struct GemmShape {
  int M, N, K; bool trans_a, trans_b;   /* A is [M,K] or, transposed, [K,M]; B is [K,N] or [N,K] */
  int lda, ldb, ldc;                    /* row strides in elements */
  bool accumulate;                      /* C += */
  GemmType type;
} GemmShape;

/* provider: "onednn" | "plain" | "auto" (onednn where it was built in, else plain). NULL + message when not available. */
Gemm    *gemm_open(const char *provider, int threads, char *why, size_t why_size);
void     gemm_close(Gemm *g);
GemmInfo gemm_info(const Gemm *g);
void     gemm_prepare(Gemm *g, const GemmShape *s);                       /* idempotent */
size_t   gemm_scratch(Gemm *g, const GemmShape *s);                       /* bytes of `scratch`, 64-byte aligned; prepares */
size_t   gemm_scratch_known(Gemm *g, const GemmShape *s);                 /* the same for use in a step: never prepares */
/* thread: 0 .. threads-1, one call at a time each */
void     gemm_run(Gemm *g, const GemmShape *s, int thread, const void *A, const void *B, void *C, void *scratch);
/* Canonical mode rests on this: in products of exactly ROW_BLOCK rows of the given (N, K), permuting rows or zeroing neighbours
 * changes no bit. s: M = ROW_BLOCK, A as it is. */
bool     gemm_self_test(Gemm *g, const GemmShape *s, char *why, size_t why_size);
#endif
