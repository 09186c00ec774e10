/* The passes of every op, for the table in op_table.c. Each op_*.c file holds builders and passes of one family. */
#ifndef ETALON_OP_PASSES_H
#define ETALON_OP_PASSES_H
#include "base/align.h"
#include "program/op.h"

void embed_fwd(const OpCall *c);      void embed_dw(const OpCall *c);
void rmsnorm_fwd(const OpCall *c);    void rmsnorm_dx(const OpCall *c);     void rmsnorm_dw(const OpCall *c);
void linear_fwd(const OpCall *c);     void linear_dx(const OpCall *c);      void linear_dw(const OpCall *c);
void rope_fwd(const OpCall *c);       void rope_dx(const OpCall *c);
void attention_fwd(const OpCall *c);  void attention_dx(const OpCall *c);
void swiglu_fwd(const OpCall *c);     void swiglu_dx(const OpCall *c);
void add_fwd(const OpCall *c);
void route_fwd(const OpCall *c);      void route_dx(const OpCall *c);
void exchange_counts_fwd(const OpCall *c);
void permute_fwd(const OpCall *c);    void permute_dx(const OpCall *c);
void permute_weights_fwd(const OpCall *c); void permute_weights_dx(const OpCall *c);
void dispatch_fwd(const OpCall *c);   void dispatch_dx(const OpCall *c);
void return_fwd(const OpCall *c);     void return_dx(const OpCall *c);
void gather_fwd(const OpCall *c);     void gather_dx(const OpCall *c);
void reduce_fwd(const OpCall *c);     void reduce_dx(const OpCall *c);
void combine_fwd(const OpCall *c);    void combine_dx(const OpCall *c);
void xent_fwd(const OpCall *c);       void xent_dx(const OpCall *c);

size_t linear_work(const OpWorkArgs *w, Pass pass);
size_t attention_work(const OpWorkArgs *w, Pass pass);
size_t exchange_counts_work(const OpWorkArgs *w, Pass pass);
size_t dispatch_work(const OpWorkArgs *w, Pass pass);
size_t return_work(const OpWorkArgs *w, Pass pass);
size_t gather_work(const OpWorkArgs *w, Pass pass);
size_t reduce_work(const OpWorkArgs *w, Pass pass);
size_t route_work(const OpWorkArgs *w, Pass pass);
size_t xent_work(const OpWorkArgs *w, Pass pass);
void   linear_prepare(const OpWorkArgs *w);
int64_t exchange_counts_rows(const OpCall *c);

void   attention_traffic(const OpCall *c, Pass pass, Sketch *s);
void   route_traffic(const OpCall *c, Pass pass, Sketch *s);
void   exchange_counts_traffic(const OpCall *c, Pass pass, Sketch *s);
void   dispatch_traffic(const OpCall *c, Pass pass, Sketch *s);
void   return_traffic(const OpCall *c, Pass pass, Sketch *s);
void   gather_traffic(const OpCall *c, Pass pass, Sketch *s);
void   reduce_traffic(const OpCall *c, Pass pass, Sketch *s);
void   xent_traffic(const OpCall *c, Pass pass, Sketch *s);

double linear_flops(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row);
double attention_flops(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row);

/* A plan value: the counts of one expert exchange, int32 [1, counts_width]: received [sources][n_window_peer][most experts + 1] (last: tokens of the window), then
 * sent [n_expert]. Sources are the members of the expert group, place ep * n_etp + etp. */
int64_t counts_width(const Dims *d);
int     counts_sources(const Dims *d);
int     counts_experts(const Dims *d);      /* the most that a member has */
const int32_t *counts_received(const Dims *d, const int32_t *plan, int source, int64_t window);
const int32_t *counts_sent(const Dims *d, const int32_t *plan);

/* Most planes that the members of a group have together: a cut of so many ranks is refused when the program is built. */
enum { PLANES_MAX = 2048 };
/* Planes that all members of a group have together of a value whose tree is over these blocks. */
int    plane_bound(const Shards *blocks, int n_member);
/* What follows `used` bytes of the workspace, as a kernel context. */
static inline KCtx work_after(const OpCall *c, size_t used) {
  KCtx k = c->env->kctx;
  k.work = (char *)c->work + used;
  return k;
}
/* Parts of a workspace begin at whole lines: the bytes that a part of n takes. */
enum { WORK_ALIGN = 64 };
static inline size_t work_align(size_t n) { return align_up(n, WORK_ALIGN); }
#endif
