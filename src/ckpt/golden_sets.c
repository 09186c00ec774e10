#include "ckpt/golden.h"

#include <string.h>

enum { MAX_SETS = 64 };

typedef struct Sets {
  Arena *a;
  const char **text;
  int n;
} Sets;
static void set_text(Sets *s, const char *key, const char *v) {
  CHECK(s->n < MAX_SETS, "more than %d settings", MAX_SETS);
  s->text[s->n++] = arena_printf(s->a, "%s=%s", key, v);
}
static void set_int(Sets *s, const char *key, int64_t v) { set_text(s, key, arena_printf(s->a, "%lld", (long long)v)); }
static void set_bool(Sets *s, const char *key, bool v) { set_text(s, key, v ? "true" : "false"); }
static void set_real(Sets *s, const char *key, double v) { set_text(s, key, arena_printf(s->a, "%.17g", v)); }

static void sets_moe(Sets *s, const GoldenConfig *c) {
  set_int(s, "model.moe_intermediate_size", c->ffn);
  set_int(s, "model.num_local_experts", c->experts);
  set_int(s, "model.num_experts_per_tok", c->top_k);
  set_int(s, "model.first_k_dense_replace", c->first_dense);
  set_bool(s, "model.norm_topk_prob", c->norm_topk);
  set_real(s, "model.router_aux_loss_coef", c->aux_coeff);
  set_real(s, "model.router_z_loss_coef", c->z_coeff);
  set_text(s, "moe.aux_scope", "global");
}

const char *const *golden_config_sets(const GoldenConfig *c, Arena *a, int *n) {
  Sets s = {a, ARENA_NEW(a, const char *, MAX_SETS), 0};
  set_text(&s, "model.model_type", c->family);
  set_int(&s, "model.vocab_size", c->vocab);
  set_int(&s, "model.hidden_size", c->hidden);
  set_int(&s, "model.num_hidden_layers", c->layers);
  set_int(&s, "model.num_attention_heads", c->heads);
  set_int(&s, "model.num_key_value_heads", c->kv_heads);
  set_int(&s, "model.head_dim", c->head_dim);
  set_int(&s, "model.intermediate_size", c->dense_ffn);
  set_int(&s, "model.sliding_window", c->sliding_window);
  set_bool(&s, "model.tie_word_embeddings", c->tied);
  set_real(&s, "model.rope_theta", c->rope_theta);
  set_real(&s, "model.rms_norm_eps", c->norm_eps);
  if (strcmp(c->family, "llama")) sets_moe(&s, c); /* a dense model's file carries these keys too, unused */
  set_real(&s, "optimizer.lr", c->lr);
  set_real(&s, "optimizer.adam_beta1", c->beta1);
  set_real(&s, "optimizer.adam_beta2", c->beta2);
  set_real(&s, "optimizer.adam_eps", c->eps);
  set_real(&s, "optimizer.weight_decay", c->weight_decay);
  set_real(&s, "optimizer.clip_grad", c->clip);
  set_text(&s, "optimizer.lr_decay_style", "constant");
  set_int(&s, "optimizer.lr_warmup_iters", 0);
  set_int(&s, "train.global_batch_size", c->batch);
  set_int(&s, "train.train_iters", c->steps);
  set_int(&s, "data.seq_length", c->seq);
  set_text(&s, "schedule.name", "all_forward");
  *n = s.n;
  return s.text;
}
