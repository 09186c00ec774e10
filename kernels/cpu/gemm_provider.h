/* What a GEMM provider is, for gemm*.c and plain_gemm.c alone; callers see gemm.h. */
#ifndef ETALON_GEMM_PROVIDER_H
#define ETALON_GEMM_PROVIDER_H
#include "gemm.h"

/* Memory that lives as long as the Gemm: one mapping, touched as it is used. */
typedef struct GemmPool { char *base; size_t used, cap; } GemmPool;
void *gemm_pool_alloc(GemmPool *p, size_t n, size_t size);   /* n * size bytes, zeroed, 64-byte aligned; stops the process when full */

/* A product of one shape as its provider keeps it. */
typedef struct GemmPlan { void *state; size_t scratch; } GemmPlan;

typedef struct GemmProvider {
  const char *name;
  void *(*open)(GemmPool *pool, int threads, const char **version);   /* NULL: not usable on this machine */
  void  (*close)(void *self);
  /* Called once per shape, never twice at a time. False: the provider leaves this shape to the next one in the table. */
  bool  (*prepare)(void *self, GemmPool *pool, const GemmShape *s, GemmPlan *plan);
  void  (*run)(const void *state, const GemmShape *s, int thread, const void *A, const void *B, void *C, void *scratch);
} GemmProvider;

extern const GemmProvider gemm_plain, gemm_onednn;

/* plain_gemm.c. Each element of C is one chain of fused multiply-adds in ascending k, starting at 0 or at C: no bit of it depends on
 * M, N, strides, other elements or the blocking. BF16 elements are widened to float first. `scratch`: 64-byte aligned.             */
size_t plain_gemm_scratch_f32(const GemmShape *s);
size_t plain_gemm_scratch_f64(const GemmShape *s);
size_t plain_gemm_scratch_bf16(const GemmShape *s);
void   plain_gemm_f32(const GemmShape *s, const void *A, const void *B, void *C, void *scratch);
void   plain_gemm_f64(const GemmShape *s, const void *A, const void *B, void *C, void *scratch);
void   plain_gemm_bf16(const GemmShape *s, const void *A, const void *B, void *C, void *scratch);
#endif
