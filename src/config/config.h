/* The configuration: plain structs, filled from one table with a row per key (config_table.c). Reading a file, the
 * rules between keys and printing live beside it. Keys inside `model:` are Hugging Face's, elsewhere Megatron's words.
 * Nothing here knows MPI; `config_resolve` is told the number of ranks.                                               */
#ifndef ETALON_CONFIG_H
#define ETALON_CONFIG_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

typedef enum { FAMILY_LLAMA, FAMILY_MIXTRAL, N_FAMILY } Family;
typedef enum { NUM_CANONICAL, NUM_NATIVE, N_NUM_MODE } NumericsMode;
typedef enum { CDT_FP32, CDT_FP64, CDT_BF16, N_CDT } ComputeDType;
typedef enum { ROUTE_LEARNED, ROUTE_BALANCED, ROUTE_ALL_TO_ONE, ROUTE_ZIPF, ROUTE_REPLAY, N_ROUTE } Routing;
typedef enum { AUX_SEQUENCE, AUX_GLOBAL, N_AUX } AuxScope;
typedef enum { DECAY_CONSTANT, DECAY_LINEAR, DECAY_COSINE, DECAY_WSD, N_DECAY } LrDecay;
typedef enum { NONFINITE_STOP, NONFINITE_SKIP, N_NONFINITE } OnNonfinite;
typedef enum { DATA_AUTO, DATA_MEGATRON, DATA_U16, DATA_U32, DATA_TEXT, N_DATA } DataFormat;
typedef enum { CP_COMM_ALLGATHER, CP_COMM_A2A, CP_COMM_P2P, N_CP_COMM_TYPE } CpCommType;
typedef enum { GEMM_AUTO, GEMM_ONEDNN, GEMM_PLAIN, N_GEMM_PROVIDER } GemmProvider;
typedef enum { SCHED_1F1B, SCHED_ALL_FORWARD, SCHED_INTERLEAVED, SCHED_ZERO_BUBBLE, N_SCHED } ScheduleKind;

/* For tables that an enum above is the index of: a member without a row does not compile. */
#define ROW_FOR_EACH(table, n) _Static_assert(sizeof(table) / sizeof *(table) == (n), #table ": a row for each member")

typedef struct ModelConfig {
  Family  model_type;
  int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads /* 0: heads */, head_dim /* 0: hidden / heads */;
  int64_t intermediate_size;            /* width of a dense FFN; of an expert when moe_intermediate_size is 0 */
  int64_t moe_intermediate_size, num_local_experts, num_experts_per_tok, first_k_dense_replace;
  int64_t sliding_window;               /* 0: none. Query t sees keys t-W+1..t */
  bool    norm_topk_prob, tie_word_embeddings;
  double  rope_theta, rms_norm_eps, initializer_range, router_aux_loss_coef, router_z_loss_coef;
} ModelConfig;

typedef struct Config {
  ModelConfig model;
  struct { Routing routing; AuxScope aux_scope; double zipf_exponent; char *record, *replay; } moe;
  struct { NumericsMode mode; ComputeDType dtype; int64_t window, shards; } numerics;
  struct { int64_t dp /* 0: world / (tp pp cp) */, tp, pp, ep, etp, cp, chunks /* virtual stages on a rank */; char *pp_layers; CpCommType cp_comm_type; } layout;
  struct { char *train, *valid; DataFormat format; int64_t seq_length; bool shuffle, document_mask; int64_t eod_token /* -1: none */; } data;      /* paths: text, .bin prefix or file */
  struct { int64_t global_batch_size, micro_batch_size /* sequences */, train_iters, seed, eval_interval /* 0: at the end only */;
           double max_minutes /* 0: none */, hang_seconds /* 0: no watchdog */; char *stop_file; int64_t replica_check_interval; bool profile;
           char *trace; int64_t trace_start, trace_steps;
           char *sample_prompt; int64_t sample_tokens; } train;
  struct { double lr, min_lr, adam_beta1, adam_beta2, adam_eps, weight_decay, clip_grad /* 0: none */; LrDecay lr_decay_style;
           int64_t lr_warmup_iters, lr_decay_iters /* 0: train_iters */, lr_wsd_decay_iters; OnNonfinite on_nonfinite; bool shard /* ZeRO-1 */, shard_parameters /* ZeRO-3 */; } optimizer;
  struct { ScheduleKind name; } schedule;
  struct { int64_t device_limit, host_limit; bool guard; } memory;   /* bytes; 0: no limit */
  struct { char *name; int64_t threads; GemmProvider gemm; } device;
  struct { char *dir; int64_t save_interval /* 0: at the end only */, keep_last /* 0: all */; bool save_final, overwrite, async; int64_t compress /* 0: no; zlib's level */; } checkpoint;
  struct { int64_t interval, hash_interval; bool hash_values; char *metrics, *tensorboard; int64_t router_interval; } log;    /* metrics: JSONL path; empty: none */
  const char *text;     /* all of it as written, before config_resolve derived values: what a checkpoint keeps; NULL before that */
} Config;

typedef struct ConfigSource { const char *file; int line; } ConfigSource;   /* file NULL: default; "--set": command line; "derived": config_resolve */
typedef struct ConfigDoc { Config c; ConfigSource *source /* [config_n_keys()] */; Arena *arena; const char *file /* NULL: none */; } ConfigDoc;

/* Reads `path` (YAML; NULL: defaults only), then `sets` ("a.b=value"). ERR_CONFIG: file:line, value found, values allowed, nearest key. */
bool config_read(ConfigDoc *d, Arena *a, const char *path, const char *const *sets, int n_sets, Err *e);
/* The same from text already in memory (the config that a checkpoint carries); `name` stands for the file in messages. */
bool config_read_text(ConfigDoc *d, Arena *a, const char *name, const char *text, const char *const *sets, int n_sets, Err *e);
/* Fills derived keys (dp, head_dim ...) for `world` ranks and checks the rules between keys; every message names both keys and the source lines. */
bool config_resolve(ConfigDoc *d, int world, Err *e);
void config_print(const ConfigDoc *d, FILE *f);           /* every key, as YAML, with where each value came from as a comment; readable by config_read */
char *config_text(const ConfigDoc *d, Arena *a);          /* the same without comments */
/* What a configuration (text of config_text) has otherwise than an earlier one: "model.rope_theta 10000 (was 500000), ..."; empty: nothing. NULL: one of them is
 * not read by this version. Scopes: what the model computes; what a training run makes of it, whatever its layout, numerics and outputs; every key. */
typedef enum { CONFIG_SCOPE_MODEL, CONFIG_SCOPE_TRAINING, CONFIG_SCOPE_ALL, N_CONFIG_SCOPE } ConfigScope;
const char *config_changes(Arena *a, const char *was, const char *now, ConfigScope scope);
void config_print_reference(FILE *f);                     /* the README's table, Markdown */
int  config_n_keys(void);
const char *config_word(const Config *c, const char *key);   /* of a key whose values are words: "schedule.name" -> "1f1b" */
int64_t config_ffn_expert(const ModelConfig *m);          /* width of an expert */
bool config_layer_is_moe(const ModelConfig *m, int layer);
/* layout.pp_layers as numbers, the first `most` of them into `layers`; returns how many there are (0: none are given), -1: it is no list of numbers. */
int  config_pp_layers(const Config *c, int64_t *layers, int most, int64_t *sum);
#endif
