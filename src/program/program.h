/* A program: values and ops of one pipeline chunk for one micro-batch, built once at start-up by calls that read like the forward pass
 * (op_*.h). Static single assignment: an op only reads values that are already there. No optimiser, no shape inference at run time.
 * Read by lowering (step.h), plan and exec.                                                                                    */
#ifndef ETALON_PROGRAM_H
#define ETALON_PROGRAM_H
#include "base/dtype.h"
#include "comm/mesh.h"
#include "program/deal.h"
#include "program/params.h"

typedef int32_t ValId, OpId;
enum { NO_VAL = -1, MAX_IN = 6, MAX_OUT = 5, PROGRAM_MAX_OP = 8192, PROGRAM_MAX_VAL = 16384 };

typedef enum { VAL_PARAM, VAL_INPUT, VAL_ACT, VAL_INDEX } ValKind;

/* What counts a value's rows. EXPERT rows are known only as the step runs: the plan value (Value.rows_from) tells; planning uses their bound.
 * TP and SEQ are the tokens of the views of those names (deal.h); with one rank there they are TOKEN. */
typedef enum { ROWS_TOKEN, ROWS_TP, ROWS_SEQ, ROWS_ROUTE /* own tokens x k */, ROWS_EXPERT, ROWS_WINDOW, ROWS_SEQUENCE, ROWS_ONE, N_ROWS } RowKind;

/* Over which axes the value is still to be summed. An op that reads a partial value is refused when it is built, unless it is the sum. A partial value
 * consists of planes, one per root of the fixed tree that this rank's blocks have (tree_roots): width = planes x the width of the sum. */
typedef struct Layout { AxisSet partial; int n_block; /* leaves of the whole tree */ Shards blocks; /* this rank's */ } Layout;

typedef struct Value {
  const char *name;                 /* "L03.attn.q" */
  ValKind kind;
  DType dtype, grad_dtype;          /* of the value and of its gradient (value_types) */
  RowKind rows; int64_t width;      /* elements per row on this rank; a VAL_PARAM has no size here (params.h) */
  int64_t grad_width;               /* the same of its gradient: planes where consumers' weights are cut, one where the value itself is partial */
  Shards cut;                       /* feature axis, shard-major where cut.n > 1 */
  Layout layout, grad_layout;
  bool floor;                       /* region F: lives from its forward to its backward whatever the policy (routing, log-sum-exps, layer boundaries) */
  bool late;                        /* late-bound: sized by the routing; region S when kept for the backward */
  ValId rows_from;                  /* ROWS_EXPERT: the plan value */
  ValId alias_of;                   /* shares the forward buffer of that value; NO_VAL: its own */
  OpId def; int layer, param;
} Value;

typedef enum {
  OP_EMBED, OP_RMSNORM, OP_LINEAR, OP_ROPE, OP_ATTENTION, OP_SWIGLU, OP_ADD, OP_GATHER, OP_REDUCE,
  OP_ROUTE, OP_EXCHANGE_COUNTS, OP_PERMUTE, OP_PERMUTE_WEIGHTS, OP_DISPATCH, OP_RETURN, OP_COMBINE, OP_XENT, N_OP
} OpKind;
typedef enum { PASS_FWD, PASS_BWD_X, PASS_BWD_W, N_PASS } Pass;

typedef union OpAttr {              /* typed by the op's kind */
  struct { double eps; } norm;
  struct { bool grouped, wide; } linear;  /* grouped: rows by expert, in[2] is the plan value; wide: a product of reals */
  struct { double theta; } rope;
  struct { Shards q_own, kv_own /* heads of the inputs */, q, kv /* heads that this rank's kernels work on */; int64_t head_dim, window; double scale; int exchange; } attention;
  struct { RouteArgs args; int stat; double aux_coef, z_coef; } route;      /* stat: first stat word */
  struct { bool bits; } reduce;     /* rows of zero bits elsewhere: summed as integers */
} OpAttr;

typedef struct Op { OpKind kind; int n_in, n_out; ValId in[MAX_IN], out[MAX_OUT]; OpAttr attr; const char *name; int layer; uint8_t x_in, x_out; /* forward values its dX reads: the table's, or fewer */ } Op;

/* Sizes of one rank that ops need beside values: all static. */
typedef struct Dims {
  int64_t n_token[N_TOKEN_VIEW];    /* most tokens in a micro-batch, by view */
  int64_t n_seq, n_window /* own */, seq_length, window;
  int n_tp, tp_self, n_cp, cp_self;
  int top_k, n_expert, n_expert_here, first_expert;
  int n_ep, ep_self, n_etp, etp_self;
  int64_t n_window_peer;            /* most own windows of any member of the expert group: the stride of exchanged counts */
  int64_t n_row_expert;             /* bound of routed rows received */
} Dims;

/* How leaves are added: canonical (exact integers on a grid) or native (floats). One per step kind; README "Numerics". */
typedef struct Numerics { bool exact; DType act, real /* kernel.h */; int shift; int shards; } Numerics;

/* Statistic words of a step: the sum of losses, faults, then 2 + 2 E words per MoE layer (kernel.h, route_fwd). */
enum { STAT_LOSS, STAT_FAULT, STAT_ROUTE };

typedef struct Program {
  Arena *arena;
  const Mesh *mesh; int rank;
  Dims dims; Numerics num;
  ParamSet *params;
  Op *op; Value *val; int n_op, n_val;
  int n_stat, next_stat;            /* statistic words of the whole model; where the next router's begin */
  int layer;                        /* the layer being built; values and ops inherit it */
  ValId tokens, labels, loss;       /* NO_VAL on stages that have none */
  int virtual_stage, n_virtual;     /* place in the pipeline: chunk * pp + stage, of pp * chunks */
  ValId recv, send;                 /* activations from the previous and to the next stage, else NO_VAL */
} Program;

/* An empty program of one rank for micro-batches of at most dims->n_token tokens; `m` and `ps` must outlive it. */
void  program_open(Program *p, Arena *a, const Mesh *m, int rank, const Dims *d, const Numerics *num, ParamSet *ps);
/* A value that comes from outside: the host, or the stage before. */
ValId program_input(Program *p, const char *name, DType t, RowKind rows, int64_t width);
ValId program_param(Program *p, int param);               /* of the set, by number */
/* Used by the builders in op_*.c. */
ValId program_act(Program *p, const char *name, RowKind rows, int64_t width, Shards cut);
ValId program_index(Program *p, const char *name, RowKind rows, int64_t width);          /* int32, region F */
Op   *program_op(Program *p, OpKind kind, const char *name, const ValId *in, int n_in, const ValId *out, int n_out);
const Param *program_param_of(const Program *p, ValId v);
/* An activation is `act` and so is its gradient unless its builder says otherwise. What is real, and why:
 *   values: what a later op rounds (queries and keys before their rotation, planes still to be summed over ranks); softmaxes (logits, losses,
 *           log-sum-exps, routing weights); 1/rms of norms.
 *   gradients: those that enter no product and are not of the residual stream: of norms' outputs and of rows on their way to experts (sums over
 *           several products), of rotated queries and keys (sums over blocks), of activations of FFNs; of the real values above but logits' and
 *           products', which enter products: they are rounded once, for dX and dW alike. */
void  value_types(Program *p, ValId v, DType value, DType grad);
/* Weights that are multiplied are act; norms' gains and routers are real, like all masters. */
DType weight_type(const Numerics *n, ParamGroupId g);

int64_t value_bound_rows(const Program *p, ValId v);       /* in the largest micro-batch, under any routing */
int64_t value_rows(const Program *p, ValId v, const DealMb *mb, int64_t n_row_expert);     /* in this micro-batch; n_row_expert: of its plan value */
size_t  value_row_bytes(const Program *p, ValId v, bool grad);                             /* of the value, or of its gradient */
const TokenView *value_view(const Program *p, ValId v, const DealMb *mb);      /* of a value whose rows are tokens */
/* An axis of one block, here. */
Shards  shards_uncut(int64_t width);
/* This rank's blocks if member `self` of `n` has them: the same axis, another member. */
Shards  shards_of(const Shards *s, int n, int self);
bool    value_needs_grad(const Program *p, ValId v);     /* activations of real type that depend on a parameter */
const char *pass_suffix(Pass pass);                        /* "", "/dX", "/dW" */
#endif
