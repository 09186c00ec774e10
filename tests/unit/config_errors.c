/* Every way to refuse a configuration, with its exact message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"

/* Lines 1-8 are the model, 9 train, 10 data, 11 optimizer; a case's own lines follow from 12. */
static const char BASE[] = "model:\n"
                           "  model_type: mixtral\n"
                           "  vocab_size: 257\n"
                           "  hidden_size: 64\n"
                           "  num_hidden_layers: 2\n"
                           "  num_attention_heads: 4\n"
                           "  intermediate_size: 96\n"
                           "  num_local_experts: 8\n"
                           "train: {global_batch_size: 4, train_iters: 10}\n"
                           "data: {seq_length: 32}\n"
                           "optimizer: {lr: 1e-3}\n";

enum { MAX_SETS = 4 };
typedef struct Case {
  const char *text; /* a whole file; or, when it begins with '+', what follows BASE */
  const char *set[MAX_SETS];
  int world; /* ranks for config_resolve; 0: config_read refuses it */
  const char *message;
} Case;

static void expect(const Case *c) {
  Arena a;
  ConfigDoc d;
  Err e = {0};
  int n = 0;
  arena_open(&a, "test", 16 << 20);
  char *text = c->text && c->text[0] != '+' ? arena_printf(&a, "%s", c->text) : arena_printf(&a, "%s%s", BASE, c->text ? c->text + 1 : "");
  while (n < MAX_SETS && c->set[n]) n++;
  bool ok = config_read_text(&d, &a, "x.yaml", text, c->set, n, &e);
  if (c->world) {
    if (!ok) fail_msg("refused too early: %s", e.text);
    ok = config_resolve(&d, c->world, &e);
  }
  if (ok) fail_msg("accepted, expected: %s", c->message);
  assert_string_equal(e.text, c->message);
  assert_int_equal(e.code, ERR_CONFIG);
  arena_close(&a);
}
#define EXPECT_ALL(cases)                                                                                                                  \
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) expect(&cases[i])

static void files_that_are_not_configurations(void **state) {
  (void)state;
  static const Case cases[] = {
      {"", {0}, 0, "x.yaml:1: the file is empty; sections such as \"model:\" are expected"},
      {"# only\n# remarks\n", {0}, 0, "x.yaml:1: the file is empty; sections such as \"model:\" are expected"},
      {"- a\n", {0}, 0, "x.yaml:1: not a configuration: sections such as \"model:\" are expected"},
      {"words\n", {0}, 0, "x.yaml:1: not a configuration: sections such as \"model:\" are expected"},
      {"model:\n\tvocab_size: 5\n",
       {0},
       0,
       "x.yaml:2: not valid YAML: found character that cannot start any token (a tab? indent with spaces)"},
      {"model: {vocab_size: 5\n", {0}, 0, "x.yaml:2: not valid YAML: did not find expected ',' or '}'"},
      {"model:\n  vocab_size: 5\n hidden_size: 4\n", {0}, 0, "x.yaml:3: not valid YAML: did not find expected key"},
      {"model:\n  vocab_size: \"5\n", {0}, 0, "x.yaml:3: not valid YAML: found unexpected end of stream"},
      {"model:\n  # ok\n  vocab_size: \x01\n", {0}, 0, "x.yaml:3: not valid YAML: control characters are not allowed"},
      {"model:\n  # \xff\n", {0}, 0, "x.yaml:2: not valid YAML: invalid leading UTF-8 octet"},
      {"+---\nmodel: {}\n", {0}, 0, "x.yaml:12: a second document starts here; one is expected"},
      {"# caf\xc3\xa9\nmodel:\n{\n  \"vocab_size\": 5\n}\n",
       {0},
       0,
       "x.yaml:3: a line begins with \"{\": put the brace behind its section's name, as in \"model: {\", or indent it"},
      {"model:\n{\"vocab_size\": 5}\ntrain: {}\n",
       {0},
       0,
       "x.yaml:2: a line begins with \"{\": put the brace behind its section's name, as in \"model: {\", or indent it"},
      {"model: &a {vocab_size: 5}\n", {0}, 0, "x.yaml:1: anchors and aliases (& and *) are not allowed; write the value out"},
      {"model:\n  vocab_size: *a\n", {0}, 0, "x.yaml:2: anchors and aliases (& and *) are not allowed; write the value out"},
      {"model:\n  vocab_size: !!int 5\n", {0}, 0, "x.yaml:2: tags (!) are not allowed; write the plain value"},
      {"\"\": 3\n", {0}, 0, "x.yaml:1: a key must be a word"},
      {"log:\n  \"interval\\0\": 3\n", {0}, 0, "x.yaml:2: log: a key must be a word"},
      {"? [a]\n: b\n", {0}, 0, "x.yaml:1: a key must be a word"},
      {"model:\n  ? {a: b}\n  : c\n", {0}, 0, "x.yaml:2: model: a key must be a word"},
  };
  EXPECT_ALL(cases);
}

static void unknown_and_repeated_keys(void **state) {
  (void)state;
  static const Case cases[] = {
      {"model:\n  hiden_size: 5\n", {0}, 0, "x.yaml:2: model.hiden_size: unknown key; did you mean model.hidden_size?"},
      {"train:\n  lr: 5\n", {0}, 0, "x.yaml:2: train.lr: unknown key; did you mean optimizer.lr?"},
      {"train:\n  save_interval: 5\n", {0}, 0, "x.yaml:2: train.save_interval: unknown key; did you mean checkpoint.save_interval?"},
      /* The same section first; what is only alike by chance is not named. */
      {"train:\n  shard_parameter: 5\n", {0}, 0, "x.yaml:2: train.shard_parameter: unknown key; did you mean optimizer.shard_parameters?"},
      {"log:\n  intervals: 5\n", {0}, 0, "x.yaml:2: log.intervals: unknown key; did you mean log.interval?"},
      {"train:\n  global_batch: 5\n", {0}, 0, "x.yaml:2: train.global_batch: unknown key; did you mean train.global_batch_size?"},
      {"moe:\n  rope_parameter: 5\n",
       {0},
       0,
       "x.yaml:2: moe.rope_parameter: unknown key; keys of section moe: routing, aux_scope, zipf_exponent, record, replay"},
      {"schedule:\n  kind_of_order: 5\n", {0}, 0, "x.yaml:2: schedule.kind_of_order: unknown key; keys of section schedule: name"},
      {"modle: {}\n", {0}, 0, "x.yaml:1: modle: unknown section; did you mean model?"},
      {"hidden_size: 5\n", {0}, 0, "x.yaml:1: hidden_size: unknown section; did you mean the key model.hidden_size?"},
      {"dtype: fp32\n", {0}, 0, "x.yaml:1: dtype: unknown section; did you mean the key numerics.dtype?"},
      {"torch_dtype: a\n", {0}, 0, "x.yaml:1: torch_dtype: unknown section; did you mean the key model.torch_dtype?"},
      {"model.hidden_size: 5\n", {0}, 0, "x.yaml:1: model.hidden_size: unknown section; did you mean the key model.hidden_size?"},
      {"somewhere: {}\n",
       {0},
       0,
       "x.yaml:1: somewhere: unknown section; sections: model, moe, numerics, layout, data, train, optimizer, schedule, memory, device, "
       "checkpoint, log"},
      {"model:\n  vocab_size: 5\n  hidden_size: 4\n  vocab_size: 5\n", {0}, 0, "x.yaml:4: model.vocab_size: given twice; first on line 2"},
      {"model:\n  use_cache: 5\n  use_cache: 5\n", {0}, 0, "x.yaml:3: model.use_cache: given twice; first on line 2"},
      {"moe: {}\nmodel: {}\nmoe: {}\n", {0}, 0, "x.yaml:3: moe: section given twice; first on line 1"},
      {"model: 3\n", {0}, 0, "x.yaml:1: model: is a section: a mapping of keys to values is expected, indented on the lines below"},
      {"model:\n  - 3\n", {0}, 0, "x.yaml:2: model: is a section: a mapping of keys to values is expected, indented on the lines below"},
      {"log:\n  interval: [1]\n",
       {0},
       0,
       "x.yaml:2: log.interval: a list stands where one value is expected; allowed: an integer from 1 to 1099511627776"},
      {"data:\n  train:\n    a: b\n", {0}, 0, "x.yaml:3: data.train: a mapping stands where one value is expected; allowed: text"},
      {"model:\n  rope_scaling: {type: linear}\n",
       {0},
       0,
       "x.yaml:2: model.rope_scaling.type: \"linear\" would change the model (scaled rotary positions are not in this version); allowed: "
       "default"},
  };
  EXPECT_ALL(cases);
}

#define LR(why)    "x.yaml:1: optimizer.lr: " why "; allowed: a number >= 0"
#define SEED(why)  "x.yaml:1: train.seed: " why "; allowed: an integer from 0 to 9223372036854775807"
#define LIMIT(why) "x.yaml:1: memory.device_limit: " why "; allowed: bytes, such as 65536, 1e9, 512MiB or 2GiB"

static void values_that_are_not_allowed(void **state) {
  (void)state;
  static const Case cases[] = {
      {"optimizer: {lr: fast}", {0}, 0, LR("\"fast\" is not a number")},
      {"optimizer: {lr: 1_000}", {0}, 0, LR("\"1_000\" has an underscore, which numbers may not have")},
      {"optimizer: {lr: 0x10}", {0}, 0, LR("\"0x10\" is not a decimal number")},
      {"optimizer: {lr: 010}", {0}, 0, LR("\"010\" has a leading zero, which some programs read as octal")},
      {"optimizer: {lr: nan}", {0}, 0, LR("\"nan\" is not a finite number")},
      {"optimizer: {lr: -.Inf}", {0}, 0, LR("\"-.Inf\" is not a finite number")},
      {"optimizer: {lr: 1e999}", {0}, 0, LR("\"1e999\" is too large for a double")},
      {"optimizer: {lr: 1e-999}", {0}, 0, LR("\"1e-999\" is too small for a double")},
      {"optimizer: {lr: 1e}", {0}, 0, LR("\"1e\" is not a number")},
      {"optimizer: {lr: .}", {0}, 0, LR("\".\" is not a number")},
      {"optimizer: {lr: 1.2.3}", {0}, 0, LR("\"1.2.3\" is not a number")},
      {"optimizer: {lr: 1 2}", {0}, 0, LR("\"1 2\" is not a number")},
      {"optimizer: {lr: -1}", {0}, 0, LR("\"-1\" is too small")},
      {"optimizer: {lr: \"1\"}", {0}, 0, LR("\"1\" is text, since it stands in quotes")},
      {"optimizer: {lr: null}", {0}, 0, LR("\"null\" is no value")},
      {"optimizer:\n  lr:\n", {0}, 0, "x.yaml:2: optimizer.lr: \"null\" is no value; allowed: a number >= 0"},
      {"optimizer: {adam_eps: 0}", {0}, 0, "x.yaml:1: optimizer.adam_eps: \"0\" is too small; allowed: a number > 0"},
      {"optimizer: {adam_beta1: 1}", {0}, 0, "x.yaml:1: optimizer.adam_beta1: \"1\" is too large; allowed: a number >= 0 and < 1"},
      {"moe: {zipf_exponent: 101}", {0}, 0, "x.yaml:1: moe.zipf_exponent: \"101\" is too large; allowed: a number >= 0 and <= 100"},
      {"train: {seed: 1.5}", {0}, 0, SEED("\"1.5\" is not an integer")},
      {"train: {seed: 1e-1}", {0}, 0, SEED("\"1e-1\" is not an integer")},
      {"train: {seed: -1}", {0}, 0, SEED("\"-1\" is too small")},
      {"train: {seed: 9223372036854775808}", {0}, 0, SEED("\"9223372036854775808\" is too large")},
      {"train: {seed: 1e19}", {0}, 0, SEED("\"1e19\" is too large")},
      {"train: {seed: -1e99999999999}", {0}, 0, SEED("\"-1e99999999999\" is too small")},
      {"train: {seed: 1234567890123456789012345678901234567890}",
       {0},
       0,
       SEED("\"1234567890123456789012345678901234567890\" has too many digits")},
      {"train: {seed: 10MiB}", {0}, 0, SEED("\"10MiB\" is not a number")},
      {"numerics: {window: 0}", {0}, 0, "x.yaml:1: numerics.window: \"0\" is too small; allowed: an integer from 1 to 2147483647"},
      {"numerics: {shards: 0}", {0}, 0, "x.yaml:1: numerics.shards: \"0\" is too small; allowed: an integer from 1 to 2048"},
      {"numerics: {shards: 2049}", {0}, 0, "x.yaml:1: numerics.shards: \"2049\" is too large; allowed: an integer from 1 to 2048"},
      {"memory: {device_limit: 5GB}", {0}, 0, LIMIT("\"5GB\" has an unknown unit")},
      {"memory: {device_limit: 1.5}", {0}, 0, LIMIT("\"1.5\" is not an integer")},
      {"memory: {device_limit: 0.0001KiB}", {0}, 0, LIMIT("\"0.0001KiB\" is not a whole number of bytes")},
      {"memory: {device_limit: -1}", {0}, 0, LIMIT("\"-1\" is too small")},
      {"memory: {device_limit: 9e18}", {0}, 0, LIMIT("\"9e18\" is too large")},
      {"memory: {device_limit: 99999999TiB}", {0}, 0, LIMIT("\"99999999TiB\" is too large")},
      {"memory: {device_limit: 309485009821345068724781056TiB}", {0}, 0, LIMIT("\"309485009821345068724781056TiB\" is too large")},
      {"memory: {device_limit: 0x10}", {0}, 0, LIMIT("\"0x10\" is not a decimal number")},
      {"memory: {guard: yes}", {0}, 0, "x.yaml:1: memory.guard: \"yes\" is neither true nor false; allowed: true or false"},
      {"memory: {guard: 'true'}", {0}, 0, "x.yaml:1: memory.guard: \"true\" is text, since it stands in quotes; allowed: true or false"},
      {"optimizer: {lr_decay_style: step}",
       {0},
       0,
       "x.yaml:1: optimizer.lr_decay_style: \"step\" is unknown; allowed: constant, linear, cosine or wsd"},
      {"schedule: {name: \"1f1b\\0\"}",
       {0},
       0,
       "x.yaml:1: schedule.name: \"1f1b\" goes on after a zero byte; allowed: 1f1b, all_forward, interleaved or zero_bubble"},
      {"data: {train: \"a\\tb\"}", {0}, 0, "x.yaml:1: data.train: \"a b\" holds a character that may not stand in a text; allowed: text"},
      {"data: {train: \"a\\u2028\"}",
       {0},
       0,
       "x.yaml:1: data.train: \"a\u2028\" holds a character that may not stand in a text; allowed: text"},
      {"data: {train: ~}", {0}, 0, "x.yaml:1: data.train: \"~\" is no value; allowed: text"},
  };
  EXPECT_ALL(cases);
}

static void hugging_face_keys_that_would_change_the_model(void **state) {
  (void)state;
  static const Case cases[] = {
      {"model: {hidden_act: gelu}",
       {0},
       0,
       "x.yaml:1: model.hidden_act: \"gelu\" would change the model (other activations are not in this version); allowed: silu"},
      {"model: {attention_bias: true}",
       {0},
       0,
       "x.yaml:1: model.attention_bias: \"true\" would change the model (biases are not in this version); allowed: false"},
      {"model: {attention_dropout: 0.1}",
       {0},
       0,
       "x.yaml:1: model.attention_dropout: \"0.1\" would change the model (dropout is not in this version); allowed: 0 or 0.0"},
      {"model: {router_jitter_noise: 0.1}",
       {0},
       0,
       "x.yaml:1: model.router_jitter_noise: \"0.1\" would change the model (router noise is not in this version); allowed: 0 or 0.0"},
      {"model: {quantization_config: {bits: 4}}",
       {0},
       0,
       "x.yaml:1: model.quantization_config: a mapping would change the model (quantized weights are not in this version); allowed: null"},
      {"model: {rope_parameters: {rope_type: yarn, rope_theta: 1e6}}",
       {0},
       0,
       "x.yaml:1: model.rope_parameters.rope_type: \"yarn\" would change the model (scaled rotary positions are not in this version); "
       "allowed: default"},
      {"model:\n  rope_parameters:\n    factor: 8.0\n    rope_type: default\n",
       {0},
       0,
       "x.yaml:3: model.rope_parameters.factor: \"8.0\" would change the model (scaled rotary positions are not in this version); allowed: "
       "null"},
      {"model: {rope_parameters: {full_attention: {rope_theta: 1e6}}}",
       {0},
       0,
       "x.yaml:1: model.rope_parameters.full_attention: \"a list or mapping\" would change the model (scaled rotary positions are not in "
       "this version); allowed: null"},
      {"model:\n  rope_theta: 1e6\n  rope_parameters: {rope_theta: 1e6}\n",
       {0},
       0,
       "x.yaml:3: model.rope_theta: given twice; first on line 2"},
      {"model: {rope_scaling: 2}",
       {0},
       0,
       "x.yaml:1: model.rope_scaling: \"2\" would change the model (scaled rotary positions are not in this version); allowed: null"},
  };
  EXPECT_ALL(cases);
}

static void command_line_overrides(void **state) {
  (void)state;
  static const Case cases[] = {
      {NULL, {"foo"}, 0, "--set: \"foo\" is not KEY=VALUE, as in optimizer.lr=3e-4"},
      {NULL, {"=3"}, 0, "--set: \"=3\" is not KEY=VALUE, as in optimizer.lr=3e-4"},
      {NULL, {"optimiser.lr=3"}, 0, "--set: optimiser.lr: unknown key; did you mean optimizer.lr?"},
      {NULL,
       {"log=3"},
       0,
       "--set: log: is a section, not a key; its keys: interval, hash_interval, hash_values, router_interval, tensorboard, metrics"},
      {NULL, {"train.seed=1", "optimizer.lr=fast"}, 0, "--set: optimizer.lr: \"fast\" is not a number; allowed: a number >= 0"},
      {NULL, {"optimizer.lr="}, 0, "--set: optimizer.lr: \"null\" is no value; allowed: a number >= 0"},
      {NULL, {"data.train=\xe9"}, 0, "--set: data.train: \"\xe9\" holds a character that may not stand in a text; allowed: text"},
      {NULL, {"data.train=\xc0\xaf"}, 0, "--set: data.train: \"\xc0\xaf\" holds a character that may not stand in a text; allowed: text"},
  };
  EXPECT_ALL(cases);
}

static void required_keys(void **state) {
  (void)state;
  static const Case cases[] = {
      {"data: {seq_length: 8}\ntrain: {global_batch_size: 1, train_iters: 1}\nmodel: {model_type: llama, vocab_size: 4, hidden_size: 4,\n"
       "num_attention_heads: 1, num_hidden_layers: 1, intermediate_size: 1}\n",
       {0},
       0,
       "x.yaml: optimizer.lr: missing from section optimizer; allowed: a number >= 0"},
      {"model:\n",
       {"model.vocab_size=3", "optimizer.lr=1"},
       0,
       "x.yaml: model.model_type: missing from section model; allowed: llama or mixtral; also missing: model.hidden_size, "
       "model.num_hidden_layers, model.num_attention_heads, model.intermediate_size, data.seq_length, train.global_batch_size, "
       "train.train_iters"},
  };
  EXPECT_ALL(cases);
}

static void rules_of_the_model(void **state) {
  (void)state;
  static const Case cases[] = {
      {NULL,
       {"model.num_key_value_heads=3"},
       1,
       "x.yaml:6: model.num_attention_heads = 4; --set: model.num_key_value_heads = 3: the first must be a multiple of the second"},
      {NULL,
       {"model.hidden_size=66"},
       1,
       "--set: model.hidden_size = 66; x.yaml:6: model.num_attention_heads = 4: the first must be a multiple of the second, or "
       "model.head_dim given"},
      {NULL, {"model.head_dim=3"}, 1, "--set: model.head_dim = 3: must be even: rotary positions turn pairs"},
      {NULL,
       {"model.hidden_size=12"},
       1,
       "--set: model.hidden_size = 12; x.yaml:6: model.num_attention_heads = 4: their quotient, the width of a head, is 3 and must be "
       "even: "
       "rotary positions turn pairs"},
      {NULL,
       {"model.num_experts_per_tok=9"},
       1,
       "--set: model.num_experts_per_tok = 9; x.yaml:8: model.num_local_experts = 8: the first may not exceed the second"},
      {NULL,
       {"model.num_local_experts=1"},
       1,
       "default: model.num_experts_per_tok = 2; --set: model.num_local_experts = 1: the first may not exceed the second"},
      {NULL,
       {"model.num_local_experts=0"},
       1,
       "x.yaml:2: model.model_type = mixtral; --set: model.num_local_experts = 0: mixtral needs num_local_experts >= 1; a dense model is "
       "model_type llama"},
      {NULL,
       {"model.model_type=llama"},
       1,
       "--set: model.model_type = llama; x.yaml:8: model.num_local_experts = 8: llama is dense: set num_local_experts to 0, or model_type "
       "to "
       "mixtral"},
      {NULL,
       {"model.first_k_dense_replace=3"},
       1,
       "--set: model.first_k_dense_replace = 3; x.yaml:5: model.num_hidden_layers = 2: the first may not exceed the second"},
      {NULL,
       {"train.global_batch_size=2147483647", "data.seq_length=4"},
       1,
       "--set: train.global_batch_size = 2147483647; --set: data.seq_length = 4: their product, the tokens of a step, may not exceed 2^32"},
      {NULL,
       {"model.num_hidden_layers=65536", "model.head_dim=1048576", "model.num_attention_heads=65536", "model.num_key_value_heads=65536"},
       1,
       "--set: model.num_hidden_layers = 65536; --set: model.head_dim = 1048576: attention has more than 2^52 weights"},
      {NULL,
       {"model.num_hidden_layers=65536", "model.hidden_size=1048576", "model.intermediate_size=1048576", "model.head_dim=2"},
       1,
       "--set: model.num_hidden_layers = 65536; --set: model.intermediate_size = 1048576: feed-forward layers have more than 2^52 weights"},
      {NULL,
       {"model.num_hidden_layers=65536", "model.hidden_size=65536", "model.num_local_experts=65536", "model.head_dim=2"},
       1,
       "--set: model.num_hidden_layers = 65536; --set: model.num_local_experts = 65536: experts have more than 2^52 weights"},
  };
  EXPECT_ALL(cases);
}

static void rules_of_the_layout(void **state) {
  (void)state;
  static const Case cases[] = {
      {NULL,
       {"layout.tp=2"},
       2,
       "--set: layout.tp = 2; default: numerics.shards = 1: the first may not exceed the second: a rank holds whole blocks (raising "
       "numerics.shards changes the bits)"},
      {"+layout:\n  etp: 2\n",
       {0},
       2,
       "x.yaml:13: layout.etp = 2; default: numerics.shards = 1: the first may not exceed the second: a rank holds whole blocks (raising "
       "numerics.shards changes the bits)"},
      {NULL,
       {"layout.chunks=2"},
       2,
       "--set: layout.chunks = 2; default: schedule.name = 1f1b: several chunks on a stage need schedule.name interleaved"},
      {NULL,
       {"layout.chunks=2", "schedule.name=interleaved"},
       2,
       "--set: layout.chunks = 2; default: layout.pp = 1: several chunks on a stage need several stages"},
      {"+layout: {pp: 2,\n  pp_layers: \"2,0,\"}\n",
       {0},
       2,
       "x.yaml:13: layout.pp_layers = \"2,0,\": must be whole numbers with commas between them, such as 8,8,7,7"},
      {"+layout: {pp: 2,\n  pp_layers: 1}\n",
       {0},
       2,
       "x.yaml:13: layout.pp_layers = \"1\"; x.yaml:12: layout.pp = 2: 1 number, but there are 2 virtual stages (pp x chunks)"},
      {"+layout: {pp: 2,\n  pp_layers: \"1,2\"}\n",
       {0},
       2,
       "x.yaml:13: layout.pp_layers = \"1,2\"; x.yaml:5: model.num_hidden_layers = 2: the numbers add up to 3, not to the second"},
      {NULL,
       {"layout.etp=3", "numerics.shards=4"},
       4,
       "--set: layout.etp = 3; derived: layout.dp = 4: etp must divide dp x cp x tp = 4; allowed: 1, 2, 4"},
      {NULL,
       {"layout.dp=3"},
       4,
       "--set: layout.dp = 3: pp x dp x cp x tp = 1 x 3 x 1 x 1 is not the number of ranks, 4; start 3, or set layout.dp to 4 (or to 0: "
       "what fits)"},
      {NULL,
       {"layout.dp=1", "layout.tp=2", "numerics.shards=2"},
       1,
       "--set: layout.dp = 1: pp x dp x cp x tp = 1 x 1 x 1 x 2 is not the number of ranks, 1; start 2"},
      {NULL, {"layout.tp=2", "numerics.shards=2"}, 1, "--set: layout.tp = 2: 1 rank is not a multiple of pp x cp x tp = 2; start 2"},
      {"+layout: {tp: 2}\nnumerics: {shards: 2}\n",
       {0},
       3,
       "x.yaml:12: layout.tp = 2: 3 ranks are not a multiple of pp x cp x tp = 2; start 2 or 4"},
      {NULL,
       {"layout.cp=3", "layout.pp=2"},
       7,
       "--set: layout.pp = 2; --set: layout.cp = 3: 7 ranks are not a multiple of pp x cp x tp = 6; start 6 or 12"},
      {NULL,
       {"layout.ep=8"},
       12,
       "--set: layout.ep = 8; derived: layout.dp = 12: ep must divide dp x cp x tp / etp = 12; allowed: 1, 2, 3, 4, 6, 12"},
      {NULL,
       {"layout.ep=2", "layout.dp=1"},
       1,
       "--set: layout.ep = 2; --set: layout.dp = 1: ep must divide dp x cp x tp / etp = 1; allowed: 1"},
      {NULL,
       {"layout.ep=2", "model.model_type=llama", "model.num_local_experts=0"},
       2,
       "--set: layout.ep = 2; --set: model.model_type = llama: no layer has experts; allowed: layout.ep 1 and layout.etp 1"},
      {NULL,
       {"layout.ep=2", "model.first_k_dense_replace=2"},
       2,
       "--set: layout.ep = 2; --set: model.first_k_dense_replace = 2: no layer has experts; allowed: layout.ep 1 and layout.etp 1"},
  };
  EXPECT_ALL(cases);
}

static void rules_of_training(void **state) {
  (void)state;
  static const Case cases[] = {
      {"+layout: {cp: 2, cp_comm_type: p2p}\n",
       {0},
       2,
       "x.yaml:12: layout.cp_comm_type = p2p; default: numerics.mode = canonical: a ring adds up in an order of its own on every rank; set "
       "layout.cp_comm_type to allgather or a2a, or numerics.mode to native"},
      {"+moe:\n  aux_scope: global\n",
       {0},
       1,
       "x.yaml:13: moe.aux_scope = global; default: schedule.name = 1f1b: load balance over the global batch needs every forward before "
       "the "
       "first backward; set schedule.name to all_forward or moe.aux_scope to sequence"},
      {NULL,
       {"numerics.dtype=fp64", "device.gemm=onednn"},
       1,
       "--set: numerics.dtype = fp64; --set: device.gemm = onednn: oneDNN has no fp64 products; set device.gemm to auto or plain"},
      {NULL,
       {"optimizer.min_lr=2e-3"},
       1,
       "--set: optimizer.min_lr = 0.002; x.yaml:11: optimizer.lr = 0.001: the first may not exceed the second"},
      {NULL,
       {"optimizer.lr_warmup_iters=10"},
       1,
       "--set: optimizer.lr_warmup_iters = 10; x.yaml:9: train.train_iters = 10: the first must be less than the second"},
      {NULL,
       {"optimizer.lr_wsd_decay_iters=11"},
       1,
       "--set: optimizer.lr_wsd_decay_iters = 11; x.yaml:9: train.train_iters = 10: the first may not exceed the second"},
      {NULL,
       {"optimizer.lr_decay_style=wsd"},
       1,
       "--set: optimizer.lr_decay_style = wsd; default: optimizer.lr_wsd_decay_iters = 0: style wsd needs the length of its decay, at "
       "least 1"},
      {NULL,
       {"optimizer.lr_decay_iters=5", "optimizer.lr_warmup_iters=5"},
       1,
       "--set: optimizer.lr_warmup_iters = 5; --set: optimizer.lr_decay_iters = 5: the first must be less than the second"},
      {NULL,
       {"optimizer.lr_decay_iters=5", "optimizer.lr_wsd_decay_iters=6"},
       1,
       "--set: optimizer.lr_wsd_decay_iters = 6; --set: optimizer.lr_decay_iters = 5: the first may not exceed the second"},
  };
  EXPECT_ALL(cases);
}

static void words_without_end(void **state) {
  (void)state;
  char x[5001] = "", text[5100], message[400];
  memset(x, 'x', 5000);
  Case c = {text, {0}, 0, message};
  snprintf(text, sizeof text, "log:\n  %.300s: 1\n", x);
  snprintf(message, sizeof message, "x.yaml:2: log: a key must be a word");
  expect(&c);
  snprintf(text, sizeof text, "data:\n  train: %.4001s\n", x);
  snprintf(message, sizeof message, "x.yaml:2: data.train: \"%.119s...\" is longer than 4000 bytes; allowed: text", x);
  expect(&c);
}

static void expect_path(Arena *a, const char *path, const char *message) {
  ConfigDoc d;
  Err e = {0};
  assert_false(config_read(&d, a, path, NULL, 0, &e));
  assert_string_equal(e.text, message);
  assert_int_equal(e.code, ERR_CONFIG);
}

static void paths_that_cannot_be_read(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "test", 16 << 20);
  char path[] = "/tmp/etalon-config-XXXXXX", *dir = SOURCE_DIR;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  expect_path(&a, dir, arena_printf(&a, "%s: is a directory; a YAML file is expected", dir));
  expect_path(&a, "/nowhere/x.yaml", "/nowhere/x.yaml: cannot be opened: No such file or directory");
  expect_path(&a, path, arena_printf(&a, "%s:1: the file is empty; sections such as \"model:\" are expected", path));
  assert_int_equal(write(fd, "model:\n\0\n", 9), 9);
  expect_path(&a, path, arena_printf(&a, "%s:2: not valid YAML: control characters are not allowed", path));
  assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
  expect_path(&a, path, arena_printf(&a, "%s: is larger than 1048576 bytes; a YAML file is expected", path));
  close(fd);
  unlink(path);
  arena_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_that_are_not_configurations),
      cmocka_unit_test(unknown_and_repeated_keys),
      cmocka_unit_test(values_that_are_not_allowed),
      cmocka_unit_test(hugging_face_keys_that_would_change_the_model),
      cmocka_unit_test(command_line_overrides),
      cmocka_unit_test(required_keys),
      cmocka_unit_test(rules_of_the_model),
      cmocka_unit_test(rules_of_the_layout),
      cmocka_unit_test(rules_of_training),
      cmocka_unit_test(words_without_end),
      cmocka_unit_test(paths_that_cannot_be_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
