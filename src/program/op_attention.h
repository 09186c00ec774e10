/* Private to the attention op: the ways in which ranks bring the queries and keys of a sequence together, a row of functions each. All work on the same kernels;
 * they differ in what travels over CP: keys and values (gather), heads (all-to-all), or keys and values block by block with their gradients (ring). */
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
extern const AttnExchange attn_gather, attn_alltoall, attn_ring;

AttnArgs attention_args(const Op *op);
/* Log-sum-exps of queries: a value that lives until the backward. */
ValId    attention_lse(Program *p, const char *name, RowKind rows, int64_t heads);

/* ---- key heads whose query heads are on several TP ranks (attn_heads.c) ---- */
/* The key blocks that hold the key heads of these query blocks. */
Shards   attention_needs(const Shards *q, const Shards *kv);
/* Does any TP rank need other key blocks than it has? */
bool     heads_are_shared(const Dims *d, const Shards *q_own, const Shards *kv_own);
/* Of the op: kv are the blocks that its queries need. Rows are those of the TP view; seg is scratch of heads_work bytes.
 * fetch: blocks [rows, kv_own] from their owners to [rows, kv], act.
 * return: dk or dv, planes [attention_planes][rows, kv], real, to the owners, who get `heads_roots` planes [rows, kv_own] and complete the tree: out [rows, kv_own],
 * of the type that `to` calls act. */
size_t   heads_work(const Program *p, const Op *op);
int64_t  heads_roots(const Program *p, const Op *op);
void     heads_fetch(const OpCall *c, RowSeg *seg, const void *own, void *need);
void     heads_return(const OpCall *c, const Kernels *to, RowSeg *seg, const void *planes, void *roots, void *out);
void     heads_fetch_traffic(const OpCall *c, RowSeg *seg, Sketch *s);
void     heads_return_traffic(const OpCall *c, RowSeg *seg, Sketch *s);

enum { ATTN_AXES = AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP) };
static inline int attention_place(const Dims *d, int cp, int tp) { return cp * d->n_tp + tp; }      /* of the group over ATTN_AXES */
#endif
