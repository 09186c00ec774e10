/* The fixed binary tree over global leaf numbers 0, 1, ...: a node is the merge of its left and right child, a lone left child is promoted
 * unchanged. Leaves are pushed in ascending order; at most one partial per level is held (a binary counter).                        */
#ifndef ETALON_TREE_H
#define ETALON_TREE_H
#include "real_math.h"

enum { TREE_DEPTH = 32 };
typedef struct TreeValue { real a, b; } TreeValue;   /* a sum in a, or a (max, sum of exp) pair */
typedef struct Tree { int top; int level[TREE_DEPTH]; int64_t index[TREE_DEPTH]; TreeValue value[TREE_DEPTH]; } Tree;
typedef TreeValue (*TreeMerge)(TreeValue left, TreeValue right);

static inline TreeValue tree_merge_sum(TreeValue l, TreeValue r) { return (TreeValue){l.a + r.a, 0}; }

static inline TreeValue tree_merge_exp(TreeValue l, TreeValue r) {
  real m = l.a > r.a ? l.a : r.a;
  return (TreeValue){m, l.b * real_exp(l.a - m) + r.b * real_exp(r.a - m)};
}

static inline void tree_push(Tree *t, int64_t index, TreeValue v, TreeMerge merge) {
  int level = 0;
  while (t->top > 0 && (index & 1) && t->level[t->top - 1] == level && t->index[t->top - 1] == index - 1) {
    v = merge(t->value[--t->top], v);
    level++, index >>= 1;
  }
  t->level[t->top] = level, t->index[t->top] = index, t->value[t->top++] = v;
}

static inline TreeValue tree_close(Tree *t, TreeMerge merge) {
  while (t->top > 1) {
    TreeValue r = t->value[--t->top];
    t->value[t->top - 1] = merge(t->value[t->top - 1], r);
  }
  return t->value[0];
}
#endif
