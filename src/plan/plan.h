/* Memory before running: lifetimes become offsets and bytes. Knows no MPI and no device: it plans on a laptop what a cluster would do. */
#ifndef ETALON_PLAN_H
#define ETALON_PLAN_H
#include "program/step.h"

enum { PLAN_LINE = 64, PLAN_MAX_STEP = 2 };      /* every buffer begins at a multiple of PLAN_LINE bytes */
typedef struct MemPlan {
  size_t bytes[N_REGION];           /* size of each region: the largest any of the steps needs */
  size_t base[N_REGION];            /* where it begins in its slab (P, F, W, S: device; HOST: host) */
  size_t device, host;              /* slabs */
  size_t live[N_REGION];            /* bytes live at the region's fullest instruction (the rest of bytes[] is gaps) */
  int    peak_ins[N_REGION], peak_step[N_REGION];
} MemPlan;

/* Places every buffer of the steps that share one slab. Regions F, W, S of different steps overlap (they never run together); P and HOST are laid out alike. */
void plan_memory(MemPlan *m, Arena *a, Step *const *step, int n_step);
/* ERR_MEMORY: the limit, the smallest one that would do, the largest buffers. 0: no limit. */
bool plan_check_limits(const MemPlan *m, Arena *a, Step *const *step, int n_step, size_t device_limit, size_t host_limit, Err *e);

/* What a run with these micro-batches and row counts touches, in bytes of whole lines, region by region: what exec measures on a painted slab.
 * mb [n_mb], n_row [n_guard] of step `s`; touched: bitmaps of lines per region, grown by each call; then plan_touched_bytes. */
typedef struct Touched { uint8_t *line[N_REGION]; } Touched;
Touched touched_new(Arena *a, const MemPlan *m);
void    plan_touch(const Step *s, const DealMb *mb, const int64_t *n_row, Touched *t);
size_t  touched_bytes(const Touched *t, const MemPlan *m, Region r);

/* Routed rows of each (micro-batch, plan) of this rank for a forced routing, computed from the same formula as the router (balanced, all_to_one), else the bound. */
void plan_rows(const Step *s, const Deal *d, int routing, int64_t *n_row /* [n_guard] */);

/* Reports. */
typedef struct FlopCount { double forward, backward, model; } FlopCount;   /* of this rank for a step; model: 3 x forward of active parameters and attention */
FlopCount plan_flops(const Step *s, const DealMb *mb, const int64_t *n_row);
void plan_report_memory(const MemPlan *m, Arena *a, Step *const *step, int n_step, FILE *f);
const char *region_name(Region r);
const char *bytes_text(Arena *a, size_t n);      /* "12.3 MiB" */
#endif
