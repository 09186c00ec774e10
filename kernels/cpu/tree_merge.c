/* The fixed tree over values of nodes, elementwise (kernel.h). Elements are taken in chunks that stay in cache; what is merged when is
 * the same for all of them and worked out once. */
#include "cpu_kernels.h"
#include "tree.h"
#include <string.h>

enum { CHUNK = 256 };

/* Planes in ascending order of their leaves; merges[i]: how many merges of the two topmost partials come before plane i is pushed. */
typedef struct MergePlan {
  int n;
  const real **plane;
  int *merges;
} MergePlan;

static void merge_plan(MergePlan *m, const void *const *plane, const TreeNode *node, int64_t *leaf) {
  for (int i = 0; i < m->n; i++) { /* insertion sort by leaf */
    int64_t own = (int64_t)node[i].index << node[i].level;
    int at = i;
    for (; at > 0 && leaf[at - 1] > own; at--) leaf[at] = leaf[at - 1], m->plane[at] = m->plane[at - 1];
    leaf[at] = own, m->plane[at] = plane[i];
  }
  int64_t open[TREE_DEPTH];
  int top = 0;
  for (int i = 0; i < m->n; i++) {
    m->merges[i] = 0;
    for (; top > 1 && tree_meets_before(open[top - 2], open[top - 1], leaf[i]); top--) m->merges[i]++;
    open[top++] = leaf[i];
  }
}

typedef struct MergeStack {
  int top;
  const real *slot[TREE_DEPTH];
  real buffer[TREE_DEPTH][CHUNK];
} MergeStack;

static void merge_top(MergeStack *s, int64_t n) {
  const real *right = s->slot[--s->top], *left = s->slot[s->top - 1];
  real *out = s->buffer[s->top - 1];
  for (int64_t i = 0; i < n; i++) out[i] = left[i] + right[i];
  s->slot[s->top - 1] = out;
}

#ifdef REAL_BF16
static void merge_out(act *y, const real *x, int64_t n) { act_narrow(y, x, n); }
#else
static void merge_out(act *y, const real *x, int64_t n) { memmove(y, x, (size_t)n * sizeof(real)); } /* y may be a plane */
#endif

static void merge_chunk(const MergePlan *m, act *y, int64_t at, int64_t n) {
  MergeStack s;
  s.top = 0;
  for (int i = 0; i < m->n; i++) {
    for (int k = 0; k < m->merges[i]; k++) merge_top(&s, n);
    s.slot[s.top++] = m->plane[i] + at;
  }
  while (s.top > 1) merge_top(&s, n);
  merge_out(y, s.slot[0], n);
}

void FN(tree_merge)(const KCtx *c, void *y, const void *const *plane, const TreeNode *node, int n_plane, int64_t n_row, int64_t width,
                    int64_t y_stride, int64_t plane_stride) {
  const real *sorted[n_plane + 1];
  int merges[n_plane + 1];
  int64_t leaf[n_plane + 1], parts = (width + CHUNK - 1) / CHUNK;
  MergePlan m = {n_plane, sorted, merges};
  merge_plan(&m, plane, node, leaf);
#pragma omp parallel for num_threads(c->threads) schedule(static)
  for (int64_t i = 0; i < n_row * parts; i++) {
    int64_t row = i / parts, col = i % parts * CHUNK, n = width - col < CHUNK ? width - col : CHUNK;
    act *out = (act *)y + row * y_stride + col;
    if (n_plane == 0)
      memset(out, 0, (size_t)n * sizeof(act));
    else
      merge_chunk(&m, out, row * plane_stride + col, n);
  }
}
