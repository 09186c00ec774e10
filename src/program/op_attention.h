/* Private to the attention op: the ways in which ranks bring the queries and keys of a sequence together, a row of functions each. All work on the same kernels;
 * they differ in what travels over CP: keys and values (gather), heads (all-to-all), or keys and values chunk by chunk with their gradients (ring). */
#ifndef ETALON_OP_ATTENTION_H
#define ETALON_OP_ATTENTION_H
#include "program/op_passes.h"

typedef struct AttnExchange {
  /* Declares the op's outputs from the second on, log-sum-exps first, and returns how many outputs there are. attr: q_own, kv_own, head_dim are given; q and kv,
   * the heads that this rank's kernels work on, are to be set. */
  int (*open)(Program *p, const char *name, RowKind rows, OpAttr *attr, ValId *out);
  uint8_t x_in;                     /* forward inputs that the backward reads */
  ViewKind view;                    /* whose queries this rank's kernels work on */
  void (*fwd)(const OpCall *c), (*dx)(const OpCall *c);
  size_t (*work)(const OpWorkArgs *w, Pass pass);
  void (*traffic)(const OpCall *c, Pass pass, Sketch *s);      /* NULL: nothing is sent */
} AttnExchange;
extern const AttnExchange attn_gather, attn_alltoall;

AttnArgs attention_args(const Op *op);
/* Log-sum-exps of queries: a value that lives until the backward. */
ValId    attention_lse(Program *p, const char *name, RowKind rows, int64_t heads);
/* The key blocks that hold the key heads of these query blocks. */
Shards   attention_needs(const Shards *q, const Shards *kv);

enum { ATTN_AXES = AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP), ATTN_ALIGN = 64 };
static inline int    attention_place(const Dims *d, int cp, int tp) { return cp * d->n_tp + tp; }      /* of the group over ATTN_AXES */
static inline size_t attention_align(size_t n) { return (n + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN; }
#endif
