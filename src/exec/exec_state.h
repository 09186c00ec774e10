/* What the files of src/exec share. Private. */
#ifndef ETALON_EXEC_STATE_H
#define ETALON_EXEC_STATE_H
#include "exec/exec.h"

typedef struct StepRun {            /* one step kind, ready to run */
  Step *s; Deal deal; DealPlace place;
  DealMb *mb;                       /* [n_mb] */
  int64_t *input_first;             /* [n_mb + 1] where a micro-batch's inputs begin in the host buffers */
  int64_t *n_row;                   /* [n_guard] */
  uint8_t *decision;                /* [n_guard] LateAction */
  int *dead_first; BufId *dead;     /* guard mode: buffers whose last use is instruction i: dead[dead_first[i] .. dead_first[i+1]) */
} StepRun;

struct Exec {
  ExecOptions o;
  const Kernels *k;
  size_t real;                      /* bytes of a real (kernel.h) */
  char *device, *host;              /* slabs */
  StepRun run[EXEC_MAX_STEP];
  int64_t *bound[N_PGROUP]; int n_bound[N_PGROUP], self[N_PGROUP];
  int *norm_leaf[N_PGROUP];         /* [n_seg] */
  double norm_clip;                 /* factor for this step */
  const UpdateArgs *update;
  StepEnv env;
  StepResult result;
  ExecTap *tap; void *tap_ctx;
  ExecObserver *observer; void *observer_ctx;
  bool searching; int first_bad;    /* exec_find_nonfinite: the first instruction whose output is not finite, or -1 */
  double seconds[N_OP][N_PASS], ins_seconds[N_INS];
};

static inline void *exec_ptr(const Exec *x, const Step *s, BufId b) {
  if (b == NO_BUF) return NULL;
  const Buf *f = &s->buf[b];
  return (f->region == REGION_HOST ? x->host : x->device) + x->o.slab.base[f->region] + f->offset;
}

/* Bytes of a group's weights. */
static inline size_t exec_weight_size(const Exec *x, ParamGroupId g) {
  const Step *s = x->run[EXEC_TRAIN].s ? x->run[EXEC_TRAIN].s : x->run[EXEC_EVAL].s;
  return dtype_size(weight_type(&s->p->num, g));
}

typedef void InsFn(Exec *x, StepRun *r, const Ins *i);
void ins_kernel(Exec *x, StepRun *r, const Ins *i);
void ins_sum(Exec *x, StepRun *r, const Ins *i);
void ins_decide(Exec *x, StepRun *r, const Ins *i);
void ins_copy(Exec *x, StepRun *r, const Ins *i);
void ins_wait(Exec *x, StepRun *r, const Ins *i);
void ins_recv(Exec *x, StepRun *r, const Ins *i);
void ins_send(Exec *x, StepRun *r, const Ins *i);
void ins_sent(Exec *x, StepRun *r, const Ins *i);
void ins_zero(Exec *x, StepRun *r, const Ins *i);
void ins_count(Exec *x, StepRun *r, const Ins *i);
void ins_batch_counts(Exec *x, StepRun *r, const Ins *i);
void ins_stats(Exec *x, StepRun *r, const Ins *i);
void ins_mirror_grad(Exec *x, StepRun *r, const Ins *i);
void ins_mirror_weight(Exec *x, StepRun *r, const Ins *i);
void ins_fetch(Exec *x, StepRun *r, const Ins *i);
void ins_clear(Exec *x, StepRun *r, const Ins *i);
void ins_reduce_param(Exec *x, StepRun *r, const Ins *i);
void ins_reduce(Exec *x, StepRun *r, const Ins *i);
void ins_norm(Exec *x, StepRun *r, const Ins *i);
void ins_update(Exec *x, StepRun *r, const Ins *i);
void ins_gather(Exec *x, StepRun *r, const Ins *i);

/* mishap.c: signs of life, a test's faults, the search for the first value that is not finite. */
void mishap_begin(Exec *x, StepRun *r);
bool mishap_before(Exec *x, StepRun *r, int n);     /* false: instruction n is left out */
void mishap_after(Exec *x, StepRun *r, int n);
void mishap_end(Exec *x);

/* guard.c */
void guard_paint(void *p, size_t n);
size_t guard_touched(const void *p, size_t n);
void guard_index_dead(StepRun *r, Arena *a);
void guard_before(Exec *x, StepRun *r, const Ins *i);
void guard_after(Exec *x, StepRun *r, int i);
#endif
