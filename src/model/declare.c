/* Parameters of the Llama and Mixtral families, with Hugging Face's names. */
#include "base/err.h"
#include "model/model_params.h"

typedef struct Declare {
  ParamSet *ps;
  const Config *c;
  bool elsewhere;
} Declare;

int model_shards(const Config *c) {
  int64_t most = c->layout.tp > c->layout.etp ? c->layout.tp : c->layout.etp;
  return (int)(c->numerics.mode == NUM_NATIVE ? most : c->numerics.shards);
}
/* A feature axis of `units` units, cut into as many blocks as there are shards or units; this rank has its share of them over `axis`. */
static Shards cut(const Declare *d, Axis axis, int64_t units, int64_t unit) {
  int64_t n = model_shards(d->c) < units ? model_shards(d->c) : units;
  Shards s = {.n = (int)n, .units = units, .unit = unit};
  return shards_of(&s, d->ps->mesh->size[axis], mesh_coord(d->ps->mesh, d->ps->rank, axis));
}

static int matrix(const Declare *d, int layer, const char *name, const char *hf, ParamKind kind, int64_t n_out, int64_t n_in, CutDim dim,
                  Shards s) {
  Arena *a = d->ps->arena;
  return params_add(d->ps, (Param){.name = arena_printf(a, "L%02d.%s", layer, name),
                                   .hf_name = arena_printf(a, "model.layers.%d.%s.weight", layer, hf),
                                   .kind = kind,
                                   .group = kind == PARAM_ROUTER ? PGROUP_TOKEN : PGROUP_SHARD,
                                   .cut_dim = dim,
                                   .n_out = n_out,
                                   .n_in = n_in,
                                   .n_dim = 2,
                                   .cut = s,
                                   .n_use = 1,
                                   .elsewhere = d->elsewhere});
}
static int gain(const Declare *d, const char *name, const char *hf, int64_t H) {
  return params_add(d->ps, (Param){.name = name,
                                   .hf_name = hf,
                                   .kind = PARAM_NORM,
                                   .group = PGROUP_TOKEN,
                                   .cut_dim = CUT_OUT,
                                   .n_out = 1,
                                   .n_in = H,
                                   .n_dim = 1,
                                   .cut = shards_uncut(1),
                                   .n_use = 1,
                                   .elsewhere = d->elsewhere});
}
static int expert_matrix(const Declare *d, int layer, const char *w, int64_t n_out, int64_t n_in, CutDim dim, Shards s) {
  Arena *a = d->ps->arena;
  int ep = d->ps->mesh->size[AXIS_EP], self = mesh_coord(d->ps->mesh, d->ps->rank, AXIS_EP), E = (int)d->c->model.num_local_experts;
  int first = (int)share_begin(E, ep, self);
  return params_add(d->ps, (Param){.name = arena_printf(a, "L%02d.experts.%s", layer, w),
                                   .hf_name = arena_printf(a, "model.layers.%d.block_sparse_moe.experts.%%d.%s.weight", layer, w),
                                   .kind = PARAM_MATRIX,
                                   .group = PGROUP_EXPERT,
                                   .cut_dim = dim,
                                   .n_out = n_out,
                                   .n_in = n_in,
                                   .n_dim = 2,
                                   .cut = s,
                                   .n_use = 1,
                                   .n_expert = E,
                                   .first_expert = first,
                                   .n_expert_here = (int)share_begin(E, ep, self + 1) - first,
                                   .elsewhere = d->elsewhere});
}

static void declare_layer(const Declare *d, int layer, LayerParams *l) {
  const ModelConfig *m = &d->c->model;
  Arena *a = d->ps->arena;
  int64_t H = m->hidden_size, D = m->head_dim;
  Shards q = cut(d, AXIS_TP, m->num_attention_heads, D), kv = cut(d, AXIS_TP, m->num_key_value_heads, D);
  l->norm1 = gain(d, arena_printf(a, "L%02d.norm1", layer), arena_printf(a, "model.layers.%d.input_layernorm.weight", layer), H);
  l->q = matrix(d, layer, "attn.q", "self_attn.q_proj", PARAM_MATRIX, m->num_attention_heads * D, H, CUT_OUT, q);
  l->k = matrix(d, layer, "attn.k", "self_attn.k_proj", PARAM_MATRIX, m->num_key_value_heads * D, H, CUT_OUT, kv);
  l->v = matrix(d, layer, "attn.v", "self_attn.v_proj", PARAM_MATRIX, m->num_key_value_heads * D, H, CUT_OUT, kv);
  l->o = matrix(d, layer, "attn.o", "self_attn.o_proj", PARAM_MATRIX, H, m->num_attention_heads * D, CUT_IN, q);
  l->norm2 = gain(d, arena_printf(a, "L%02d.norm2", layer), arena_printf(a, "model.layers.%d.post_attention_layernorm.weight", layer), H);
  if (config_layer_is_moe(m, layer)) {
    int64_t F = config_ffn_expert(m);
    Shards f = cut(d, AXIS_ETP, F, 1);
    l->router = matrix(d, layer, "router", "block_sparse_moe.gate", PARAM_ROUTER, m->num_local_experts, H, CUT_OUT,
                       shards_uncut(m->num_local_experts));
    l->gate = expert_matrix(d, layer, "w1", F, H, CUT_OUT, f);
    l->up = expert_matrix(d, layer, "w3", F, H, CUT_OUT, f);
    l->down = expert_matrix(d, layer, "w2", H, F, CUT_IN, f);
  } else {
    int64_t F = m->intermediate_size;
    Shards f = cut(d, AXIS_TP, F, 1);
    l->gate = matrix(d, layer, "mlp.gate", "mlp.gate_proj", PARAM_MATRIX, F, H, CUT_OUT, f);
    l->up = matrix(d, layer, "mlp.up", "mlp.up_proj", PARAM_MATRIX, F, H, CUT_OUT, f);
    l->down = matrix(d, layer, "mlp.down", "mlp.down_proj", PARAM_MATRIX, H, F, CUT_IN, f);
  }
}

/* The head of a tied model is the embedding; on another stage it is a mirror of it, declared last and by every rank. */
static void declare_head(Declare *d, ModelParams *mp, Param table, bool head_here, bool embed_here) {
  d->elsewhere = !head_here;
  mp->head = mp->embed;
  if (!d->c->model.tie_word_embeddings) {
    table.name = "head", table.hf_name = "lm_head.weight", table.elsewhere = !head_here;
    mp->head = params_add(d->ps, table);
  } else if (d->ps->mesh->size[AXIS_PP] > 1) {
    table.name = "head.mirror", table.group = PGROUP_MIRROR, table.mirror_of = mp->embed, table.elsewhere = !head_here || embed_here;
    mp->head = params_add(d->ps, table);
  }
}

ModelParams *model_declare(ParamSet *ps, const Config *c, const StageSpan *span, int n_virtual) {
  const ModelConfig *m = &c->model;
  Declare d = {.ps = ps, .c = c};
  ModelParams *mp = ARENA_NEW(ps->arena, ModelParams, 1);
  mp->layer = ARENA_NEW(ps->arena, LayerParams, m->num_hidden_layers);
  int pp = ps->mesh->size[AXIS_PP], stage = mesh_coord(ps->mesh, ps->rank, AXIS_PP);
  bool embed_here = stage == 0, head_here = (n_virtual - 1) % pp == stage;
  Param table = {.name = "embed",
                 .hf_name = "model.embed_tokens.weight",
                 .kind = PARAM_EMBEDDING,
                 .group = PGROUP_SHARD,
                 .cut_dim = CUT_OUT,
                 .n_out = m->vocab_size,
                 .n_in = m->hidden_size,
                 .n_dim = 2,
                 .cut = cut(&d, AXIS_TP, m->vocab_size, 1),
                 .n_use = m->tie_word_embeddings ? 2 : 1,
                 .elsewhere = !embed_here};
  mp->embed = params_add(ps, table);
  for (int v = 0; v < n_virtual; v++)
    for (int i = span[v].first_layer; i < span[v].first_layer + span[v].n_layer; i++) {
      d.elsewhere = v % pp != stage;
      declare_layer(&d, i, &mp->layer[i]);
    }
  d.elsewhere = !head_here;
  mp->norm = gain(&d, "norm", "model.norm.weight", m->hidden_size);
  declare_head(&d, mp, table, head_here, embed_here);
  params_finish(ps);
  return mp;
}
