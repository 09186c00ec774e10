/* oneDNN as a provider of FP32 and BF16 products: one matmul primitive per shape with the caller's scratchpad, and per thread the memory objects
 * that a call points at its data. A primitive is built and run as if the machine had one core, so its bits don't depend on who calls it.
 * Left to the plain kernel: FP64, strided matrices (oneDNN would allocate buffers in the call), A^T (no faster, and slower to build), and BF16 on
 * processors without tiles (AMX): their BF16 instructions are half as fast as widening to FP32. */
#include "gemm_provider.h"
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

typedef struct Args {
  dnnl_memory_t a, b, c, scratch;
} Args;

typedef struct Product {
  dnnl_primitive_t primitive;
  const dnnl_stream_t *stream; /* [threads] */
  Args *args;                  /* [threads] */
  struct Product *next;
} Product;

typedef struct Onednn {
  dnnl_engine_t engine;
  dnnl_stream_t *stream; /* [threads] */
  int threads;
  Product *products;
} Onednn;

typedef struct Sides {
  dnnl_memory_desc_t a, b, c;
} Sides;

static void *onednn_open(GemmPool *pool, int threads, const char **version) {
  Onednn *o = gemm_pool_alloc(pool, 1, sizeof *o);
  o->threads = threads;
  o->stream = gemm_pool_alloc(pool, (size_t)threads, sizeof *o->stream);
  if (dnnl_engine_create(&o->engine, dnnl_cpu, 0)) return NULL;
  for (int i = 0; i < threads; i++)
    if (dnnl_stream_create(&o->stream[i], o->engine, dnnl_stream_default_flags)) return NULL;
  enum { TEXT = 64 };
  const dnnl_version_t *v = dnnl_version();
  char *text = gemm_pool_alloc(pool, TEXT, 1);
  snprintf(text, TEXT, "%d.%d.%d", v->major, v->minor, v->patch);
  *version = text;
  return o;
}

static void destroy_args(Args *a) {
  dnnl_memory_destroy(a->a);
  dnnl_memory_destroy(a->b);
  dnnl_memory_destroy(a->c);
  dnnl_memory_destroy(a->scratch);
}

static void onednn_close(void *self) {
  Onednn *o = self;
  for (Product *p = o->products; p; p = p->next) {
    for (int i = 0; i < o->threads; i++) destroy_args(&p->args[i]);
    dnnl_primitive_destroy(p->primitive);
  }
  for (int i = 0; i < o->threads; i++) dnnl_stream_destroy(o->stream[i]);
  dnnl_engine_destroy(o->engine);
}

static bool describe_side(dnnl_memory_desc_t *d, int rows, int cols, int ld, bool trans, dnnl_data_type_t type) {
  dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
  return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides) == dnnl_success;
}

static bool describe_sides(Sides *d, const GemmShape *s) {
  dnnl_data_type_t in = s->type == GEMM_BF16 ? dnnl_bf16 : dnnl_f32;
  return describe_side(&d->a, s->M, s->K, s->lda, s->trans_a, in) && describe_side(&d->b, s->K, s->N, s->ldb, s->trans_b, in) &&
         describe_side(&d->c, s->M, s->N, s->ldc, false, dnnl_f32);
}

static dnnl_status_t add_sum(dnnl_primitive_attr_t attr) {
  dnnl_post_ops_t ops;
  dnnl_status_t st = dnnl_post_ops_create(&ops);
  if (st) return st;
  st = dnnl_post_ops_append_sum(ops, 1.0f);
  if (!st) st = dnnl_primitive_attr_set_post_ops(attr, ops);
  dnnl_post_ops_destroy(ops);
  return st;
}

/* The first implementation that works in the caller's scratchpad; oneDNN calls those "brg:...". */
static bool describe_product(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const Sides *d, bool accumulate) {
  dnnl_primitive_attr_t attr;
  if (dnnl_primitive_attr_create(&attr)) return false;
  dnnl_matmul_desc_t md;
  dnnl_status_t st = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
  if (!st && accumulate) st = add_sum(attr);
  if (!st) st = dnnl_matmul_desc_init(&md, &d->a, &d->b, NULL, &d->c);
  if (!st) st = dnnl_primitive_desc_create(pd, &md, attr, engine, NULL);
  dnnl_primitive_attr_destroy(attr);
  if (st) return false;
  const char *how = "";
  dnnl_primitive_desc_query(*pd, dnnl_query_impl_info_str, 0, &how);
  if (strncmp(how, "brg:", 4) == 0) return true;
  dnnl_primitive_desc_destroy(*pd);
  return false;
}

static bool make_args(Args *a, const Onednn *o, const Sides *d, const dnnl_memory_desc_t *scratch) {
  return !dnnl_memory_create(&a->a, &d->a, o->engine, DNNL_MEMORY_NONE) && !dnnl_memory_create(&a->b, &d->b, o->engine, DNNL_MEMORY_NONE) &&
         !dnnl_memory_create(&a->c, &d->c, o->engine, DNNL_MEMORY_NONE) &&
         !dnnl_memory_create(&a->scratch, scratch, o->engine, DNNL_MEMORY_NONE);
}

static bool make_product(Onednn *o, GemmPool *pool, const GemmShape *s, GemmPlan *plan) {
  Sides d;
  dnnl_primitive_desc_t pd;
  if (!describe_sides(&d, s) || !describe_product(&pd, o->engine, &d, s->accumulate)) return false;
  Product *p = gemm_pool_alloc(pool, 1, sizeof *p);
  p->args = gemm_pool_alloc(pool, (size_t)o->threads, sizeof *p->args);
  p->stream = o->stream;
  const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
  bool ok = !dnnl_primitive_create(&p->primitive, pd);
  for (int i = 0; i < o->threads && ok; i++) ok = make_args(&p->args[i], o, &d, scratch);
  plan->state = p;
  plan->scratch = dnnl_memory_desc_get_size(scratch);
  p->next = o->products;
  o->products = p;
  dnnl_primitive_desc_destroy(pd);
  return ok;
}

static bool has_tiles(void) { return dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_amx; }

static bool onednn_prepare(void *self, GemmPool *pool, const GemmShape *s, GemmPlan *plan) {
  if (s->type == GEMM_F64 || s->trans_a || (s->type == GEMM_BF16 && !has_tiles())) return false;
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  bool ok = make_product(self, pool, s, plan);
  omp_set_num_threads(threads);
  return ok;
}

static void onednn_run(const void *state, const GemmShape *s, int thread, const void *A, const void *B, void *C, void *scratch) {
  (void)s;
  const Product *p = state;
  const Args *m = &p->args[thread];
  /* oneDNN's handles are not const; A and B are only read. */
  dnnl_memory_set_data_handle(m->a, (void *)(uintptr_t)A);
  dnnl_memory_set_data_handle(m->b, (void *)(uintptr_t)B);
  dnnl_memory_set_data_handle(m->c, C);
  dnnl_memory_set_data_handle(m->scratch, scratch);
  dnnl_exec_arg_t arg[] = {{DNNL_ARG_SRC, m->a}, {DNNL_ARG_WEIGHTS, m->b}, {DNNL_ARG_DST, m->c}, {DNNL_ARG_SCRATCHPAD, m->scratch}};
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  dnnl_status_t st = dnnl_primitive_execute(p->primitive, p->stream[thread], sizeof arg / sizeof *arg, arg);
  omp_set_num_threads(threads);
  if (st) {
    fprintf(stderr, "gemm: oneDNN failed with status %d\n", (int)st);
    __builtin_trap();
  }
}

const GemmProvider gemm_onednn = {
    .name = "onednn", .open = onednn_open, .close = onednn_close, .prepare = onednn_prepare, .run = onednn_run};
