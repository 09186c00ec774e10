/* Gated activation silu(gate) * up (Shazeer 2020), with the routing weight folded in. */
#include "cpu_kernels.h"
#include "lanes.h"
#include "tree.h"

static inline real sigmoid(real x) { return R(1.0) / (R(1.0) + real_exp(-x)); }

static void swiglu_row(act *restrict y, const act *restrict g, const act *restrict u, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = act_store(act_load(g[i]) * sigmoid(act_load(g[i])) * act_load(u[i]));
}

static void swiglu_row_weighted(act *restrict y, const act *restrict g, const act *restrict u, real w, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = act_store(act_load(g[i]) * sigmoid(act_load(g[i])) * act_load(u[i]) * w);
}

void FN(swiglu_fwd)(const KCtx *c, void *y, const void *gate, const void *up, const void *w, const Shards *width, int64_t rows) {
  const real *weight = w;
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    for (int i = width->first; i < width->first + width->count; i++) {
      int64_t n = shard_width(width, i), at = shard_local(width, i) * rows + r * n;
      const act *g = (const act *)gate + at, *u = (const act *)up + at;
      if (weight)
        swiglu_row_weighted((act *)y + at, g, u, weight[r], n);
      else
        swiglu_row((act *)y + at, g, u, n);
    }
  }
}

static inline real swiglu_element(act *d_gate, act *d_up, real d, act gate, act up, real w) {
  real g = act_load(gate), u = act_load(up);
  real s = sigmoid(g), silu = g * s, dw = d * w;
  *d_up = act_store(dw * silu);
  *d_gate = act_store(dw * u * (s * REAL_FMA(g, R(1.0) - s, R(1.0))));
  return silu * u;
}

/* Returns <dy, silu(gate) up>. */
static real swiglu_row_backward(act *restrict d_gate, act *restrict d_up, const real *restrict dy, const act *restrict g,
                                const act *restrict u, real w, int64_t n) {
  real v[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++)
      v[l] = REAL_FMA(dy[i + l], swiglu_element(d_gate + i + l, d_up + i + l, dy[i + l], g[i + l], u[i + l], w), v[l]);
  for (int l = 0; i + l < n; l++)
    v[l] = REAL_FMA(dy[i + l], swiglu_element(d_gate + i + l, d_up + i + l, dy[i + l], g[i + l], u[i + l], w), v[l]);
  return lanes_sum(v);
}

void FN(swiglu_bwd)(const KCtx *c, void *d_gate, void *d_up, void *dw, const void *dy, const void *gate, const void *up, const void *w,
                    const Shards *width, int64_t rows) {
  const real *weight = w;
  real *d_weight = dw;
  TreeNode root[TREE_ROOTS];
  int n_root = shard_roots(width, root);
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    for (int k = 0; k < n_root; k++) {
      int first = root[k].index << root[k].level, end = (root[k].index + 1) << root[k].level;
      Tree tree = {.top = 0};
      for (int i = first > width->first ? first : width->first; i < end && i < width->first + width->count; i++) {
        int64_t n = shard_width(width, i), at = shard_local(width, i) * rows + r * n;
        if (n == 0) continue;
        real dot = swiglu_row_backward((act *)d_gate + at, (act *)d_up + at, (const real *)dy + at, (const act *)gate + at,
                                       (const act *)up + at, weight ? weight[r] : R(1.0), n);
        tree_push(&tree, i, (TreeValue){dot, 0}, tree_merge_sum);
      }
      if (d_weight) d_weight[k * rows + r] = tree_close(&tree, tree_merge_sum).a;
    }
  }
}
