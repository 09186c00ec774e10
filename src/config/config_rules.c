#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "config/config_table.h"

typedef __int128 Wide; /* products of keys never wrap */

static const Wide MAX_TOKENS = (Wide)1 << 32, MAX_PARAMETERS = (Wide)1 << 52;

int64_t config_ffn_expert(const ModelConfig *m) { return m->moe_intermediate_size ? m->moe_intermediate_size : m->intermediate_size; }

bool config_layer_is_moe(const ModelConfig *m, int layer) { return m->num_local_experts > 0 && layer >= m->first_k_dense_replace; }

static int key_index(const char *key) {
  int i = config_find(key);
  CHECK(i >= 0, "no key %s", key);
  return i;
}

/* "x.yaml:3: model.hidden_size = 5"; returns the length. */
static int describe(const ConfigDoc *d, const char *key, char *out, size_t size) {
  int i = key_index(key);
  ConfigSource s = d->source[i];
  char value[CONFIG_WORDS] = "";
  FILE *f = fmemopen(value, sizeof value - 1, "w");
  CHECK(f, "fmemopen");
  config_value_write(config_key(i), &d->c, f);
  fclose(f);
  if (s.file && s.line) return snprintf(out, size, "%s:%d: %s = %s", s.file, s.line, key, value);
  return snprintf(out, size, "%s: %s = %s", s.file ? s.file : "default", key, value);
}

/* Names the keys that do not go together, with values and origins, then the message. `b` may be NULL. Always false. */
__attribute__((format(printf, 5, 6))) static bool refuse(const ConfigDoc *d, Err *e, const char *a, const char *b, const char *fmt, ...) {
  char text[ERR_TEXT];
  size_t n = (size_t)describe(d, a, text, ERR_TEXT / 4);
  if (b) {
    n += (size_t)snprintf(text + n, 8, "; ");
    n += (size_t)describe(d, b, text + n, ERR_TEXT / 4);
  }
  n += (size_t)snprintf(text + n, 8, ": ");
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + n, sizeof text - n, fmt, ap);
  va_end(ap);
  return err_set(e, ERR_CONFIG, "%s", text);
}

static void derive(ConfigDoc *d, const char *key, int64_t *member, int64_t value) {
  if (*member == value) return;
  *member = value;
  d->source[key_index(key)] = (ConfigSource){.file = "derived", .line = 0};
}

/* The divisors of n, as many as fit. */
static void list_divisors(int64_t n, char *out, size_t size) {
  size_t used = 0;
  for (int64_t i = 1; i <= n && used + 32 < size; i++)
    if (n % i == 0) used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, used ? ", " : "", i);
}

static bool has_moe(const ModelConfig *m) { return m->num_local_experts > 0 && m->first_k_dense_replace < m->num_hidden_layers; }

static bool rule_heads(ConfigDoc *d, Err *e) {
  ModelConfig *m = &d->c.model;
  derive(d, "model.num_key_value_heads", &m->num_key_value_heads, m->num_key_value_heads ? m->num_key_value_heads : m->num_attention_heads);
  if (m->num_attention_heads % m->num_key_value_heads)
    return refuse(d, e, "model.num_attention_heads", "model.num_key_value_heads", "the first must be a multiple of the second");
  bool given = m->head_dim != 0;
  if (!given && m->hidden_size % m->num_attention_heads)
    return refuse(d, e, "model.hidden_size", "model.num_attention_heads",
                  "the first must be a multiple of the second, or model.head_dim given");
  derive(d, "model.head_dim", &m->head_dim, given ? m->head_dim : m->hidden_size / m->num_attention_heads);
  if (m->head_dim % 2 == 0) return true;
  if (given) return refuse(d, e, "model.head_dim", NULL, "must be even: rotary positions turn pairs");
  return refuse(d, e, "model.hidden_size", "model.num_attention_heads",
                "their quotient, the width of a head, is %" PRId64 " and must be even: rotary positions turn pairs", m->head_dim);
}

static bool rule_experts(ConfigDoc *d, Err *e) {
  const ModelConfig *m = &d->c.model;
  if (m->first_k_dense_replace > m->num_hidden_layers)
    return refuse(d, e, "model.first_k_dense_replace", "model.num_hidden_layers", "the first may not exceed the second");
  if (m->model_type == FAMILY_LLAMA) {
    if (m->num_local_experts == 0) return true;
    return refuse(d, e, "model.model_type", "model.num_local_experts",
                  "llama is dense: set num_local_experts to 0, or model_type to mixtral");
  }
  if (m->num_local_experts < 1)
    return refuse(d, e, "model.model_type", "model.num_local_experts",
                  "mixtral needs num_local_experts >= 1; a dense model is model_type llama");
  if (m->num_experts_per_tok > m->num_local_experts)
    return refuse(d, e, "model.num_experts_per_tok", "model.num_local_experts", "the first may not exceed the second");
  return true;
}

/* Sizes that later code multiplies must fit what it multiplies them in. */
static bool rule_sizes(ConfigDoc *d, Err *e) {
  const ModelConfig *m = &d->c.model;
  if ((Wide)d->c.train.global_batch_size * d->c.data.seq_length > MAX_TOKENS)
    return refuse(d, e, "train.global_batch_size", "data.seq_length", "their product, the tokens of a step, may not exceed 2^32");
  Wide attention = (Wide)m->hidden_size * m->head_dim * (m->num_attention_heads + m->num_key_value_heads) * 2;
  Wide dense = (Wide)3 * m->hidden_size * m->intermediate_size;
  Wide moe = has_moe(m) ? ((Wide)3 * config_ffn_expert(m) + 1) * m->hidden_size * m->num_local_experts : 0;
  if (attention * m->num_hidden_layers > MAX_PARAMETERS)
    return refuse(d, e, "model.num_hidden_layers", "model.head_dim", "attention has more than 2^52 weights");
  if (dense * m->num_hidden_layers > MAX_PARAMETERS)
    return refuse(d, e, "model.num_hidden_layers", "model.intermediate_size", "feed-forward layers have more than 2^52 weights");
  if (moe * m->num_hidden_layers > MAX_PARAMETERS)
    return refuse(d, e, "model.num_hidden_layers", "model.num_local_experts", "experts have more than 2^52 weights");
  return true;
}

static bool rule_shards(ConfigDoc *d, Err *e) {
  const struct {
    const char *key;
    int64_t value;
  } axes[] = {{"layout.tp", d->c.layout.tp}, {"layout.etp", d->c.layout.etp}};
  for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
    if (d->c.numerics.mode == NUM_CANONICAL && axes[i].value > d->c.numerics.shards)
      return refuse(d, e, axes[i].key, "numerics.shards",
                    "the first may not exceed the second: a rank holds whole blocks (raising numerics.shards changes the bits)");
  if (d->c.layout.chunks > 1 && d->c.schedule.name != SCHED_INTERLEAVED)
    return refuse(d, e, "layout.chunks", "schedule.name", "several chunks on a stage need schedule.name interleaved");
  if (d->c.layout.chunks > 1 && d->c.layout.pp == 1)
    return refuse(d, e, "layout.chunks", "layout.pp", "several chunks on a stage need several stages");
  return true;
}

static bool rule_sharded_parameters(ConfigDoc *d, Err *e) {
  if (!d->c.optimizer.shard_parameters) return true;
  if (!d->c.optimizer.shard)
    return refuse(d, e, "optimizer.shard_parameters", "optimizer.shard", "parameters in shares need optimizer state in shares");
  if (d->c.model.tie_word_embeddings && d->c.layout.pp > 1)
    return refuse(d, e, "optimizer.shard_parameters", "model.tie_word_embeddings",
                  "an embedding that two stages share is kept whole: set layout.pp to 1, or one of the two to false");
  return true;
}

/* layout.dp cannot make up for it: the axes that are given are named, and the numbers of ranks on both sides. */
static bool refuse_world(const ConfigDoc *d, int world, Wide others, Err *e) {
  const struct {
    const char *key;
    int64_t size;
  } axes[] = {{"layout.pp", d->c.layout.pp}, {"layout.cp", d->c.layout.cp}, {"layout.tp", d->c.layout.tp}};
  const char *cause[3] = {NULL};
  int n = 0;
  for (int i = 0; i < 3; i++)
    if (axes[i].size > 1) cause[n++] = axes[i].key;
  char start[64] = "";
  int64_t below = (int64_t)(world / others * others), above = others + below <= INT32_MAX ? (int64_t)others + below : 0;
  if (below && above)
    snprintf(start, sizeof start, "; start %" PRId64 " or %" PRId64, below, above);
  else if (below || above)
    snprintf(start, sizeof start, "; start %" PRId64, below + above);
  return refuse(d, e, cause[0], cause[1], "%d %s not a multiple of pp x cp x tp = %.0f%s", world, world > 1 ? "ranks are" : "rank is",
                (double)others, start);
}

static bool rule_world(ConfigDoc *d, int world, Err *e) {
  int64_t tp = d->c.layout.tp, pp = d->c.layout.pp, cp = d->c.layout.cp;
  Wide others = (Wide)pp * cp * tp;
  int64_t fitting = (int64_t)(world / others);
  if (!d->c.layout.dp && world % others) return refuse_world(d, world, others, e);
  derive(d, "layout.dp", &d->c.layout.dp, d->c.layout.dp ? d->c.layout.dp : fitting);
  int64_t dp = d->c.layout.dp;
  Wide wanted = others * dp;
  if (wanted == world) return true;
  char start[64] = "", set[64] = "";
  if (wanted <= INT32_MAX) snprintf(start, sizeof start, "; start %d", (int)wanted);
  if (world % others == 0)
    snprintf(set, sizeof set, "%s set layout.dp to %" PRId64 " (or to 0: what fits)", *start ? ", or" : ";", fitting);
  return refuse(d, e, "layout.dp", NULL,
                "pp x dp x cp x tp = %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 " is not the number of ranks, %d%s%s", pp, dp, cp,
                tp, world, start, set);
}

static bool rule_expert_parallel(ConfigDoc *d, Err *e) {
  int64_t ep = d->c.layout.ep, etp = d->c.layout.etp, stage = d->c.layout.dp * d->c.layout.cp * d->c.layout.tp, places = stage / etp;
  if (stage % etp) {
    char list[ERR_TEXT / 4] = "";
    list_divisors(stage, list, sizeof list);
    return refuse(d, e, "layout.etp", "layout.dp", "etp must divide dp x cp x tp = %" PRId64 "; allowed: %s", stage, list);
  }
  if (!has_moe(&d->c.model)) {
    if (ep == 1 && etp == 1) return true;
    bool dense = d->c.model.num_local_experts == 0;
    return refuse(d, e, "layout.ep", dense ? "model.model_type" : "model.first_k_dense_replace",
                  "no layer has experts; allowed: layout.ep 1 and layout.etp 1");
  }
  if (places % ep == 0) return true;
  char list[ERR_TEXT / 4] = "";
  list_divisors(places, list, sizeof list);
  return refuse(d, e, "layout.ep", "layout.dp", "ep must divide dp x cp x tp / etp = %" PRId64 "; allowed: %s", places, list);
}

static bool rule_numerics(ConfigDoc *d, Err *e) {
  const Config *c = &d->c;
  bool global = c->moe.aux_scope == AUX_GLOBAL && c->model.router_aux_loss_coef > 0 && has_moe(&c->model);
  if (global && c->schedule.name != SCHED_ALL_FORWARD)
    return refuse(d, e, "moe.aux_scope", "schedule.name",
                  "load balance over the global batch needs every forward before the first backward; set schedule.name to all_forward or "
                  "moe.aux_scope to sequence");
  if (c->layout.cp_comm_type == CP_COMM_P2P && c->layout.cp > 1 && c->numerics.mode == NUM_CANONICAL)
    return refuse(
        d, e, "layout.cp_comm_type", "numerics.mode",
        "a ring adds up in an order of its own on every rank; set layout.cp_comm_type to allgather or a2a, or numerics.mode to native");
  if (c->numerics.dtype == CDT_FP64 && c->device.gemm == GEMM_ONEDNN)
    return refuse(d, e, "numerics.dtype", "device.gemm", "oneDNN has no fp64 products; set device.gemm to auto or plain");
  return true;
}

/* The next number of a list; a blank may follow a comma. */
static bool next_layers(const char **at, bool first, int64_t *n) {
  enum { MAX_DIGITS = 9 };
  int digits = 0;
  if (!first && *(*at)++ != ',') return false;
  while (!first && **at == ' ') ++*at;
  for (*n = 0; **at >= '0' && **at <= '9' && digits < MAX_DIGITS; digits++) *n = 10 * *n + *(*at)++ - '0';
  return digits > 0;
}
int config_pp_layers(const Config *c, int64_t *layers, int most, int64_t *sum) {
  int n = 0;
  *sum = 0;
  for (const char *at = c->layout.pp_layers; *at; n++) {
    int64_t x;
    if (!next_layers(&at, n == 0, &x)) return -1;
    if (n < most) layers[n] = x;
    *sum += x;
  }
  return n;
}

static bool rule_stages(ConfigDoc *d, Err *e) {
  const Config *c = &d->c;
  int64_t n_stage = c->layout.pp * c->layout.chunks, sum;
  int n = config_pp_layers(c, NULL, 0, &sum);
  if (n == 0) return true;
  if (n < 0) return refuse(d, e, "layout.pp_layers", NULL, "must be whole numbers with commas between them, such as 8,8,7,7");
  if (n != n_stage)
    return refuse(d, e, "layout.pp_layers", "layout.pp", "%d number%s, but there are %" PRId64 " virtual stages (pp x chunks)", n,
                  n > 1 ? "s" : "", n_stage);
  if (sum == c->model.num_hidden_layers) return true;
  return refuse(d, e, "layout.pp_layers", "model.num_hidden_layers", "the numbers add up to %" PRId64 ", not to the second", sum);
}

static bool rule_routing(ConfigDoc *d, Err *e) {
  bool replays = d->c.moe.routing == ROUTE_REPLAY, names = *d->c.moe.replay != 0;
  if (replays && !names)
    return refuse(d, e, "moe.routing", "moe.replay", "replay needs a routing trace: name the file that moe.record wrote");
  if (names && !replays)
    return refuse(d, e, "moe.replay", "moe.routing", "a trace is replayed only by routing replay; set it, or leave moe.replay empty");
  return true;
}

static bool rule_learning_rate(ConfigDoc *d, Err *e) {
  int64_t iters = d->c.train.train_iters, warmup = d->c.optimizer.lr_warmup_iters, wsd = d->c.optimizer.lr_wsd_decay_iters;
  if (d->c.optimizer.min_lr > d->c.optimizer.lr)
    return refuse(d, e, "optimizer.min_lr", "optimizer.lr", "the first may not exceed the second");
  if (warmup >= iters) return refuse(d, e, "optimizer.lr_warmup_iters", "train.train_iters", "the first must be less than the second");
  if (wsd > iters) return refuse(d, e, "optimizer.lr_wsd_decay_iters", "train.train_iters", "the first may not exceed the second");
  if (d->c.optimizer.lr_decay_style == DECAY_WSD && wsd == 0)
    return refuse(d, e, "optimizer.lr_decay_style", "optimizer.lr_wsd_decay_iters", "style wsd needs the length of its decay, at least 1");
  int64_t *decay = &d->c.optimizer.lr_decay_iters;
  derive(d, "optimizer.lr_decay_iters", decay, *decay ? *decay : iters);
  if (warmup >= *decay)
    return refuse(d, e, "optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "the first must be less than the second");
  if (wsd > *decay) return refuse(d, e, "optimizer.lr_wsd_decay_iters", "optimizer.lr_decay_iters", "the first may not exceed the second");
  return true;
}

static bool is_text(const Config *c) {
  size_t n = strlen(c->data.train);
  return c->data.format == DATA_TEXT || (c->data.format == DATA_AUTO && n > 4 && !strcmp(c->data.train + n - 4, ".txt"));
}
static bool rule_documents(ConfigDoc *d, Err *e) {
  enum { TEXT_EOD = 256 };
  int64_t *eod = &d->c.data.eod_token;
  if (!d->c.data.document_mask) return true;
  if (is_text(&d->c)) derive(d, "data.eod_token", eod, *eod < 0 ? TEXT_EOD : *eod);
  if (*eod < 0)
    return refuse(d, e, "data.document_mask", "data.eod_token",
                  "the second must say which token ends a document; only a text has one by itself (256)");
  if (*eod < d->c.model.vocab_size) return true;
  return refuse(d, e, "data.eod_token", "model.vocab_size", "the first must be less than the second");
}

static bool rule_checkpoint(ConfigDoc *d, Err *e) {
  if (!d->c.checkpoint.async || d->c.checkpoint.compress == 0) return true;
  return refuse(d, e, "checkpoint.async", "checkpoint.compress",
                "compressed checkpoints are not written in the background; set one of them to its default");
}

bool config_resolve(ConfigDoc *d, int world, Err *e) {
  CHECK(world >= 1, "world of %d ranks", world);
  static bool (*const rules[])(ConfigDoc *, Err *) = {rule_heads,      rule_experts,       rule_sizes,  rule_numerics,
                                                      rule_routing,    rule_learning_rate, rule_shards, rule_sharded_parameters,
                                                      rule_checkpoint, rule_documents,     rule_stages};
  TRY(config_check_required(d, e));
  d->c.text = config_text(d, d->arena);
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) TRY(rules[i](d, e));
  TRY(rule_world(d, world, e));
  return rule_expert_parallel(d, e);
}
