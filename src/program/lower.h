/* Private to lowering: what its files share. lower.c opens a step, walks the schedule and finds lifetimes; lower_pass.c emits a micro-batch's passes;
 * lower_emit.c makes instructions and buffers. Callers of the result use step.h. */
#ifndef ETALON_LOWER_H
#define ETALON_LOWER_H
#include "program/step.h"

typedef struct ChunkState {
  const Program *p;
  bool *kept;                       /* [n_val] the backward reads it */
  BufId *grad;                      /* [n_val] gradient so far, of the micro-batch in backward */
  BufId *d_out;                     /* [n_mb][n_op][MAX_OUT] gradients that a later W pass reads */
  bool *copied;                     /* [n_mb] inputs are on their way */
  int *sent; BufId *sent_buf;       /* [n_mb] event of the activation's send, or -1; what it sends */
} ChunkState;

typedef struct Lower {
  Step *s;
  const StepOptions *o;
  ChunkState chunk[STEP_MAX_CHUNK];
  int most_open, n_open_send;       /* sends without an answer that may be on their way; such sends so far */
  int *open_event; BufId *open_buf; /* [most_open] the last of them, in a ring */
} Lower;

enum { LOWER_EVENT_STAT = DEVICE_MAX_EVENT - 1 };  /* copies of inputs use the events below */

/* ---- lower_emit.c: appended to the step's lists; died of when they are full */
BufId  lower_buf(Step *s, Buf b);
BufId  lower_work_buf(Step *s, size_t bytes);                                          /* NO_BUF for 0 bytes */
BufId  lower_value_buf(const Lower *l, int chunk, int mb, ValId v, bool grad);         /* at the bound of its rows */
BufId  lower_param_buf(const Lower *l, int param, size_t element);                     /* all elements of a parameter, `element` bytes each */
BufId *lower_value(const Lower *l, int chunk, int mb, ValId v);                        /* where the forward buffer's number is kept */
Ins   *lower_emit(Step *s, InsKind kind);                                              /* every operand absent */
Ins   *lower_emit_for(Step *s, InsKind kind, int chunk, int mb);
Ins   *lower_kernel(const Lower *l, int chunk, OpId op, Pass pass, int mb);            /* with workspace and guard, after its weight's fetch */
/* The parameter among an op's inputs that is kept in shares, or -1. An op has one parameter at most. */
int    lower_shared_param(const Lower *l, const Program *p, const Op *o);

/* A message is told by what crosses which border of virtual stages: activations up, gradients down. */
typedef enum { CROSS_UP, CROSS_DOWN } Cross;
void   lower_inputs(Lower *l, int chunk, int mb);                                      /* their copies, once */
void   lower_wait_inputs(Lower *l, int chunk, int mb);
void   lower_recv(Lower *l, int chunk, int mb, Cross c, BufId b);
int    lower_send(Lower *l, int chunk, int mb, Cross c, BufId b);                      /* -> the event of lower_sent */
void   lower_sent(Lower *l, int event, BufId b);                                       /* nothing for event -1 */
/* A message that no answer acknowledges: at most most_open are on their way. */
void   lower_send_bounded(Lower *l, int chunk, int mb, Cross c, BufId b);

/* ---- lower_pass.c: a micro-batch's passes through a chunk */
void   lower_forward(Lower *l, int chunk, int mb, const Action *next /* forward, whose inputs are fetched ahead; or NULL */);
void   lower_backward(Lower *l, int chunk, int mb, bool weights);                      /* weights: with their gradients */
void   lower_weights(Lower *l, int chunk, int mb);                                     /* the gradients that lower_backward left */
#endif
