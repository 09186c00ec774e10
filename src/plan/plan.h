/* Memory before running: lifetimes become offsets and bytes. Knows no MPI and no device: it plans on a laptop what a cluster would do. */
#ifndef ETALON_PLAN_H
#define ETALON_PLAN_H
#include "program/step.h"

enum { PLAN_LINE = 64 };      /* every buffer begins at a multiple of PLAN_LINE bytes */
typedef struct MemPlan {
  size_t bytes[N_REGION];           /* size of each region: the largest any of the steps needs */
  size_t base[N_REGION];            /* where it begins in its slab (P, F, W, S: device; HOST: host) */
  size_t device, host;              /* slabs */
  size_t live[N_REGION];            /* bytes live at the region's fullest instruction (the rest of bytes[] is gaps) */
  int    peak_ins[N_REGION], peak_step[N_REGION];
} MemPlan;

/* Places every buffer of the steps that share one slab. Regions F, W, S of different steps overlap (they never run together); P and HOST are laid out alike. */
void plan_memory(MemPlan *m, Arena *a, Step *const *step, int n_step);
/* ERR_MEMORY: the limit, the smallest one that would do (need_device, need_host: the most that any rank needs), the largest buffers of this rank. 0: no limit. */
bool plan_check_limits(const MemPlan *m, size_t need_device, size_t need_host, Arena *a, Step *const *step, int n_step, size_t device_limit, size_t host_limit, Err *e);

/* What a run with these micro-batches and row counts touches, in bytes of whole lines, region by region: what exec measures on a painted slab.
 * mb [n_mb], n_row [n_guard] of step `s`; grown by each call of plan_touch. Lives in the arena. */
typedef struct LineSpan { size_t from, end; } LineSpan;
typedef struct Touched { Arena *a; LineSpan *span[N_REGION]; /* disjoint */ int n[N_REGION]; } Touched;
Touched touched_new(Arena *a);
void    plan_touch(const Step *s, const DealMb *mb, const int64_t *n_row, Touched *t);
size_t  touched_bytes(const Touched *t, Region r);

/* How many rows go where, for every (micro-batch, exchange): what the counts of that exchange will be (op_passes.h) and the rows that this rank receives. */
typedef struct Routed { int64_t *n_row; const int32_t **plan; /* both [n_guard] */ } Routed;
/* From the router's own formula (balanced, all_to_one: a Routing of config.h), else counts that no routing exceeds in bytes sent; PLAN_ONE_ROW: in messages sent. */
enum { PLAN_ONE_ROW = -1 };
bool   plan_routing_known(int routing);
Routed plan_routed(const Step *s, Arena *a, const Deal *d, int routing);
/* Rows that a window of n tokens, the first of them number `first` of the global batch, sends to expert e under a known routing. */
int64_t plan_window_rows(int routing, int n_expert, int top_k, int64_t first, int64_t n, int e);
void   plan_rows(const Step *s, const Deal *d, int routing, int64_t *n_row /* [n_guard] */);      /* the rows alone */

/* Every call of comm that the step makes, in order: what is sent to whom and received from whom (comm/bytes.h), the calls of `exec_run` on a step without faults. */
typedef struct TrafficArgs { const Step *s; const DealMb *mb; /* [n_mb] */ Routed routed; const Kernels *k; bool zero1; } TrafficArgs;
typedef void TrafficFn(void *ctx, int ins, const CommCall *call);
void traffic_walk(Arena *a, const TrafficArgs *t, TrafficFn *tell, void *ctx);
/* Bytes and messages that the rank sends, by axis set in the order first used: what comm_traffic will have grown by. */
enum { TRAFFIC_MAX = 32 };
typedef struct Traffic { int n; CommTraffic of[TRAFFIC_MAX]; } Traffic;
Traffic plan_traffic(Arena *a, const TrafficArgs *t);

/* Reports. */
typedef struct FlopCount { double forward, backward, sum; } FlopCount;     /* of this rank for a step: products and attention, multiply-adds count 2 */
FlopCount plan_flops(const Step *s, const DealMb *mb, const int64_t *n_row);
void plan_report_memory(const MemPlan *m, Arena *a, Step *const *step, int n_step, FILE *f);
char *plan_largest_buffers(Arena *a, Step *const *step, int n_step);      /* the five largest in device memory, one of a name, with their bytes */
const char *region_name(Region r);
const char *bytes_text(Arena *a, size_t n);      /* "12.3 MiB" */
#endif
