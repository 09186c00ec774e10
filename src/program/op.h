/* The op table: one row per op kind, read by lowering, plan and exec alike; and the builders. An op is one row here plus one builder and its
 * passes in an op_*.c file. Passes call kernels through the device's table and messages through comm.                          */
#ifndef ETALON_OP_H
#define ETALON_OP_H
#include "comm/comm.h"
#include "device/device.h"
#include "program/program.h"

/* What all calls of a step share. */
typedef struct StepEnv {
  const Kernels *k; KCtx kctx;
  World *world;
  Accum accum_like;                 /* exact, shift, fault: without data */
  double n_valid;                   /* labels of the global batch that count */
  int64_t n_token_global, n_seq_global;
  uint64_t *stat, *fault;           /* device memory */
  int stat_shift;
  const uint16_t *const *replay;    /* [layers] recorded choices of the batch for routing `replay`; NULL: the router chooses */
} StepEnv;

/* One call. Pointers that the row does not declare are NULL. */
typedef struct OpCall {
  const Program *p; const Op *op; const StepEnv *env;
  void *in[MAX_IN], *out[MAX_OUT];          /* forward values */
  void *d_out[MAX_OUT], *d_in[MAX_IN];      /* gradients: given, to be written */
  Weight weight[MAX_IN]; Accum accum[MAX_IN];   /* parameters among the inputs */
  const DealMb *mb;
  int64_t n_row;                            /* rows of a ROWS_EXPERT op; 0 before they are known */
  void *work; size_t work_bytes;
} OpCall;

/* OPF_COMM: nothing but messages and the sums that end them; an op that also computes has a traffic column and no flag. */
enum { OPF_COMM = 1, OPF_PASS_GRAD = 2 /* backward: the output's gradient is the inputs' gradient */, OPF_SETS_ROWS = 4 /* afterwards the plan value tells n_row */, OPF_ALIAS_OUT = 8 /* outputs share one forward buffer */ };

typedef struct OpWorkArgs { const Program *p; const Op *op; const Kernels *k; KCtx kctx; const DealMb *mb /* the largest */; } OpWorkArgs;

typedef struct OpDesc {
  const char *name;
  uint16_t flags;
  uint8_t  x_in, x_out, w_in, w_out;        /* forward values that the passes dX and dW read (bit i: in[i] / out[i]); parameters are always at hand */
  uint8_t  has_dw;                          /* bit i: in[i] is a parameter with a dW pass */
  void   (*run[N_PASS])(const OpCall *c);
  double (*flops)(const Program *p, const Op *op, Pass pass, const DealMb *mb, int64_t n_row_expert);    /* multiply-adds count 2 */
  size_t (*work)(const OpWorkArgs *w, Pass pass);       /* bytes, or NULL: none */
  void   (*prepare)(const OpWorkArgs *w);               /* announces GEMM shapes, or NULL */
  int64_t (*plan_rows)(const OpCall *c);                /* OPF_SETS_ROWS */
  /* The calls of comm that the pass makes, or NULL: none. Of the call are read: p, op, mb, n_row, env->k, plan values among the inputs; work is scratch of
   * the pass's size. */
  void   (*traffic)(const OpCall *c, Pass pass, Sketch *s);
} OpDesc;
extern const OpDesc op_desc[N_OP];

/* ---- builders: shapes in the comment, all [rows, width]; Ttp: tokens of the TP group ------------------------------------------- */
ValId op_embed(Program *p, const char *name, ValId tokens /* [Ttp] */, ValId w /* [V, H] */);                   /* -> [Ttp, H], partial where V is cut over ranks */
ValId op_rmsnorm(Program *p, const char *name, ValId x /* [T, H] */, ValId gain /* [H] */, double eps);         /* -> [T, H] */
/* y = x W^T. A weight cut along its outputs gives a cut y (shard-major); cut along its inputs it takes a cut x and gives the fixed tree's sum, partial where blocks
 * are on other ranks. plan: NO_VAL, or the counts that group x's rows by expert. */
ValId op_linear(Program *p, const char *name, ValId x, ValId w, ValId plan);
ValId op_rope(Program *p, const char *name, ValId x /* [Ttp, heads D] */, double theta, int64_t head_dim);
/* Queries meet keys that they do not have here (windows of other CP ranks, heads of other TP ranks) in one of these ways: keys and values of whole sequences are
 * fetched; or windows of all heads become whole sequences of some heads and go back (DeepSpeed-Ulysses, Jacobs et al. 2023); or keys and values go round a ring
 * of ranks (Liu et al. 2023), whose sums depend on the layout. */
typedef enum { CP_ALLGATHER, CP_ALLTOALL, CP_RING, N_CP_COMM } CpComm;
ValId op_attention(Program *p, const char *name, ValId q, ValId k, ValId v, int64_t head_dim, int64_t window, CpComm comm);  /* -> like q */
ValId op_swiglu(Program *p, const char *name, ValId gate, ValId up, ValId row_weight /* [R] or NO_VAL */);
ValId op_add(Program *p, const char *name, ValId a, ValId b);
/* Sequence parallelism (Korthikanti et al. 2022). Groups of one: nothing is built, out[i] = x. */
void  op_gather(Program *p, const char *name, ValId x /* [T, H] */, int n_use, ValId *out /* [n_use], each [Ttp, H]: one per consumer */);
ValId op_reduce(Program *p, const char *name, ValId x /* [Ttp, planes x H] */);                                 /* -> [T, H] */

typedef struct RouteOut { ValId idx, weight /* [T, k] */, row_of /* [T, k] */, counts /* [windows, E] */; } RouteOut;
RouteOut op_route(Program *p, const char *name, ValId logits /* [T, E] */, const RouteArgs *args, double aux_coef, double z_coef);
ValId op_exchange_counts(Program *p, const char *name, ValId counts);                                             /* -> plan */
ValId op_permute(Program *p, const char *name, ValId x /* [T, H] */, ValId row_of);                               /* -> [T k, H] by (expert, token) */
ValId op_permute_weights(Program *p, const char *name, ValId weight /* [T, k] */, ValId row_of);                  /* -> [T k, 1] */
void  op_dispatch(Program *p, const char *name, ValId rows /* [T k, n] */, ValId plan, int n_use, ValId *out);    /* -> [R, n] by (expert, source, token), one per consumer */
ValId op_return(Program *p, const char *name, ValId rows /* [R, planes x n] */, ValId plan);                      /* -> [T k, n] */
ValId op_combine(Program *p, const char *name, ValId rows /* [T k, H] */, ValId row_of);                          /* -> [T, H], slots added in order */
ValId op_xent(Program *p, const char *name, ValId logits /* [Ttp, vocabulary] */, ValId labels);                  /* -> losses [Ttp] */
#endif
