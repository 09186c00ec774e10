/* The step: ONE flat list of instructions for everything that a rank does in one training (or evaluation) step, and the buffers they touch.
 * Lowered once from program x schedule x policy; exec runs it, plan turns lifetimes into offsets and bytes, printing it shows it.          */
#ifndef ETALON_STEP_H
#define ETALON_STEP_H
#include <stdio.h>

#include "device/device.h"
#include "program/op.h"
#include "program/schedule.h"

/* The device slab's regions (README, "Memory"). Host memory is a fifth. */
typedef enum { REGION_P, REGION_F, REGION_W, REGION_S, REGION_HOST, N_REGION } Region;

/* What may happen to a late-bound value between forward and backward. Only keep so far. */
typedef enum { LATE_KEEP, N_LATE } LateAction;

typedef int32_t BufId;
enum { NO_BUF = -1 };
typedef enum { BUF_VALUE, BUF_GRAD, BUF_STATE, BUF_WORK, BUF_HOST } BufKind;
typedef struct Buf {
  const char *label;                /* what it holds, for reports: value name or a state's name */
  BufKind kind; Region region;
  ValId val; int chunk, mb;         /* value and gradient buffers */
  size_t bytes, offset;             /* bound; place within the region */
  int first, last;                  /* instructions that touch it; states: the whole step */
} Buf;

typedef enum {
  INS_KERNEL,     /* a pass of an op */
  INS_SUM,        /* out[0] = in[0] + in[1]: two gradients of one value */
  INS_COPY,       /* out[0] = in[0], on a copy stream; signals `event` */
  INS_WAIT,       /* compute waits for `event` */
  INS_RECV,       /* out[0] from pipeline stage `peer` */
  INS_SEND,       /* in[0] to pipeline stage `peer`; does not wait */
  INS_SENT,       /* in[0] may be used again: waits for the send of `event` */
  INS_DECIDE,     /* the late-bound action of (micro-batch, layer), now that its rows are known; guards later instructions */
  INS_ZERO,       /* clears accumulators and statistics */
  INS_COUNT,      /* prologue: labels of the global batch */
  INS_BATCH_COUNTS, /* router statistics summed over all ranks before the first backward (auxiliary loss over the batch) */
  INS_STATS,      /* sums statistics and faults over ranks */
  INS_MIRROR_GRAD, /* the gradient of a copy goes to the stage that owns the parameter, and is added there */
  INS_FETCH,      /* out[0] = the whole weight of a parameter that is kept in shares */
  INS_CLEAR,      /* out[0] = 0: an accumulator of one parameter */
  INS_REDUCE_PARAM, /* sums in[0], one parameter's gradient of one micro-batch, over its ranks into each one's share */
  INS_REDUCE,     /* sums a parameter group's gradients over its ranks: each ends with its share */
  INS_NORM,       /* gradient norm */
  INS_UPDATE,     /* optimizer on the owned share of a group */
  INS_GATHER,     /* weights of a group back to every rank */
  INS_MIRROR_WEIGHT, /* the owner's new weights to the copy */
  N_INS
} InsKind;

typedef struct Ins {
  InsKind kind; Pass pass; OpId op; int chunk, mb;
  StreamId stream; int event;
  int peer, tag;                    /* RECV, SEND: PP coordinate, message */
  int group;                        /* REDUCE, UPDATE, GATHER: ParamGroupId */
  int guard; LateAction action;     /* runs only if decision[guard] == action; guard -1: always */
  int param;                        /* FETCH, REDUCE_PARAM; the parameter of a kernel's weight and accum */
  BufId in[MAX_IN], out[MAX_OUT], d_out[MAX_OUT], d_in[MAX_IN], work;
  BufId weight, accum;              /* KERNEL: where parameters are kept in shares, the fetched weight and the accumulator; else NO_BUF: the state */
} Ins;

/* Fixed buffers. */
/* WEIGHT: what products and norms read. MASTER: what the optimizer updates, then rounded to the weight; no bytes where they are the same (weight_type is real). */
typedef enum { STATE_WEIGHT, STATE_ACCUM, STATE_M, STATE_V, STATE_MASTER, N_STATE } StateKind;
enum { STEP_MAX_CHUNK = 16 };
typedef struct Step {
  const Program *p;                 /* chunk[0]: what all chunks of a rank share (sizes, numerics, parameters) */
  const Program *chunk[STEP_MAX_CHUNK]; int n_chunk;
  const Schedule *sched;
  bool train, batch_aux, zero3;
  Ins *ins; Buf *buf; int n_ins, n_buf, max_ins, max_buf;
  int n_plan, *plan_number[STEP_MAX_CHUNK];   /* plan values (counts of an expert exchange) and the number of each, [n_val], else -1 */
  int n_guard;                      /* n_mb * n_plan decisions: guard = mb * n_plan + number */
  BufId state[N_PGROUP][N_STATE], stat;        /* in P */
  BufId host_tokens, host_labels, host_stat;   /* in host memory: all micro-batches of the rank */
  BufId host_doc[N_TOKEN_VIEW];                /* likewise, where documents begin (TP and SEQ views), or NO_BUF */
  BufId *value[STEP_MAX_CHUNK];                /* [n_mb * n_val] forward buffers */
  int n_send;                                  /* sends in a step: events 0 .. n_send-1 of INS_SENT */
  int n_mb;
  int pass_begin, pass_end;                    /* instructions [pass_begin, pass_end) are the micro-batches' forward and backward; the optimizer follows */
} Step;

typedef struct StepOptions {
  bool train, zero1, zero3, batch_aux;                /* batch_aux: auxiliary loss over the batch */
  const Kernels *k; KCtx kctx;                 /* for workspace sizes */
  const DealMb *mb;                            /* the largest micro-batch */
  int64_t n_input;                             /* tokens of this rank's TP view in a step */
  int64_t n_document;                          /* document masks: tokens of this rank's whole sequences in a step; 0: none */
  bool tied_stages;                            /* the embedding's copy is on another stage */
  size_t optimizer_work;                       /* bytes of workspace for NORM, UPDATE */
  size_t reduce_work;                          /* bytes of staging for REDUCE */
} StepOptions;

/* Fills *s with lists that live in `a`; offsets stay 0 until plan_memory. chunk: [n_chunk], all of one rank; they and `sched` must outlive the step. CHECK: the
 * chunks or the list are beyond STEP_MAX_CHUNK or what an action can emit. */
void step_lower(Step *s, Arena *a, const Program *const *chunk, int n_chunk, const Schedule *sched, const StepOptions *o);
/* Bytes of a parameter group's fixed buffers on a rank whose flat arrays are as long as those of `ps`. */
void step_state_bytes(const ParamSet *ps, int rank, ParamGroupId g, const Numerics *num, bool zero1, bool zero3, size_t bytes[N_STATE]);
const char *ins_name(const Step *s, const Ins *i, char *buf, size_t size);       /* "L03.moe.gate/dW mb2": stable, used by logs, errors and traces */
/* A line per instruction: number, name, buffers with their places. */
void   step_print(const Step *s, FILE *f);
size_t buf_bytes(const Step *s, const Buf *b, const DealMb *mb, const int64_t *n_row /* [n_guard] */);   /* bytes really used; mb: [n_mb] */
#endif
