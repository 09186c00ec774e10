/* Llama (dense) and Mixtral: pre-norm transformer, grouped-query attention with rotary embedding, SwiGLU, top-k experts. */
#include "model/model.h"

#include "base/hash.h"
#include "model/model_params.h"

typedef struct Build {
  Program *p;
  const Config *c;
  const ModelParams *mp;
} Build;

static const char *layer_name(const Build *b, const char *what) {
  return b->p->layer < 0 ? what : arena_printf(b->p->arena, "L%02d.%s", b->p->layer, what);
}
static ValId linear(const Build *b, const char *name, ValId x, int w, ValId plan) {
  return op_linear(b->p, layer_name(b, name), x, program_param(b->p, w), plan);
}

static ValId attention(const Build *b, ValId x, const LayerParams *l) {
  const ModelConfig *m = &b->c->model;
  ValId in[3];
  op_gather(b->p, layer_name(b, "attn.in"), x, 3, in);
  ValId q = op_rope(b->p, layer_name(b, "attn.q.rope"), linear(b, "attn.q", in[0], l->q, NO_VAL), m->rope_theta, m->head_dim);
  ValId k = op_rope(b->p, layer_name(b, "attn.k.rope"), linear(b, "attn.k", in[1], l->k, NO_VAL), m->rope_theta, m->head_dim);
  ValId v = linear(b, "attn.v", in[2], l->v, NO_VAL);
  static const CpComm comm[] = {[CP_COMM_ALLGATHER] = CP_ALLGATHER, [CP_COMM_A2A] = CP_ALLTOALL, [CP_COMM_P2P] = CP_RING};
  ROW_FOR_EACH(comm, N_CP_COMM_TYPE);
  ValId o = op_attention(b->p, layer_name(b, "attn.core"), q, k, v, m->head_dim, m->sliding_window, comm[b->c->layout.cp_comm_type]);
  return op_reduce(b->p, layer_name(b, "attn.out"), linear(b, "attn.o", o, l->o, NO_VAL));
}

static ValId dense_ffn(const Build *b, ValId x, const LayerParams *l) {
  ValId in[2];
  op_gather(b->p, layer_name(b, "mlp.in"), x, 2, in);
  ValId gate = linear(b, "mlp.gate", in[0], l->gate, NO_VAL), up = linear(b, "mlp.up", in[1], l->up, NO_VAL);
  ValId act = op_swiglu(b->p, layer_name(b, "mlp.act"), gate, up, NO_VAL);
  return op_reduce(b->p, layer_name(b, "mlp.out"), linear(b, "mlp.down", act, l->down, NO_VAL));
}

static RouteArgs route_args(const Build *b) {
  const Config *c = b->c;
  uint64_t seed = hash_mix((uint64_t)c->train.seed + 0x9e3779b97f4a7c15u * (uint64_t)(b->p->layer + 1));
  return (RouteArgs){.n_expert = (int)c->model.num_local_experts,
                     .top_k = (int)c->model.num_experts_per_tok,
                     .renormalise = c->model.norm_topk_prob,
                     .forced = (int)c->moe.routing,
                     .zipf_exponent = c->moe.zipf_exponent,
                     .seed = seed,
                     .aux_per_sequence = c->moe.aux_scope == AUX_SEQUENCE};
}

/* Rows go to their experts with their routing weight, which scales the activation (so expert outputs need not be kept), and come back to be
 * added in slot order. */
static ValId moe_ffn(const Build *b, ValId x, const LayerParams *l) {
  Program *p = b->p;
  RouteArgs args = route_args(b);
  ValId logits = linear(b, "moe.router", x, l->router, NO_VAL);
  RouteOut r = op_route(p, layer_name(b, "moe.route"), logits, &args, b->c->model.router_aux_loss_coef, b->c->model.router_z_loss_coef);
  ValId plan = op_exchange_counts(p, layer_name(b, "moe.plan"), r.counts);
  ValId rows[2], weight;
  op_dispatch(p, layer_name(b, "moe.dispatch"), op_permute(p, layer_name(b, "moe.permute"), x, r.row_of), plan, 2, rows);
  op_dispatch(p, layer_name(b, "moe.dispatch_w"), op_permute_weights(p, layer_name(b, "moe.permute_w"), r.weight, r.row_of), plan, 1,
              &weight);
  ValId gate = linear(b, "moe.gate", rows[0], l->gate, plan), up = linear(b, "moe.up", rows[1], l->up, plan);
  ValId act = op_swiglu(p, layer_name(b, "moe.act"), gate, up, weight);
  ValId back = op_return(p, layer_name(b, "moe.return"), linear(b, "moe.down", act, l->down, plan), plan);
  return op_combine(p, layer_name(b, "moe.out"), back, r.row_of);
}

/* Router statistics lie by layer, the same on every stage. */
int model_stat(const ModelConfig *m, int layer) {
  int n = 0;
  for (int i = 0; i < layer; i++) n += config_layer_is_moe(m, i);
  return STAT_ROUTE + n * (2 + 2 * (int)m->num_local_experts);
}

static ValId layer(const Build *b, ValId x, int i) {
  const ModelConfig *m = &b->c->model;
  const LayerParams *l = &b->mp->layer[i];
  Program *p = b->p;
  p->layer = i;
  p->next_stat = model_stat(m, i);
  ValId n1 = op_rmsnorm(p, layer_name(b, "norm1"), x, program_param(p, l->norm1), m->rms_norm_eps);
  x = op_add(p, layer_name(b, "mid"), x, attention(b, n1, l));
  ValId n2 = op_rmsnorm(p, layer_name(b, "norm2"), x, program_param(p, l->norm2), m->rms_norm_eps);
  x = op_add(p, layer_name(b, "hidden"), x, config_layer_is_moe(m, i) ? moe_ffn(b, n2, l) : dense_ffn(b, n2, l));
  p->val[x].floor = true;
  p->layer = -1;
  return x;
}

static ValId stage_input(const Build *b, const StageSpan *span) {
  Program *p = b->p;
  if (span->embeds) {
    p->tokens = program_input(p, "tokens", DT_I32, ROWS_TP, 1);
    return op_reduce(p, "embed.out", op_embed(p, "embed", p->tokens, program_param(p, b->mp->embed)));
  }
  return p->recv = program_act(p, "stage.in", ROWS_TOKEN, b->c->model.hidden_size, shards_uncut(b->c->model.hidden_size));
}

static void build_decoder(const Build *b, const StageSpan *span) {
  Program *p = b->p;
  ValId x = stage_input(b, span);
  p->val[x].floor = true;
  for (int i = 0; i < span->n_layer; i++) x = layer(b, x, span->first_layer + i);
  if (!span->heads) {
    p->send = x;
    return;
  }
  p->labels = program_input(p, "labels", DT_I32, ROWS_TP, 1);
  op_gather(p, "head.in", op_rmsnorm(p, "norm", x, program_param(p, b->mp->norm), b->c->model.rms_norm_eps), 1, &x);
  p->loss = op_xent(p, "loss", linear(b, "head", x, b->mp->head, NO_VAL), p->labels);
}

/* A family is a row here: who declares its parameters is shared so far. */
static void (*const family_build[])(const Build *b,
                                    const StageSpan *span) = {[FAMILY_LLAMA] = build_decoder, [FAMILY_MIXTRAL] = build_decoder};
ROW_FOR_EACH(family_build, N_FAMILY);

void model_build(Program *p, const Config *c, const ModelParams *mp, const StageSpan *span, int virtual_stage, int n_virtual) {
  Build b = {p, c, mp};
  p->virtual_stage = virtual_stage, p->n_virtual = n_virtual;
  p->n_stat = model_stat(&c->model, (int)c->model.num_hidden_layers);
  family_build[c->model.model_type](&b, span);
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* What the members of this rank's expert group send at most: they deal alike, so everybody knows. */
static void expert_bounds(Dims *x, const Mesh *m, int rank, const Deal *d) {
  AxisSet axes = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP);
  for (int i = 0; i < x->n_ep * x->n_etp; i++) {
    DealCount most = deal_most(d, deal_place(m, mesh_group_rank(m, rank, axes, i)), VIEW_OWN);
    if (most.n_window > x->n_window_peer) x->n_window_peer = most.n_window;
    x->n_row_expert += most.n_token * min64(x->top_k, x->n_expert_here); /* a token meets an expert once */
  }
}

Dims model_dims(const Config *c, const Mesh *m, int rank, const Deal *d) {
  DealPlace place = deal_place(m, rank);
  Dims x = {.n_seq = d->micro_batch,
            .seq_length = d->seq_length,
            .window = d->window,
            .top_k = (int)c->model.num_experts_per_tok,
            .n_expert = (int)c->model.num_local_experts,
            .n_tp = d->n_tp,
            .tp_self = place.tp,
            .n_cp = d->n_cp,
            .cp_self = place.cp,
            .n_ep = m->size[AXIS_EP],
            .ep_self = mesh_coord(m, rank, AXIS_EP),
            .n_etp = m->size[AXIS_ETP],
            .etp_self = mesh_coord(m, rank, AXIS_ETP)};
  for (int k = 0; k < N_TOKEN_VIEW; k++) x.n_token[k] = deal_most(d, place, k).n_token;
  x.n_window = deal_most(d, place, VIEW_OWN).n_window;
  x.first_expert = (int)share_begin(x.n_expert, x.n_ep, x.ep_self);
  x.n_expert_here = (int)share_begin(x.n_expert, x.n_ep, x.ep_self + 1) - x.first_expert;
  expert_bounds(&x, m, rank, d);
  return x;
}
