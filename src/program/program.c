#include "program/program.h"

#include "base/err.h"
#include "program/op.h"

void program_open(Program *p, Arena *a, const Mesh *m, int rank, const Dims *d, const Numerics *num, ParamSet *ps) {
  *p = (Program){.arena = a,
                 .mesh = m,
                 .rank = rank,
                 .dims = *d,
                 .num = *num,
                 .params = ps,
                 .layer = -1,
                 .tokens = NO_VAL,
                 .labels = NO_VAL,
                 .loss = NO_VAL,
                 .recv = NO_VAL,
                 .send = NO_VAL,
                 .n_stat = STAT_ROUTE};
  p->op = ARENA_NEW(a, Op, PROGRAM_MAX_OP);
  p->val = ARENA_NEW(a, Value, PROGRAM_MAX_VAL);
}

static ValId value_add(Program *p, Value v) {
  CHECK(p->n_val < PROGRAM_MAX_VAL, "more than %d values", PROGRAM_MAX_VAL);
  v.layer = p->layer;
  v.rows_from = v.alias_of = NO_VAL;
  v.grad_width = v.width;
  if (v.rows == ROWS_SEQ && p->dims.n_cp == 1) v.rows = ROWS_TP;
  if (v.rows == ROWS_TP && p->dims.n_tp == 1) v.rows = ROWS_TOKEN;
  v.def = -1;
  if (!v.cut.n) v.cut = shards_uncut(v.width);
  p->val[p->n_val] = v;
  return p->n_val++;
}

ValId program_input(Program *p, const char *name, DType t, RowKind rows, int64_t width) {
  return value_add(p, (Value){.name = name, .kind = VAL_INPUT, .dtype = t, .rows = rows, .width = width, .floor = true});
}

ValId program_param(Program *p, int param) {
  return value_add(p, (Value){.name = p->params->param[param].name,
                              .kind = VAL_PARAM,
                              .dtype = weight_type(&p->num, p->params->param[param].group),
                              .rows = ROWS_ONE,
                              .param = param});
}

ValId program_act(Program *p, const char *name, RowKind rows, int64_t width, Shards cut) {
  return value_add(p, (Value){.name = name,
                              .kind = VAL_ACT,
                              .dtype = p->num.act,
                              .grad_dtype = p->num.act,
                              .rows = rows,
                              .width = width,
                              .cut = cut,
                              .late = rows == ROWS_EXPERT});
}

ValId program_index(Program *p, const char *name, RowKind rows, int64_t width) {
  return value_add(p, (Value){.name = name, .kind = VAL_INDEX, .dtype = DT_I32, .rows = rows, .width = width, .floor = true});
}

void value_types(Program *p, ValId v, DType value, DType grad) { p->val[v].dtype = value, p->val[v].grad_dtype = grad; }

DType weight_type(const Numerics *n, ParamGroupId g) { return g == PGROUP_TOKEN ? n->real : n->act; }

Op *program_op(Program *p, OpKind kind, const char *name, const ValId *in, int n_in, const ValId *out, int n_out) {
  CHECK(p->n_op < PROGRAM_MAX_OP, "more than %d ops", PROGRAM_MAX_OP);
  Op *op = &p->op[p->n_op];
  *op = (Op){.kind = kind,
             .n_in = n_in,
             .n_out = n_out,
             .name = name,
             .layer = p->layer,
             .x_in = op_desc[kind].x_in,
             .x_out = op_desc[kind].x_out};
  for (int i = 0; i < n_in; i++) {
    op->in[i] = in[i];
    CHECK(in[i] == NO_VAL || in[i] < p->n_val, "%s reads a value that is not there yet", name);
    bool sums = kind == OP_REDUCE || kind == OP_RETURN;
    CHECK(in[i] == NO_VAL || sums || !p->val[in[i]].layout.partial, "%s reads %s, which is still to be summed over other ranks", name,
          p->val[in[i]].name);
  }
  for (int i = 0; i < n_out; i++) {
    op->out[i] = out[i];
    p->val[out[i]].def = p->n_op;
  }
  p->n_op++;
  return op;
}

const Param *program_param_of(const Program *p, ValId v) {
  CHECK(p->val[v].kind == VAL_PARAM, "%s is not a parameter", p->val[v].name);
  return &p->params->param[p->val[v].param];
}

int64_t value_bound_rows(const Program *p, ValId v) {
  const Dims *d = &p->dims;
  const int64_t rows[N_ROWS] = {[ROWS_TOKEN] = d->n_token[VIEW_OWN], [ROWS_TP] = d->n_token[VIEW_TP],
                                [ROWS_SEQ] = d->n_token[VIEW_SEQ],   [ROWS_ROUTE] = d->n_token[VIEW_OWN] * d->top_k,
                                [ROWS_EXPERT] = d->n_row_expert,     [ROWS_WINDOW] = d->n_window,
                                [ROWS_SEQUENCE] = d->n_seq,          [ROWS_ONE] = 1};
  return rows[p->val[v].rows];
}

int64_t value_rows(const Program *p, ValId v, const DealMb *mb, int64_t n_row_expert) {
  const TokenView *own = &mb->view[VIEW_OWN];
  const int64_t rows[N_ROWS] = {[ROWS_TOKEN] = own->n_token,
                                [ROWS_TP] = mb->view[VIEW_TP].n_token,
                                [ROWS_SEQ] = mb->view[VIEW_SEQ].n_token,
                                [ROWS_ROUTE] = own->n_token * p->dims.top_k,
                                [ROWS_EXPERT] = n_row_expert,
                                [ROWS_WINDOW] = own->n_window,
                                [ROWS_SEQUENCE] = own->n_seq,
                                [ROWS_ONE] = 1};
  return rows[p->val[v].rows];
}

const TokenView *value_view(const Program *p, ValId v, const DealMb *mb) {
  static const ViewKind kind[N_ROWS] = {[ROWS_TOKEN] = VIEW_OWN, [ROWS_TP] = VIEW_TP, [ROWS_SEQ] = VIEW_SEQ};
  return &mb->view[kind[p->val[v].rows]];
}

size_t value_row_bytes(const Program *p, ValId v, bool grad) {
  const Value *x = &p->val[v];
  return grad ? (size_t)x->grad_width * dtype_size(x->grad_dtype) : (size_t)x->width * dtype_size(x->dtype);
}

Shards shards_uncut(int64_t width) { return (Shards){1, 0, 1, width, 1}; }
Shards shards_of(const Shards *s, int n, int self) {
  int first = (int)share_begin(s->n, n, self);
  return (Shards){.n = s->n, .first = first, .count = (int)share_begin(s->n, n, self + 1) - first, .units = s->units, .unit = s->unit};
}

bool value_needs_grad(const Program *p, ValId v) { return v != NO_VAL && p->val[v].kind == VAL_ACT; }

const char *pass_suffix(Pass pass) {
  static const char *const suffix[N_PASS] = {"", "/dX", "/dW"};
  return suffix[pass];
}
