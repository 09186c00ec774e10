/* Parameters of the Llama and Mixtral families, with Hugging Face's names. */
#include "base/err.h"
#include "model/model_params.h"

static Shards cut(const Config *c, const Mesh *m, int rank, int64_t units, int64_t unit, int64_t most) {
  int64_t n = c->numerics.shards < most ? c->numerics.shards : most;
  if (n > units) n = units;
  int tp = m->size[AXIS_TP], self = mesh_coord(m, rank, AXIS_TP);
  int first = (int)share_begin(n, tp, self);
  return (Shards){.n = (int)n, .first = first, .count = (int)share_begin(n, tp, self + 1) - first, .units = units, .unit = unit};
}
static Shards whole(int64_t width) { return (Shards){1, 0, 1, width, 1}; }

static int matrix(ParamSet *ps, int layer, const char *name, const char *hf, ParamKind kind, int64_t n_out, int64_t n_in, CutDim dim, Shards s) {
  Arena *a = ps->arena;
  return params_add(ps, (Param){.name = arena_printf(a, "L%02d.%s", layer, name), .hf_name = arena_printf(a, "model.layers.%d.%s.weight", layer, hf),
                                .kind = kind, .group = PGROUP_DENSE, .cut_dim = dim, .n_out = n_out, .n_in = n_in, .n_dim = 2, .cut = s, .n_use = 1});
}
static int gain(ParamSet *ps, const char *name, const char *hf, int64_t H) {
  return params_add(ps, (Param){.name = name, .hf_name = hf, .kind = PARAM_NORM, .group = PGROUP_DENSE, .cut_dim = CUT_OUT, .n_out = 1, .n_in = H, .n_dim = 1,
                                .cut = whole(1), .n_use = 1});
}
static int expert_matrix(ParamSet *ps, const Config *c, int layer, const char *w, int64_t n_out, int64_t n_in, CutDim dim, Shards s) {
  Arena *a = ps->arena;
  int ep = ps->mesh->size[AXIS_EP], self = mesh_coord(ps->mesh, ps->rank, AXIS_EP), E = (int)c->model.num_local_experts;
  int first = (int)share_begin(E, ep, self);
  return params_add(ps, (Param){.name = arena_printf(a, "L%02d.experts.%s", layer, w),
                                .hf_name = arena_printf(a, "model.layers.%d.block_sparse_moe.experts.%%d.%s.weight", layer, w), .kind = PARAM_MATRIX,
                                .group = PGROUP_EXPERT, .cut_dim = dim, .n_out = n_out, .n_in = n_in, .n_dim = 2, .cut = s, .n_use = 1, .n_expert = E,
                                .first_expert = first, .n_expert_here = (int)share_begin(E, ep, self + 1) - first});
}

static void declare_layer(ParamSet *ps, const Config *c, int layer, LayerParams *l) {
  const ModelConfig *m = &c->model;
  Arena *a = ps->arena;
  int64_t H = m->hidden_size, D = m->head_dim, big = INT32_MAX;
  Shards q = cut(c, ps->mesh, ps->rank, m->num_attention_heads, D, big), kv = cut(c, ps->mesh, ps->rank, m->num_key_value_heads, D, big);
  l->norm1 = gain(ps, arena_printf(a, "L%02d.norm1", layer), arena_printf(a, "model.layers.%d.input_layernorm.weight", layer), H);
  l->q = matrix(ps, layer, "attn.q", "self_attn.q_proj", PARAM_MATRIX, m->num_attention_heads * D, H, CUT_OUT, q);
  l->k = matrix(ps, layer, "attn.k", "self_attn.k_proj", PARAM_MATRIX, m->num_key_value_heads * D, H, CUT_OUT, kv);
  l->v = matrix(ps, layer, "attn.v", "self_attn.v_proj", PARAM_MATRIX, m->num_key_value_heads * D, H, CUT_OUT, kv);
  l->o = matrix(ps, layer, "attn.o", "self_attn.o_proj", PARAM_MATRIX, H, m->num_attention_heads * D, CUT_IN, q);
  l->norm2 = gain(ps, arena_printf(a, "L%02d.norm2", layer), arena_printf(a, "model.layers.%d.post_attention_layernorm.weight", layer), H);
  if (config_layer_is_moe(m, layer)) {
    int64_t F = config_ffn_expert(m);
    Shards f = cut(c, ps->mesh, ps->rank, F, 1, big);
    l->router = matrix(ps, layer, "router", "block_sparse_moe.gate", PARAM_ROUTER, m->num_local_experts, H, CUT_OUT, whole(m->num_local_experts));
    l->gate = expert_matrix(ps, c, layer, "w1", F, H, CUT_OUT, f);
    l->up = expert_matrix(ps, c, layer, "w3", F, H, CUT_OUT, f);
    l->down = expert_matrix(ps, c, layer, "w2", H, F, CUT_IN, f);
  } else {
    int64_t F = m->intermediate_size;
    Shards f = cut(c, ps->mesh, ps->rank, F, 1, big);
    l->gate = matrix(ps, layer, "mlp.gate", "mlp.gate_proj", PARAM_MATRIX, F, H, CUT_OUT, f);
    l->up = matrix(ps, layer, "mlp.up", "mlp.up_proj", PARAM_MATRIX, F, H, CUT_OUT, f);
    l->down = matrix(ps, layer, "mlp.down", "mlp.down_proj", PARAM_MATRIX, H, F, CUT_IN, f);
  }
}

ModelParams *model_declare(ParamSet *ps, const Config *c) {
  const ModelConfig *m = &c->model;
  ModelParams *mp = ARENA_NEW(ps->arena, ModelParams, 1);
  mp->layer = ARENA_NEW(ps->arena, LayerParams, m->num_hidden_layers);
  Shards vocab = cut(c, ps->mesh, ps->rank, m->vocab_size, 1, INT32_MAX);
  Param table = {.name = "embed", .hf_name = "model.embed_tokens.weight", .kind = PARAM_EMBEDDING, .group = PGROUP_DENSE, .cut_dim = CUT_OUT,
                 .n_out = m->vocab_size, .n_in = m->hidden_size, .n_dim = 2, .cut = vocab, .n_use = m->tie_word_embeddings ? 2 : 1};
  mp->embed = params_add(ps, table);
  for (int i = 0; i < m->num_hidden_layers; i++) declare_layer(ps, c, i, &mp->layer[i]);
  mp->norm = gain(ps, "norm", "model.norm.weight", m->hidden_size);
  mp->head = mp->embed;
  if (!m->tie_word_embeddings) {
    table.name = "head", table.hf_name = "lm_head.weight";
    mp->head = params_add(ps, table);
  }
  params_finish(ps);
  return mp;
}
