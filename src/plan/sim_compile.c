/* A rank's list as compute times and messages. */
#include <string.h>

#include "base/err.h"
#include "plan/simulate.h"

typedef struct Compile {
  const TrafficArgs *t;
  const SimCost *cost;
  Arena *a;
  bool pairs;
  SimList list;
  int max;
  int done;       /* instructions whose compute is counted */
  double compute; /* since the last event */
} Compile;

/* ---- what an instruction computes ----------------------------------------------------------------------------------------------------------------- */
static double buffers_bytes(const Compile *c, const BufId *b, int n) {
  double sum = 0;
  for (int k = 0; k < n; k++)
    if (b[k] != NO_BUF) sum += (double)buf_bytes(c->t->s, &c->t->s->buf[b[k]], c->t->mb, c->t->routed.n_row);
  return sum;
}
static double parameter_bytes(const Program *p, const Op *op) {
  double sum = 0;
  for (int k = 0; k < op->n_in; k++)
    if (op->in[k] != NO_VAL && p->val[op->in[k]].kind == VAL_PARAM) {
      const Param *w = program_param_of(p, op->in[k]);
      sum += (double)w->expert_stride * w->n_expert_here * (double)dtype_size(weight_type(&p->num, w->group));
    }
  return sum;
}
static double state_bytes(const Compile *c, int g, StateKind k) { return (double)c->t->s->buf[c->t->s->state[g][k]].bytes; }
/* What an update reads and writes: masters and both moments both ways, the gradient in, and the weights out where they are rounded masters. */
static double update_bytes(const Compile *c, ParamGroupId g) {
  const Numerics *num = &c->t->s->p->num;
  double owned = state_bytes(c, g, STATE_M) / (double)dtype_size(num->real);
  size_t accum = num->exact ? sizeof(uint64_t) : dtype_size(num->real),
         rounded = state_bytes(c, g, STATE_MASTER) > 0 ? dtype_size(num->act) : 0;
  return 6 * state_bytes(c, g, STATE_M) + owned * (double)(accum + rounded);
}

/* Whichever takes longer: its products, or what it reads and writes. */
static double kernel_seconds(Compile *c, const Ins *i) {
  const Program *p = c->t->s->chunk[i->chunk];
  const Op *op = &p->op[i->op];
  const OpDesc *d = &op_desc[op->kind];
  double flops = d->flops ? d->flops(p, op, i->pass, &c->t->mb[i->mb], i->guard >= 0 ? c->t->routed.n_row[i->guard] : 0) : 0;
  double bytes = buffers_bytes(c, i->in, MAX_IN) + buffers_bytes(c, i->out, MAX_OUT) + buffers_bytes(c, i->d_in, MAX_IN) +
                 buffers_bytes(c, i->d_out, MAX_OUT) + (op->kind == OP_EMBED ? 0 : parameter_bytes(p, op));
  c->list.flops += flops;
  return flops / c->cost->flops > bytes / c->cost->memory ? flops / c->cost->flops : bytes / c->cost->memory;
}
static double ins_seconds(Compile *c, const Ins *i) {
  double bytes = 0;
  switch (i->kind) {
  case INS_KERNEL:
    return kernel_seconds(c, i);
  case INS_SUM:
    bytes = buffers_bytes(c, i->in, MAX_IN) + buffers_bytes(c, i->out, MAX_OUT);
    break;
  case INS_CLEAR:
    bytes = buffers_bytes(c, i->out, MAX_OUT);
    break;
  case INS_ZERO:
  case INS_NORM:
    for (int g = 0; g < N_PGROUP && c->t->s->train; g++) bytes += state_bytes(c, g, STATE_ACCUM);
    break;
  case INS_UPDATE:
    bytes = update_bytes(c, i->group);
    break;
  default:
    break;
  }
  return bytes / c->cost->memory;
}
static void compute_to(Compile *c, int ins) {
  for (; c->done < ins; c->done++) c->compute += ins_seconds(c, &c->t->s->ins[c->done]);
}

/* ---- messages ------------------------------------------------------------------------------------------------------------------------------------------ */
static double load_seconds(const SimCost *cost, AxisSet axes, const CommLoad *load) {
  double bandwidth = 0, latency = 0;
  for (int a = 0; a < N_AXIS; a++) {
    if (!(axes & AXIS_BIT(a))) continue;
    if (bandwidth == 0 || cost->bandwidth[a] < bandwidth) bandwidth = cost->bandwidth[a];
    if (cost->latency[a] > latency) latency = cost->latency[a];
  }
  uint64_t most = load->sent > load->received ? load->sent : load->received;
  return (double)most / bandwidth + (double)load->messages * latency;
}
/* Of the member that takes longest, where all are known: ranks of a class have other shares. */
static double call_seconds(const SimCost *cost, const CommCall *call, const CommLoad *own) {
  double most = load_seconds(cost, call->axes, own);
  for (int i = 0; i < call->n && call->load; i++) {
    double seconds = load_seconds(cost, call->axes, &call->load[i]);
    most = seconds > most ? seconds : most;
  }
  return most;
}

static SimEvent *add_event(Compile *c, SimKind kind, const char *name, const CommCall *call) {
  SimEvent *x = &c->list.event[c->list.n++];
  *x = (SimEvent){.kind = kind, .axes = call->axes, .name = name, .call = call->kind, .before = c->compute, .sent = call->bytes};
  for (int i = 0; i < call->n; i++) x->received += call->from[i];
  x->seconds = call_seconds(c->cost, call, &(CommLoad){x->sent, x->received, call->messages});
  c->compute = 0;
  return x;
}
static uint64_t *copied(Arena *a, const uint64_t *x, int n) { return memcpy(ARENA_NEW(a, uint64_t, n), x, (size_t)n * sizeof *x); }

/* The copy of a tied embedding goes between two stages of the group; the others take no part. */
enum { TAG_OF_COPY = 1 };
static void add_pair(Compile *c, const Ins *i, const char *name, const CommCall *call) {
  for (int k = 0; k < call->n; k++) {
    if (!call->to[k] && !call->from[k]) continue;
    SimEvent *x = add_event(c, call->to[k] ? SIM_SEND : SIM_RECV, name, call);
    x->peer = k, x->tag = -TAG_OF_COPY - (int)i->kind;
  }
}

/* Calls by shares of parameters that ranks with equal states do not have in equal sizes: of one parameter, or where states are whole. */
static bool unlike_shares(const Compile *c, InsKind k) {
  return k == INS_FETCH || k == INS_REDUCE_PARAM || (!c->t->zero1 && (k == INS_REDUCE || k == INS_NORM));
}

static void add_call(void *ctx, int ins, const CommCall *call) {
  Compile *c = ctx;
  const Ins *i = &c->t->s->ins[ins];
  char buf[160];
  compute_to(c, ins + 1);
  const char *name = arena_printf(c->a, "%s", ins_name(c->t->s, i, buf, sizeof buf));
  CHECK(c->list.n + 1 < c->max, "more than %d messages", c->max);
  if (i->kind == INS_SEND || i->kind == INS_RECV) {
    SimEvent *x = add_event(c, i->kind == INS_SEND ? SIM_SEND : SIM_RECV, name, call);
    x->peer = i->peer, x->tag = i->tag;
  } else if (i->kind == INS_MIRROR_GRAD || i->kind == INS_MIRROR_WEIGHT) {
    add_pair(c, i, name, call);
  } else {
    SimEvent *x = add_event(c, SIM_CALL, name, call);
    x->shares = unlike_shares(c, i->kind);
    if (c->pairs) x->to = copied(c->a, call->to, call->n), x->from = copied(c->a, call->from, call->n);
  }
}

enum { CALLS_PER_INS = 8 }; /* attention's backward makes six, and a ring one for each member and one more */
static int most_calls(const Step *s) {
  int n = s->n_ins * CALLS_PER_INS;
  for (int k = 0; k < s->n_ins; k++) {
    const Program *p = s->ins[k].kind == INS_KERNEL ? s->chunk[s->ins[k].chunk] : NULL;
    if (p && p->op[s->ins[k].op].kind == OP_ATTENTION) n += p->dims.n_cp;
  }
  return n;
}
SimList sim_compile(Arena *a, Arena *scratch, const TrafficArgs *t, const SimCost *cost, bool pairs) {
  Compile c = {.t = t, .cost = cost, .a = a, .pairs = pairs, .max = most_calls(t->s)};
  c.list.event = ARENA_NEW(a, SimEvent, c.max);
  CHECK(a != scratch, "a list that is given back");
  traffic_walk(scratch, t, add_call, &c);
  compute_to(&c, t->s->n_ins);
  c.list.after = c.compute;
  return c.list;
}
