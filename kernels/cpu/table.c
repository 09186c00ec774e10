/* The kernel table of one element type. */
#include "cpu_kernels.h"

#ifdef REAL_BF16
#define WIDE kernels_cpu_f32
#else
#define WIDE FN(kernels_cpu)
#endif

/* What the compiler made of "native". */
#ifdef __AVX512F__
#define VECTORS " (avx512)"
#elif defined __AVX2__
#define VECTORS " (avx2)"
#else
#define VECTORS ""
#endif

const Kernels FN(kernels_cpu) = {
    .name = "cpu-" REAL_NAME,
    .built_for = ETALON_ARCH VECTORS,
    .real_size = sizeof(real),
    .act_size = sizeof(act),
    .wide = &WIDE,
    .widen = FN(widen),
    .narrow = FN(narrow),
    .embed_fwd = FN(embed_fwd),
    .embed_dw = FN(embed_dw),
    .rmsnorm_fwd = FN(rmsnorm_fwd),
    .rmsnorm_dx = FN(rmsnorm_dx),
    .rmsnorm_dw = FN(rmsnorm_dw),
    .linear_work = FN(linear_work),
    .linear = FN(linear),
    .linear_dw_work = FN(linear_dw_work),
    .linear_dw = FN(linear_dw),
    .linear_prepare = FN(linear_prepare),
    .linear_dw_prepare = FN(linear_dw_prepare),
    .rope = FN(rope),
    .attention_work = FN(attention_work),
    .attention_fwd = FN(attention_fwd),
    .attention_merge = FN(attention_merge),
    .attention_delta = FN(attention_delta),
    .attention_bwd = FN(attention_bwd),
    .tree_merge = FN(tree_merge),
    .bits_add = FN(bits_add),
    .swiglu_fwd = FN(swiglu_fwd),
    .swiglu_bwd = FN(swiglu_bwd),
    .route_fwd = FN(route_fwd),
    .sequence_counts = FN(sequence_counts),
    .route_bwd = FN(route_bwd),
    .rows_scatter = FN(rows_scatter),
    .rows_combine = FN(rows_combine),
    .slots_to_rows = FN(slots_to_rows),
    .rows_to_slots = FN(rows_to_slots),
    .xent_leaves = FN(xent_leaves),
    .xent_merge = FN(xent_merge),
    .xent_bwd = FN(xent_bwd),
    .add = FN(add),
    .grad_finish = FN(grad_finish),
    .norm_blocks = FN(norm_blocks),
    .adamw = FN(adamw),
};
