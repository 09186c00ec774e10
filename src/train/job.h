/* A job: everything that one rank needs for a run, planned from the configuration without MPI: mesh, parameters, programs, steps, memory. `etalon plan` stops here;
 * train and check go on with exec.                                                                                                                */
#ifndef ETALON_JOB_H
#define ETALON_JOB_H
#include "config/config.h"
#include "device/device.h"
#include "exec/exec.h"
#include "gemm.h"
#include "model/model.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

typedef struct JobStep {
  Deal deal; Program *program /* [n_chunk] */; const Program **chunk; int n_chunk;
  Schedule sched; StepOptions options;
  Step step;                        /* after job_lower */
  DealMb *mb /* [n_mb] */;
} JobStep;
typedef struct Job {
  Arena *arena;
  const Config *c;
  Mesh mesh; int rank; DealPlace place;
  StageSpan *span; int n_virtual;   /* of all virtual stages */
  ParamSet params; ModelParams *model;
  Device *device;
  bool has_eval;
  JobStep train, eval;
  MemPlan mem;
} Job;

/* n_valid_seq: validation sequences (0: no evaluation step). ERR_CONFIG. The device must be open (workspace sizes are its kernels'). */
bool job_plan(Job *j, Arena *a, const Config *c, int world, int rank, Device *device, int64_t n_valid_seq, Err *e);
/* Its two halves: programs and everything else that the list follows from; the list and its memory, without a look at the limits. */
bool job_declare(Job *j, Arena *a, const Config *c, int world, int rank, Device *device, int64_t n_valid_seq, Err *e);
void job_lower(Job *j);
bool job_open_exec(Job *j, World *w, Exec **x, Err *e);
/* ERR_MEMORY when memory.device_limit or host_limit is below what any rank needs (collective); w NULL: below what this rank needs. */
bool job_check_limits(Job *j, World *w, Err *e);
DType job_dtype(const Config *c);          /* of activations and of the weights of products */
DType job_real(const Config *c);           /* of sums, masters, moments, gradients: FP32 where job_dtype is BF16 */
GemmType job_gemm(const Config *c);
DType job_weight(const Config *c, ParamGroupId g);   /* of a group's weights (weight_type) */
int64_t job_eval_chunk(const Job *j);      /* sequences of the whole world in one evaluation step */
#endif
