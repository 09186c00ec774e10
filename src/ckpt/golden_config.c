#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/golden.h"

enum { MAX_SETS = 64 };

typedef enum { KEY_INT, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_PAIRS } KeyKind;
typedef struct Key {
  const char *name;
  KeyKind kind;
  size_t offset;
  double min, max;
  bool nullable;
} Key;
#define KEY(kind, field, min, max, nullable)                                                                                               \
  { #field, kind, offsetof(GoldenConfig, field), min, max, nullable }
#define INT(field, min)       KEY(KEY_INT, field, min, 1 << 24, false)
#define INT_OR_NULL(field)    KEY(KEY_INT, field, 0, 1 << 24, true)
#define REAL(field, min, max) KEY(KEY_REAL, field, min, max, false)
static const Key KEYS[] = {KEY(KEY_TEXT, family, 0, 0, false),
                           INT(vocab, 1),
                           INT(hidden, 1),
                           INT(layers, 1),
                           INT(heads, 1),
                           INT(kv_heads, 1),
                           INT(head_dim, 1),
                           INT(experts, 0),
                           INT(top_k, 0),
                           INT(ffn, 0),
                           INT(dense_ffn, 0),
                           INT(first_dense, 0),
                           INT(shared_experts, 0),
                           INT_OR_NULL(shared_ffn),
                           REAL(rope_theta, 0, 1e300),
                           REAL(norm_eps, 0, 1),
                           KEY(KEY_BOOL, tied, 0, 0, false),
                           INT_OR_NULL(sliding_window),
                           INT(q_lora, 0),
                           INT(kv_lora, 0),
                           INT(rope_dim, 0),
                           INT(nope_dim, 0),
                           INT(v_dim, 0),
                           INT(n_group, 0),
                           INT(topk_group, 0),
                           REAL(routed_scale, 0, 1e300),
                           KEY(KEY_BOOL, norm_topk, 0, 0, false),
                           REAL(swiglu_limit, 0, 1e300),
                           REAL(swiglu_alpha, 0, 1e300),
                           REAL(aux_coeff, 0, 1e300),
                           KEY(KEY_TEXT, aux_form, 0, 0, false),
                           REAL(z_coeff, 0, 1e300),
                           INT(batch, 1),
                           INT(seq, 1),
                           KEY(KEY_INT, seed, 0, 9e15, false),
                           KEY(KEY_PAIRS, ignore, 0, 1 << 24, false),
                           INT(steps, 1),
                           REAL(init_std, 0, 1e300),
                           REAL(bias_std, 0, 1e300),
                           REAL(lr, 0, 1e300),
                           REAL(beta1, 0, 1),
                           REAL(beta2, 0, 1),
                           REAL(eps, 0, 1),
                           REAL(weight_decay, 0, 1e300),
                           KEY(KEY_REAL, clip, 0, 1e300, true)};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

static bool config_number(const Key *k, const json_t *v, GoldenConfig *c, Err *e) {
  bool null = k->nullable && json_is_null(v);
  if (!null && !(k->kind == KEY_INT ? json_is_integer(v) : json_is_number(v)))
    return err_set(e, ERR_CKPT, "config key %s is not %s", k->name, k->kind == KEY_INT ? "an integer" : "a number");
  double x = null ? 0 : json_number_value(v);
  if (!(x >= k->min && x <= k->max))
    return err_set(e, ERR_CKPT, "config key %s is %.17g; allowed are %.17g to %.17g", k->name, x, k->min, k->max);
  char *to = (char *)c + k->offset;
  if (k->kind == KEY_INT)
    *(int64_t *)to = null ? 0 : (int64_t)json_integer_value(v);
  else
    *(double *)to = x;
  return true;
}

static bool config_pairs(const Key *k, const json_t *v, GoldenConfig *c, Arena *a, Err *e) {
  size_t n = json_array_size(v);
  if (!json_is_array(v)) return err_set(e, ERR_CKPT, "config key %s is not a list", k->name);
  int64_t *pair = ARENA_NEW(a, int64_t, 2 * n + 1);
  for (size_t i = 0; i < 2 * n; i++) {
    const json_t *p = json_array_get(v, i / 2), *x = json_array_get(p, i % 2);
    bool ok = json_array_size(p) == 2 && json_is_integer(x);
    pair[i] = ok ? (int64_t)json_integer_value(x) : -1;
    if (pair[i] < 0 || pair[i] >= (int64_t)k->max)
      return err_set(e, ERR_CKPT, "config key %s holds something else than pairs [b, s]", k->name);
  }
  c->n_ignore = (int64_t)n;
  c->ignore = pair;
  return true;
}

static bool config_key(const Key *k, const json_t *v, GoldenConfig *c, Arena *a, Err *e) {
  char *to = (char *)c + k->offset;
  if (!v) return err_set(e, ERR_CKPT, "config key %s is missing", k->name);
  if (k->kind == KEY_INT || k->kind == KEY_REAL) return config_number(k, v, c, e);
  if (k->kind == KEY_PAIRS) return config_pairs(k, v, c, a, e);
  if (k->kind == KEY_BOOL) {
    if (!json_is_boolean(v)) return err_set(e, ERR_CKPT, "config key %s is neither true nor false", k->name);
    *(bool *)to = json_is_true(v);
    return true;
  }
  if (!json_is_string(v)) return err_set(e, ERR_CKPT, "config key %s is not a text", k->name);
  *(const char **)to = arena_printf(a, "%s", json_string_value(v));
  return true;
}

static bool config_rules(const GoldenConfig *c, Err *e) {
  if (c->heads % c->kv_heads)
    return err_set(e, ERR_CKPT, "config: heads %lld is no multiple of kv_heads %lld", (long long)c->heads, (long long)c->kv_heads);
  if (c->head_dim % 2) return err_set(e, ERR_CKPT, "config: head_dim %lld is odd", (long long)c->head_dim);
  for (int64_t i = 0; i < c->n_ignore; i++)
    if (c->ignore[2 * i] >= c->batch || c->ignore[2 * i + 1] >= c->seq)
      return err_set(e, ERR_CKPT, "config: ignore names [%lld, %lld], outside batch %lld and seq %lld", (long long)c->ignore[2 * i],
                     (long long)c->ignore[2 * i + 1], (long long)c->batch, (long long)c->seq);
  if (c->first_dense > c->layers && strcmp(c->family, "llama"))
    return err_set(e, ERR_CKPT, "config: first_dense %lld is above layers %lld", (long long)c->first_dense, (long long)c->layers);
  bool llama = !strcmp(c->family, "llama");
  if (c->dense_ffn < 1 && (llama || c->first_dense)) return err_set(e, ERR_CKPT, "config: dense layers, but dense_ffn is 0");
  if (llama) return true;
  if (c->top_k < 1 || c->top_k > c->experts || c->ffn < 1)
    return err_set(e, ERR_CKPT, "config: top_k %lld of experts %lld of width %lld", (long long)c->top_k, (long long)c->experts,
                   (long long)c->ffn);
  if (c->shared_experts) return err_set(e, ERR_CKPT, "config: shared_experts %lld; mixtral has none", (long long)c->shared_experts);
  return true;
}

static bool config_object(const json_t *o, GoldenConfig *c, Arena *a, Err *e) {
  if (!json_is_object(o)) return err_set(e, ERR_CKPT, "the attribute config is not a JSON object");
  const char *family = json_string_value(json_object_get(o, "family"));
  if (!family) return err_set(e, ERR_CKPT, "config key family is missing or not a text");
  if (strcmp(family, "llama") && strcmp(family, "mixtral"))
    return err_set(e, ERR_CONFIG, "family %.64s is not in this version; there are: llama, mixtral", family);
  for (int i = 0; i < N_KEYS; i++) TRY(config_key(&KEYS[i], json_object_get(o, KEYS[i].name), c, a, e));
  /* An unknown key may change what the numbers mean. */
  if (json_object_size(o) != N_KEYS)
    return err_set(e, ERR_CKPT, "config has %zu keys where this version knows %d; the file is of a newer oracle", json_object_size(o),
                   N_KEYS);
  return config_rules(c, e);
}

bool golden_config_parse(const char *text, GoldenConfig *c, Arena *a, Err *e) {
  json_error_t where;
  json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &where);
  if (!o) return err_set(e, ERR_CKPT, "the attribute config is not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
  bool ok = config_object(o, c, a, e);
  json_decref(o);
  return ok;
}

/* ---- as text ------------------------------------------------------------------------------------------------------------------------- */

/* Fewest digits that read back to the same bits. */
static void put_real(FILE *f, double v) {
  char s[64];
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(s, sizeof s, "%.*g", digits, v);
    if (strtod(s, NULL) == v) break;
  }
  fputs(s, f);
}

static void put_key(FILE *f, const Key *k, const GoldenConfig *c) {
  const char *at = (const char *)c + k->offset;
  bool zero = k->kind == KEY_INT ? *(const int64_t *)at == 0 : k->kind == KEY_REAL && *(const double *)at == 0;
  fprintf(f, "\"%s\": ", k->name);
  if (k->nullable && zero)
    fputs("null", f);
  else if (k->kind == KEY_INT)
    fprintf(f, "%lld", (long long)*(const int64_t *)at);
  else if (k->kind == KEY_REAL)
    put_real(f, *(const double *)at);
  else if (k->kind == KEY_BOOL)
    fputs(*(const bool *)at ? "true" : "false", f);
  else if (k->kind == KEY_TEXT)
    fprintf(f, "\"%s\"", *(const char *const *)at);
}

static void put_pairs(FILE *f, const GoldenConfig *c) {
  fputs("\"ignore\": [", f);
  for (int64_t i = 0; i < c->n_ignore; i++)
    fprintf(f, "%s[%lld, %lld]", i ? ", " : "", (long long)c->ignore[2 * i], (long long)c->ignore[2 * i + 1]);
  fputc(']', f);
}

char *golden_config_text(const GoldenConfig *c, Arena *a) {
  size_t room = 8192 + (size_t)c->n_ignore * 48;
  char *text = ARENA_NEW(a, char, room);
  FILE *f = fmemopen(text, room, "w");
  CHECK(f, "fmemopen");
  for (int i = 0; i < N_KEYS; i++) {
    fputs(i ? ", " : "{", f);
    if (KEYS[i].kind == KEY_PAIRS)
      put_pairs(f, c);
    else
      put_key(f, &KEYS[i], c);
  }
  fputc('}', f);
  fclose(f);
  return text;
}

static const char *key_text(const Key *k, const GoldenConfig *c, Arena *a) {
  enum { MOST = 1 << 10 };
  char *text = ARENA_NEW(a, char, MOST);
  FILE *f = fmemopen(text, MOST - 1, "w");
  CHECK(f, "fmemopen");
  put_key(f, k, c);
  fclose(f);
  return text;
}
char *golden_config_changes(const GoldenConfig *x, const GoldenConfig *y, Arena *a) {
  char *list = arena_printf(a, "%s", "");
  for (int i = 0; i < N_KEYS; i++) {
    const char *p = key_text(&KEYS[i], x, a), *q = key_text(&KEYS[i], y, a);
    if (strcmp(p, q)) list = arena_printf(a, "%s%s%s and %s", list, *list ? ", " : "", p, q + strlen(KEYS[i].name) + 4);
  }
  return list;
}

/* ---- as settings ----------------------------------------------------------------------------------------------------------------- */

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
