/* Runs steps: one loop over the instruction list, one function per instruction kind. Owns the two slabs; everything else was planned. Opened once per rank by
 * train. The only thing it decides at run time is late-bound actions (step.h), from counts, never from the clock.                            */
#ifndef ETALON_EXEC_H
#define ETALON_EXEC_H
#include "comm/comm.h"
#include "program/step.h"

/* Where the slabs' regions lie: plan's answer, handed over by train (plan and exec do not know each other). */
typedef struct SlabLayout { size_t base[N_REGION], bytes[N_REGION], device, host; } SlabLayout;

enum { EXEC_TRAIN, EXEC_EVAL, EXEC_MAX_STEP };
typedef struct ExecStep { Step *step; Deal deal; DealPlace place; /* whose share of the deal */ } ExecStep;

/* Called after a forward kernel for each value it wrote: for `check` and reference files. data: device memory. */
typedef void ExecTap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row);

/* Called after instruction number `ins` of the list, which ran from `begin` to `end` (timer_now). Copies and sends of other streams: when they were issued. */
typedef void ExecObserver(void *ctx, const Step *s, int ins, double begin, double end);

typedef struct ExecOptions {
  ExecStep step[EXEC_MAX_STEP];     /* step NULL: not used */
  SlabLayout slab;
  Device *device; World *world;
  bool guard;                       /* NaN in workspaces before a call and in buffers after their last use */
  bool zero1, zero3;                /* the owner's share of optimizer state only; of weights and gradients too */
} ExecOptions;

typedef struct UpdateArgs { double lr, beta1, beta2, eps, weight_decay, clip_grad /* 0: none */; int64_t t /* from 1 */; } UpdateArgs;

typedef struct StepResult {
  double loss;                      /* mean over the labels that count; 0 when there are none */
  double loss_sum; int64_t n_valid;
  double grad_norm;                 /* before clipping */
  double pass_seconds;              /* of this rank's forward and backward, waits for others among them included */
  bool fault;                       /* a leaf was not finite or beyond its bound, or the norm is not finite: nothing was updated */
  const uint64_t *stat; int n_stat; /* host memory, summed over ranks */
  int stat_shift;
} StepResult;

typedef struct Exec Exec;
bool exec_open(Exec **x, Arena *a, const ExecOptions *o, Err *e);        /* ERR_MEMORY: the system refused a slab */
void exec_close(Exec *x);
/* Host input buffers of a step, filled by the caller before exec_run: tokens of the rank's TP view, micro-batch after micro-batch (exec_geometry says which). */
int32_t *exec_tokens(Exec *x, int which);
int32_t *exec_labels(Exec *x, int which);
/* Where each token's document begins, by view TP or SEQ of a micro-batch; NULL: there are no document masks. The views of exec_geometry point here, too. */
int32_t *exec_documents(Exec *x, int which, int mb, ViewKind v);
const DealMb *exec_geometry(const Exec *x, int which);     /* [n_mb] */
/* Collective. n_seq: sequences of this rank's share that are really there (< share only for evaluation's tail: the rest is not run). u: NULL for evaluation. */
void exec_run(Exec *x, int which, const UpdateArgs *u, StepResult *r);
/* Collective, after a training step with a fault, its inputs filled in again: repeats the step without its update and says in `text` which instruction of this
 * rank was the first to write a value that is not finite. Returns 0 when all were finite here; of several ranks the one with the largest number had it first
 * (a rank that only received it has a small one). */
uint64_t exec_find_nonfinite(Exec *x, const UpdateArgs *u, char *text, size_t size);
void exec_set_tap(Exec *x, ExecTap *tap, void *ctx);
/* [layers] -> choices [tokens of the batch, k] of the next steps, for moe.routing: replay; NULL: the router chooses. They must stay where they are. */
void exec_set_replay(Exec *x, const uint16_t *const *layer);
void exec_set_observer(Exec *x, ExecObserver *observer, void *ctx);      /* NULL: none */

/* Parameters and optimizer state. A state's array is flat (params.h): weights and accumulators whole (in shares where zero3), moments from the first owned element on. */
typedef enum { TENSOR_WEIGHT, TENSOR_GRAD, TENSOR_M, TENSOR_V, TENSOR_MASTER /* the weight itself where it is not rounded */, N_TENSOR_VIEW } TensorView;
void *exec_state(Exec *x, ParamGroupId g, StateKind k);
/* Elements of group g that this rank owns: [lo, hi). */
void  exec_owned(const Exec *x, ParamGroupId g, int64_t *lo, int64_t *hi);
/* The elements [flat, flat + n) of group g, weights of their type (weight_type), all else real: a pointer into state, or for TENSOR_GRAD a conversion into `scratch` (n reals). Gradients are those of the
 * last training step, divided by N_valid, before clipping; owned elements only (also for moments and masters). */
const void *exec_view(Exec *x, ParamGroupId g, TensorView v, int64_t flat, int64_t n, void *scratch);

/* Memory really touched since exec_open, in whole lines of 64 bytes of region r. */
size_t exec_touched(const Exec *x, Region r);
const int64_t *exec_rows(const Exec *x, int which);       /* routed rows received, [n_guard], of the last run */
double exec_seconds(const Exec *x, OpKind k, Pass p);     /* time in kernels so far */
double exec_ins_seconds(const Exec *x, InsKind k);
/* Sizes that lowering needs. */
size_t exec_optimizer_work(const ParamSet *ps, DType real);
size_t exec_reduce_work(const ParamSet *ps);
#endif
