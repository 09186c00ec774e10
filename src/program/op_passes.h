/* The passes of every op, for the table in op_table.c. Each op_*.c file holds builders and passes of one family. */
#ifndef ETALON_OP_PASSES_H
#define ETALON_OP_PASSES_H
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

/* The counts of one expert exchange, laid in an int32 plan value [1, plan_width]: received [sources][n_window_peer][most experts + 1] (last: tokens of the window), then
 * sent [n_expert]. */
int64_t plan_width(const Dims *d);
int     plan_experts_max(const Dims *d);
const int32_t *plan_received(const Dims *d, const int32_t *plan, int source, int64_t window);
const int32_t *plan_sent(const Dims *d, const int32_t *plan);

/* Rows for the linear kernels, laid in the front of the call's workspace. */
size_t rows_work(const Program *p, const Op *op);
Rows   rows_build(const OpCall *c, const int32_t *plan, void *work);
/* Most planes that the members of a group have together: a cut of so many ranks is refused when the program is built. */
enum { PLANES_MAX = 2048 };
/* Planes that all members of a group have together of a value whose tree is over these blocks. */
int    plane_bound(const Shards *blocks, int n_member);
/* What follows `used` bytes of the workspace, as a kernel context. */
KCtx   work_after(const OpCall *c, size_t used);
#endif
