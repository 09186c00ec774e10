/* What a Mixture-of-Experts layer does with tokens where they live: routing, and rows of tokens to rows by expert and back. */
#include "program/op_passes.h"

/* ---- route ------------------------------------------------------------------------------------------------------------------------ */
RouteOut op_route(Program *p, const char *name, ValId logits, const RouteArgs *args, double aux_coef, double z_coef) {
  Arena *a = p->arena;
  bool per_sequence = args->aux_per_sequence; /* counted with coefficient 0 too: the loss is reported */
  RouteOut r = {.idx = program_index(p, arena_printf(a, "%s.idx", name), ROWS_TOKEN, args->top_k),
                .weight = program_act(p, arena_printf(a, "%s.weight", name), ROWS_TOKEN, args->top_k, shards_uncut(args->top_k)),
                .row_of = program_index(p, arena_printf(a, "%s.row_of", name), ROWS_TOKEN, args->top_k),
                .counts = program_index(p, arena_printf(a, "%s.counts", name), ROWS_WINDOW, args->n_expert)};
  p->val[r.weight].floor = true;
  value_types(p, r.weight, p->num.real, p->num.real);
  ValId out[5] = {r.idx, r.weight, r.row_of, r.counts};
  if (per_sequence) out[4] = program_index(p, arena_printf(a, "%s.seq_counts", name), ROWS_SEQUENCE, args->n_expert);
  Op *op = program_op(p, OP_ROUTE, name, &logits, 1, out, per_sequence ? 5 : 4);
  op->attr.route.args = *args;
  op->attr.route.args.seq_length = p->dims.seq_length;
  op->attr.route.stat = p->next_stat;
  op->attr.route.aux_coef = aux_coef;
  op->attr.route.z_coef = z_coef;
  p->next_stat += 2 + 2 * args->n_expert;
  return r;
}

/* Gradients are of the sum of token losses, so auxiliary terms, which are means, come in times N_valid. */
static RouteArgs route_args(const OpCall *c) {
  RouteArgs a = c->op->attr.route.args;
  a.n_token_global = c->env->n_token_global;
  a.aux_scale = c->op->attr.route.aux_coef * c->env->n_valid;
  if (a.aux_per_sequence) a.aux_scale /= (double)c->env->n_seq_global;
  a.replay = c->env->replay ? c->env->replay[c->op->layer] : NULL;
  a.z_scale = c->op->attr.route.z_coef * c->env->n_valid / (double)c->env->n_token_global;
  return a;
}
static StatSink route_sink(const OpCall *c) {
  return (StatSink){.word = c->env->stat + c->op->attr.route.stat, .shift = c->env->stat_shift, .fault = c->env->fault};
}
/* Sequences are dealt over CP and TP: counts of whole ones are summed over both. */
static void sum_sequence_counts(const OpCall *c) {
  int64_t n = c->mb->view[VIEW_OWN].n_seq * c->p->dims.n_expert;
  int32_t *counts = c->out[4];
  uint64_t *sum = c->work;
  c->env->k->sequence_counts(&c->env->kctx, counts, c->out[3], c->p->dims.n_expert, &c->mb->view[VIEW_OWN]);
  for (int64_t i = 0; i < n; i++) sum[i] = (uint64_t)counts[i];
  comm_allreduce_u64(c->env->world, AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP), sum, n);
  for (int64_t i = 0; i < n; i++) counts[i] = (int32_t)sum[i];
}
void route_fwd(const OpCall *c) {
  RouteArgs a = route_args(c);
  StatSink sink = route_sink(c);
  c->env->k->route_fwd(&c->env->kctx, c->out[0], c->out[1], c->out[2], c->out[3], c->in[0], &a, &c->mb->view[VIEW_OWN], &sink);
  if (c->op->n_out == 5) sum_sequence_counts(c);
}
void route_dx(const OpCall *c) {
  RouteArgs a = route_args(c);
  StatSink sink = route_sink(c);
  bool batch = !a.aux_per_sequence && c->op->attr.route.aux_coef != 0;
  c->env->k->route_bwd(&c->env->kctx, c->d_in[0], c->d_out[1], c->in[0], c->out[0], c->out[4], batch ? sink.word + 2 : NULL, &a,
                       &c->mb->view[VIEW_OWN], &sink);
}
void route_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD && c->op->n_out == 5)
    sketch_allreduce_u64(s, AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP), c->mb->view[VIEW_OWN].n_seq * c->p->dims.n_expert);
}
size_t route_work(const OpWorkArgs *w, Pass pass) {
  return pass == PASS_FWD && w->op->n_out == 5 ? (size_t)(w->p->dims.n_seq * w->p->dims.n_expert) * sizeof(uint64_t) : 0;
}

/* ---- moving rows --------------------------------------------------------------------------------------------------------------------- */
ValId op_permute(Program *p, const char *name, ValId x, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, p->val[x].width, p->val[x].cut);
  value_types(p, y, p->num.act, p->num.real);
  program_op(p, OP_PERMUTE, name, (ValId[]){x, row_of}, 2, &y, 1);
  return y;
}
void permute_fwd(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->in[0]].width);
}
void permute_dx(const OpCall *c) {
  c->env->k->wide->rows_combine(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                                c->p->val[c->op->in[0]].width);
}

ValId op_permute_weights(Program *p, const char *name, ValId weight, ValId row_of) {
  ValId y = program_act(p, name, ROWS_ROUTE, 1, shards_uncut(1));
  value_types(p, y, p->num.real, p->num.real);
  program_op(p, OP_PERMUTE_WEIGHTS, name, (ValId[]){weight, row_of}, 2, &y, 1);
  return y;
}
void permute_weights_fwd(const OpCall *c) {
  c->env->k->slots_to_rows(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k);
}
void permute_weights_dx(const OpCall *c) {
  c->env->k->rows_to_slots(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k);
}

ValId op_combine(Program *p, const char *name, ValId rows, ValId row_of) {
  ValId y = program_act(p, name, ROWS_TOKEN, p->val[rows].width, p->val[rows].cut);
  program_op(p, OP_COMBINE, name, (ValId[]){rows, row_of}, 2, &y, 1);
  return y;
}
void combine_fwd(const OpCall *c) {
  c->env->k->rows_combine(&c->env->kctx, c->out[0], c->in[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->out[0]].width);
}
void combine_dx(const OpCall *c) {
  c->env->k->rows_scatter(&c->env->kctx, c->d_in[0], c->d_out[0], c->in[1], c->mb->view[VIEW_OWN].n_token, c->p->dims.top_k,
                          c->p->val[c->op->out[0]].width);
}
