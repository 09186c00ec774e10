/* The fixed binary tree over global leaf numbers 0, 1, ... (kernel.h): a node is the merge of its left and right child, a lone child
 * is promoted unchanged. Leaves are pushed in ascending order, absent ones left out; a partial stays open while the next leaf may
 * still be below the same parent, so at most one per level is held. */
#ifndef ETALON_TREE_H
#define ETALON_TREE_H
#include "real_math.h"

enum { TREE_DEPTH = 32 };
typedef struct TreeValue { real a, b; } TreeValue;   /* a sum in a, or a (max, sum of exp) pair */
typedef struct Tree { int top; int64_t leaf[TREE_DEPTH] /* any leaf of each partial */; TreeValue value[TREE_DEPTH]; } Tree;
typedef TreeValue (*TreeMerge)(TreeValue left, TreeValue right);

static inline TreeValue tree_merge_sum(TreeValue l, TreeValue r) { return (TreeValue){l.a + r.a, 0}; }

static inline TreeValue tree_merge_exp(TreeValue l, TreeValue r) {
  real m = l.a > r.a ? l.a : r.a;
  return (TreeValue){m, l.b * real_exp(l.a - m) + r.b * real_exp(r.a - m)};
}

/* For leaves a < b < c: do a and b meet below the node where c joins them? The highest bit in which two numbers differ is the level
 * where they meet; these levels are never equal. */
static inline bool tree_meets_before(int64_t a, int64_t b, int64_t c) {
  return (a ^ b) < (b ^ c);
}

static inline void tree_push(Tree *t, int64_t leaf, TreeValue v, TreeMerge merge) {
  for (; t->top > 1 && tree_meets_before(t->leaf[t->top - 2], t->leaf[t->top - 1], leaf); t->top--)
    t->value[t->top - 2] = merge(t->value[t->top - 2], t->value[t->top - 1]);
  t->leaf[t->top] = leaf, t->value[t->top++] = v;
}

static inline TreeValue tree_close(Tree *t, TreeMerge merge) {
  while (t->top > 1) {
    TreeValue r = t->value[--t->top];
    t->value[t->top - 1] = merge(t->value[t->top - 1], r);
  }
  return t->top > 0 ? t->value[0] : (TreeValue){0, 0};
}
#endif
