/* Configuration files: what is read, what is derived, what is printed. The messages of refused files: config_errors.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/config_table.h"

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

typedef struct Fixture {
  Arena arena;
  ConfigDoc doc;
  Err err;
} Fixture;

static int setup(void **state) {
  static Fixture f;
  memset(&f, 0, sizeof f);
  arena_open(&f.arena, "test", 64 << 20);
  *state = &f;
  return 0;
}

static int teardown(void **state) {
  arena_close(&((Fixture *)*state)->arena);
  return 0;
}

static Config *read_text(Fixture *f, const char *text, const char *const *sets, int n_sets) {
  if (!config_read_text(&f->doc, &f->arena, "x.yaml", text, sets, n_sets, &f->err)) fail_msg("%s", f->err.text);
  return &f->doc.c;
}

static void resolve(Fixture *f, int world) {
  if (!config_resolve(&f->doc, world, &f->err)) fail_msg("%s", f->err.text);
}

static char *print(Fixture *f, void (*to)(Fixture *, FILE *)) {
  char *text = ARENA_NEW(&f->arena, char, 1 << 16);
  FILE *out = fmemopen(text, (1 << 16) - 1, "w");
  to(f, out);
  assert_int_equal(fclose(out), 0);
  return text;
}
static void print_doc(Fixture *f, FILE *out) { config_print(&f->doc, out); }
static void print_reference(Fixture *f, FILE *out) {
  (void)f;
  config_print_reference(out);
}

static int count(const char *text, const char *part) {
  int n = 0;
  for (const char *s = text; (s = strstr(s, part)); s++) n++;
  return n;
}

static void defaults_and_derived_values(void **state) {
  Fixture *f = *state;
  Config *c = read_text(f, BASE, NULL, 0);
  assert_int_equal(c->model.model_type, FAMILY_MIXTRAL);
  assert_int_equal(c->model.num_key_value_heads, 0);
  assert_int_equal(c->layout.dp, 0);
  assert_int_equal(c->numerics.window, 256);
  assert_int_equal(c->numerics.mode, NUM_CANONICAL);
  assert_true(c->optimizer.shard && c->model.norm_topk_prob && c->checkpoint.save_final && !c->train.profile);
  assert_true(c->optimizer.adam_beta1 == 0.9 && c->optimizer.adam_beta2 == 0.95 && c->optimizer.adam_eps == 1e-8);
  assert_true(c->optimizer.lr == 1e-3 && c->model.rms_norm_eps == 1e-5 && c->model.rope_theta == 10000.0);
  assert_string_equal(c->device.name, "cpu");
  assert_string_equal(c->checkpoint.dir, "checkpoints/run");
  assert_string_equal(c->log.metrics, "");
  resolve(f, 4);
  assert_int_equal(c->model.num_key_value_heads, 4);
  assert_int_equal(c->model.head_dim, 16);
  assert_int_equal(c->layout.dp, 4);
  assert_int_equal(c->optimizer.lr_decay_iters, 10);
  assert_int_equal(config_ffn_expert(&c->model), 96);
  assert_true(config_layer_is_moe(&c->model, 0));
}

static void experts_have_their_own_width_and_layers(void **state) {
  Fixture *f = *state;
  const char *sets[] = {"model.moe_intermediate_size=48", "model.first_k_dense_replace=1"};
  Config *c = read_text(f, BASE, sets, 2);
  resolve(f, 1);
  assert_int_equal(config_ffn_expert(&c->model), 48);
  assert_false(config_layer_is_moe(&c->model, 0));
  assert_true(config_layer_is_moe(&c->model, 1));
}

/* Beyond the rule's edge each of these is refused (config_errors.c); on the edge it is not. */
static void edges_of_rules_are_allowed(void **state) {
  Fixture *f = *state;
  static const char *const edge[][2] = {
      {"layout.ep=8", "model.num_local_experts=2"},                   /* some ranks own no expert */
      {"model.num_experts_per_tok=8", "model.num_key_value_heads=1"}, /* every expert */
      {"model.first_k_dense_replace=2", "layout.ep=1"},               /* no MoE layer */
      {"optimizer.lr_warmup_iters=9", "optimizer.min_lr=1e-3"},       /* min_lr = lr */
      {"optimizer.lr_wsd_decay_iters=10", "optimizer.lr_decay_style=wsd"},
      {"moe.aux_scope=global", "schedule.name=all_forward"},
      {"moe.aux_scope=global", "model.router_aux_loss_coef=0"},
      {"numerics.dtype=fp64", "device.gemm=plain"},
      {"numerics.shards=2048", "train.micro_batch_size=3"}, /* more shards than heads; a short last micro-batch */
      {"model.head_dim=30", "model.hidden_size=63"},
      {"model.sliding_window=null", "layout.dp=8"},
  };
  for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++) {
    read_text(f, BASE, edge[i], 2);
    resolve(f, 8);
  }
}

static void json_as_hugging_face_writes_it_is_read(void **state) {
  Fixture *f = *state;
  static const char text[] =
      "{\"model\": {\n"
      "  \"architectures\": [\"MixtralForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
      "  \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02, \"intermediate_size\": 14336,\n"
      "  \"max_position_embeddings\": 32768, \"model_type\": \"mixtral\", \"num_attention_heads\": 32, \"num_experts_per_tok\": 2,\n"
      "  \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"num_local_experts\": 8, \"output_router_logits\": false,\n"
      "  \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.02, \"sliding_window\": null,\n"
      "  \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.36.0.dev0\",\n"
      "  \"use_cache\": true, \"vocab_size\": 32000, \"rope_scaling\": null, \"attention_bias\": false, \"router_jitter_noise\": 0},\n"
      " \"train\": {\"global_batch_size\": 16, \"train_iters\": 1e6}, \"data\": {\"seq_length\": 4096}, \"optimizer\": {\"lr\": 1e-4}}\n";
  Config *c = read_text(f, text, NULL, 0);
  resolve(f, 1);
  assert_true(c->model.rope_theta == 1e6 && c->model.router_aux_loss_coef == 0.02);
  assert_int_equal(c->model.sliding_window, 0);
  assert_int_equal(c->train.train_iters, 1000000);
  assert_int_equal(c->model.head_dim, 128);
}

/* A whole config.json behind "model:", its closing brace at the margin, as newer versions write it. */
static void a_pasted_json_is_read(void **state) {
  Fixture *f = *state;
  static const char text[] =
      "model: {\n"
      "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n  \"attention_bias\": false,\n  \"attn_implementation\": \"sdpa\",\n"
      "  \"dtype\": \"bfloat16\",\n  \"head_dim\": 64,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 512,\n"
      "  \"intermediate_size\": 1024,\n  \"max_position_embeddings\": 4096,\n  \"mlp_bias\": false,\n  \"model_type\": \"llama\",\n"
      "  \"num_attention_heads\": 8,\n  \"num_hidden_layers\": 4,\n  \"num_key_value_heads\": 2,\n  \"pad_token_id\": null,\n"
      "  \"pretraining_tp\": 1,\n  \"quantization_config\": null,\n  \"rms_norm_eps\": 1e-06,\n"
      "  \"rope_parameters\": {\n    \"rope_theta\": 500000.0,\n    \"rope_type\": \"default\"\n  },\n"
      "  \"tie_word_embeddings\": true,\n  \"transformers_version\": \"5.0.0\",\n  \"use_cache\": true,\n  \"vocab_size\": 32000\n"
      "}\n"
      "train: {global_batch_size: 16, train_iters: 10}\ndata: {seq_length: 4096}\noptimizer: {lr: 1e-4}\n";
  Config *c = read_text(f, text, NULL, 0);
  resolve(f, 1);
  assert_true(c->model.rope_theta == 500000 && c->model.rms_norm_eps == 1e-6);
  assert_int_equal(c->model.head_dim, 64);
  assert_string_equal(config_word(c, "model.model_type"), "llama");
}

static void numbers_are_read_exactly(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t value;
  } ints[] = {{"0", 0},         {"-7", -7},    {"+7", 7},
              {"1e6", 1000000}, {"1.5e1", 15}, {"20.0", 20},
              {"100e-2", 1},    {"0e9999", 0}, {"9223372036854775807", INT64_MAX}},
    bytes[] = {{"65536", 65536},     {"1e9", 1000000000}, {"512MiB", 536870912},
               {"2GiB", 2147483648}, {"1.5KiB", 1536},    {"3 TiB", 3298534883328}};
  char why[CONFIG_WORDS];
  int64_t v;
  double x;
  for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
    assert_true(config_parse_int(ints[i].text, &v, why));
    assert_true(v == ints[i].value);
  }
  for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
    assert_true(config_parse_bytes(bytes[i].text, &v, why));
    assert_true(v == bytes[i].value);
  }
  assert_true(config_parse_real("1e-4", &x, why) && x == 1e-4);
  assert_true(config_parse_real("-0", &x, why) && x == 0 && !signbit(x));
  assert_true(config_parse_real(".5", &x, why) && x == 0.5);
  assert_true(config_parse_real("-2.", &x, why) && x == -2.0);
}

/* The words of the table stand in the order of the enumerators. */
static void words_mean_their_enumerators(void **state) {
  Fixture *f = *state;
#define WORD(set, member, value) assert_int_equal(read_text(f, BASE, (const char *const[]){set}, 1)->member, value)
  WORD("model.model_type=llama", model.model_type, FAMILY_LLAMA);
  WORD("model.model_type=mixtral", model.model_type, FAMILY_MIXTRAL);
  WORD("moe.routing=learned", moe.routing, ROUTE_LEARNED);
  WORD("moe.routing=balanced", moe.routing, ROUTE_BALANCED);
  WORD("moe.routing=all_to_one", moe.routing, ROUTE_ALL_TO_ONE);
  WORD("moe.routing=zipf", moe.routing, ROUTE_ZIPF);
  WORD("moe.aux_scope=sequence", moe.aux_scope, AUX_SEQUENCE);
  WORD("moe.aux_scope=global", moe.aux_scope, AUX_GLOBAL);
  WORD("numerics.mode=canonical", numerics.mode, NUM_CANONICAL);
  WORD("numerics.mode=native", numerics.mode, NUM_NATIVE);
  WORD("numerics.dtype=fp32", numerics.dtype, CDT_FP32);
  WORD("numerics.dtype=fp64", numerics.dtype, CDT_FP64);
  WORD("numerics.dtype=bf16", numerics.dtype, CDT_BF16);
  WORD("data.format=auto", data.format, DATA_AUTO);
  WORD("data.format=megatron", data.format, DATA_MEGATRON);
  WORD("data.format=u16", data.format, DATA_U16);
  WORD("data.format=u32", data.format, DATA_U32);
  WORD("data.format=text", data.format, DATA_TEXT);
  WORD("optimizer.lr_decay_style=constant", optimizer.lr_decay_style, DECAY_CONSTANT);
  WORD("optimizer.lr_decay_style=linear", optimizer.lr_decay_style, DECAY_LINEAR);
  WORD("optimizer.lr_decay_style=cosine", optimizer.lr_decay_style, DECAY_COSINE);
  WORD("optimizer.lr_decay_style=wsd", optimizer.lr_decay_style, DECAY_WSD);
  WORD("optimizer.on_nonfinite=stop", optimizer.on_nonfinite, NONFINITE_STOP);
  WORD("optimizer.on_nonfinite=skip", optimizer.on_nonfinite, NONFINITE_SKIP);
  WORD("schedule.name=1f1b", schedule.name, SCHED_1F1B);
  WORD("schedule.name=all_forward", schedule.name, SCHED_ALL_FORWARD);
  WORD("device.gemm=auto", device.gemm, GEMM_AUTO);
  WORD("device.gemm=onednn", device.gemm, GEMM_ONEDNN);
  WORD("device.gemm=plain", device.gemm, GEMM_PLAIN);
#undef WORD
}

static void command_line_wins_and_says_so(void **state) {
  Fixture *f = *state;
  const char *sets[] = {"optimizer.lr=5e-4", "data.train=a=b \"c\\d\".txt", "memory.device_limit=512MiB", "optimizer.lr=2e-5"};
  Config *c = read_text(f, BASE, sets, 4);
  assert_true(c->optimizer.lr == 2e-5);
  assert_string_equal(c->data.train, "a=b \"c\\d\".txt");
  resolve(f, 1);
  char *text = print(f, print_doc);
  assert_non_null(strstr(text, "  lr: 2.0e-05                                 # --set\n"));
  assert_non_null(strstr(text, "  device_limit: 512MiB                        # --set\n"));
  assert_non_null(strstr(text, "  hidden_size: 64                             # x.yaml:4\n"));
  assert_non_null(strstr(text, "  global_batch_size: 4                        # x.yaml:9\n"));
  assert_non_null(strstr(text, "  head_dim: 16                                # derived\n"));
  assert_non_null(strstr(text, "  window: 256                                 # default\n"));
}

static void printed_text_reads_back_unchanged(void **state) {
  Fixture *f = *state;
  const char *sets[] = {"data.train=é \"q\" \\ #:{}.txt",
                        "optimizer.lr=0.1234567890123456",
                        "model.rms_norm_eps=3.0000000000000004e-7",
                        "memory.host_limit=1e9",
                        "data.valid=~",
                        "train.seed=9223372036854775807"};
  read_text(f, BASE, sets, 6);
  resolve(f, 4);
  Config first = f->doc.c;
  char *plain = config_text(&f->doc, &f->arena), *commented = print(f, print_doc);
  Config *again = read_text(f, commented, NULL, 0);
  resolve(f, 4);
  assert_string_equal(config_text(&f->doc, &f->arena), plain);
  read_text(f, plain, NULL, 0);
  resolve(f, 4);
  assert_string_equal(config_text(&f->doc, &f->arena), plain);
  assert_true(again->optimizer.lr == first.optimizer.lr && again->model.rms_norm_eps == first.model.rms_norm_eps);
  assert_string_equal(again->data.train, first.data.train);
  assert_int_equal(again->memory.host_limit, 1000000000);
  assert_int_equal(count(plain, " # "), 0);
  assert_int_equal(count(plain, "\n  device_limit: 0\n"), 1);
}

static void every_key_is_printed_and_documented_once(void **state) {
  Fixture *f = *state;
  read_text(f, BASE, NULL, 0);
  char *text = config_text(&f->doc, &f->arena), *reference = print(f, print_reference);
  int rows = 0, sections = count(reference, "### `");
  for (int i = 0; i < config_n_keys(); i++) {
    const char *name = config_key(i)->name;
    char section[64], row[128], *from, *to;
    assert_int_equal(config_find(name), i); /* no name twice */
    snprintf(section, sizeof section, "### `%.*s:`", config_section_length(name), name);
    assert_int_equal(count(reference, section), 1);
    from = strstr(reference, section), to = strstr(from + 1, "### ");
    snprintf(row, sizeof row, "\n| `%s` |", strchr(name, '.') + 1);
    char *at = strstr(from, row);
    assert_non_null(at);
    assert_true(!to || at < to);
    assert_true(*config_key(i)->help && !strchr(config_key(i)->help, '|'));
    char line[128];
    snprintf(line, sizeof line, "\n  %s: ", strchr(name, '.') + 1);
    snprintf(section, sizeof section, "%.*s:\n", config_section_length(name), name);
    const char *in = strstr(text, section), *end = in + strlen(section);
    while (strncmp(end, "  ", 2) == 0) end = strchr(end, '\n') + 1;
    at = strstr(in, line);
    assert_true((at && at < end) == (config_key(i)->type != KEY_IGNORED));
    rows++;
  }
  assert_int_equal(count(reference, "\n| `"), rows);
  assert_int_equal(sections, 12);
}

/* Every default, and every end of a range, is itself allowed. */
static void defaults_and_ranges_agree(void **state) {
  Fixture *f = *state;
  read_text(f, BASE, NULL, 0);
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    char why[CONFIG_WORDS], text[64];
    if (k->type != KEY_INT) continue;
    for (int end = 0; end < 2; end++) {
      snprintf(text, sizeof text, "%lld", (long long)(end ? k->hi : k->lo));
      assert_true(config_value_set(k, &f->doc.c, (ConfigScalar){text, strlen(text), false}, &f->arena, why));
    }
  }
}

static void shipped_files_are_valid(void **state) {
  Fixture *f = *state;
  static const char *const files[] = {"quickstart", "bench_small", "bench_medium"};
  for (size_t i = 0; i < 3; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/configs/%s.yaml", SOURCE_DIR, files[i]);
    if (!config_read(&f->doc, &f->arena, path, NULL, 0, &f->err)) fail_msg("%s", f->err.text);
    resolve(f, 4);
  }
}

static void without_a_file_all_comes_from_sets(void **state) {
  Fixture *f = *state;
  const char *sets[] = {"model.model_type=llama",      "model.vocab_size=16",
                        "model.hidden_size=8",         "model.num_hidden_layers=1",
                        "model.num_attention_heads=1", "model.intermediate_size=8",
                        "train.global_batch_size=1",   "train.train_iters=1",
                        "data.seq_length=8",           "optimizer.lr=1"};
  assert_true(config_read(&f->doc, &f->arena, NULL, sets, 9, &f->err));
  assert_false(config_resolve(&f->doc, 1, &f->err));
  assert_string_equal(f->err.text, "no configuration file: optimizer.lr: missing from section optimizer; allowed: a number >= 0");
  assert_non_null(strstr(print(f, print_doc), "\n  # lr: required, not given\n"));
  f->err = (Err){0};
  assert_true(config_read(&f->doc, &f->arena, NULL, sets, 10, &f->err));
  resolve(f, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(defaults_and_derived_values, setup, teardown),
      cmocka_unit_test_setup_teardown(experts_have_their_own_width_and_layers, setup, teardown),
      cmocka_unit_test_setup_teardown(edges_of_rules_are_allowed, setup, teardown),
      cmocka_unit_test_setup_teardown(json_as_hugging_face_writes_it_is_read, setup, teardown),
      cmocka_unit_test_setup_teardown(a_pasted_json_is_read, setup, teardown),
      cmocka_unit_test_setup_teardown(numbers_are_read_exactly, setup, teardown),
      cmocka_unit_test_setup_teardown(words_mean_their_enumerators, setup, teardown),
      cmocka_unit_test_setup_teardown(command_line_wins_and_says_so, setup, teardown),
      cmocka_unit_test_setup_teardown(printed_text_reads_back_unchanged, setup, teardown),
      cmocka_unit_test_setup_teardown(every_key_is_printed_and_documented_once, setup, teardown),
      cmocka_unit_test_setup_teardown(defaults_and_ranges_agree, setup, teardown),
      cmocka_unit_test_setup_teardown(shipped_files_are_valid, setup, teardown),
      cmocka_unit_test_setup_teardown(without_a_file_all_comes_from_sets, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
