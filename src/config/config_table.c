#include "config/config_table.h"

#include <string.h>

enum { MAX_I32 = INT32_MAX, MAX_WIDTH = 1 << 20, MAX_COUNT = 1 << 16, MAX_SHARDS = 2048 /* PLANES_MAX of the ops */ };
#define MAX_STEPS (INT64_C(1) << 40)
#define MAX_BYTES (INT64_C(1) << 60)

static const char *const family_words[] = {"llama", "mixtral", NULL};
static const char *const mode_words[] = {"canonical", "native", NULL};
static const char *const dtype_words[] = {"fp32", "fp64", "bf16", NULL};
static const char *const routing_words[] = {"learned", "balanced", "all_to_one", "zipf", "replay", NULL};
static const char *const aux_words[] = {"sequence", "global", NULL};
static const char *const decay_words[] = {"constant", "linear", "cosine", "wsd", NULL};
static const char *const nonfinite_words[] = {"stop", "skip", NULL};
static const char *const format_words[] = {"auto", "megatron", "u16", "u32", "text", NULL};
static const char *const cp_comm_words[] = {"allgather", "a2a", "p2p", NULL};
static const char *const gemm_words[] = {"auto", "onednn", "plain", NULL};
static const char *const schedule_words[] = {"1f1b", "all_forward", "interleaved", "zero_bubble", NULL};

/* A member without a word would be read past the end of its list. */
#define ALL_WORDS(list, n) _Static_assert(sizeof(list) / sizeof *(list) == (n) + 1, #list ": a word for each member, then NULL")
ALL_WORDS(family_words, N_FAMILY);
ALL_WORDS(mode_words, N_NUM_MODE);
ALL_WORDS(dtype_words, N_CDT);
ALL_WORDS(routing_words, N_ROUTE);
ALL_WORDS(aux_words, N_AUX);
ALL_WORDS(decay_words, N_DECAY);
ALL_WORDS(nonfinite_words, N_NONFINITE);
ALL_WORDS(format_words, N_DATA);
ALL_WORDS(cp_comm_words, N_CP_COMM_TYPE);
ALL_WORDS(gemm_words, N_GEMM_PROVIDER);
ALL_WORDS(schedule_words, N_SCHED);

static const char *const only_false[] = {"false", NULL};
static const char *const only_zero[] = {"0", "0.0", NULL};
static const char *const only_one[] = {"1", NULL};
static const char *const only_silu[] = {"silu", NULL};
static const char *const only_null[] = {"null", NULL};

/* A row whose member has another type than the row does not compile. */
#define AT(s, m, T)        _Generic(((Config *)0)->s.m, T : offsetof(Config, s.m))
#define KEY(s, m, T, kind) .name = #s "." #m, .type = kind, .offset = AT(s, m, T)
#define INT(s, m, low, high, def, text)                                                                                                    \
  { KEY(s, m, int64_t, KEY_INT), .lo = low, .hi = high, .preset = def, .help = text }
#define INT_OR_NULL(s, m, low, high, def, text)                                                                                            \
  { KEY(s, m, int64_t, KEY_INT), .lo = low, .hi = high, .null_is_zero = true, .preset = def, .help = text }
#define BYTES(s, m, def, text)                                                                                                             \
  { KEY(s, m, int64_t, KEY_BYTES), .lo = 0, .hi = MAX_BYTES, .preset = def, .help = text }
#define REAL(s, m, low, high, def, text)                                                                                                   \
  { KEY(s, m, double, KEY_REAL), .real_lo = low, .real_hi = high, .preset = def, .help = text }
#define POSITIVE(s, m, def, text)                                                                                                          \
  { KEY(s, m, double, KEY_REAL), .real_hi = DBL_MAX, .open_lo = true, .preset = def, .help = text }
#define SHARE(s, m, def, text)                                                                                                             \
  { KEY(s, m, double, KEY_REAL), .real_hi = 1.0, .open_hi = true, .preset = def, .help = text }
#define BOOL(s, m, def, text)                                                                                                              \
  { KEY(s, m, bool, KEY_BOOL), .preset = def, .help = text }
#define TEXT(s, m, def, text)                                                                                                              \
  { KEY(s, m, char *, KEY_STRING), .preset = def, .help = text }
#define ENUM(s, m, list, def, text)                                                                                                        \
  { KEY(s, m, unsigned, KEY_ENUM), .words = list, .preset = def, .help = text }
#define IGNORED(key, list, text)                                                                                                           \
  { .name = key, .type = KEY_IGNORED, .words = list, .preset = "", .help = text }

/* clang-format off */
static const ConfigKey table[] = {
    ENUM(model, model_type, family_words, NULL, "family: llama is dense, mixtral routes each token to a few experts"),
    INT(model, vocab_size, 1, MAX_I32, NULL, "tokens in the vocabulary; 257 for the built-in byte tokenizer"),
    INT(model, hidden_size, 1, MAX_WIDTH, NULL, "width of the residual stream"),
    INT(model, num_hidden_layers, 1, MAX_COUNT, NULL, "transformer layers"),
    INT(model, num_attention_heads, 1, MAX_COUNT, NULL, "query heads"),
    INT_OR_NULL(model, num_key_value_heads, 0, MAX_COUNT, "0", "key-value heads, each for a group of query heads; 0: as many as query heads"),
    INT_OR_NULL(model, head_dim, 0, MAX_WIDTH, "0", "width of a head; 0: hidden_size / num_attention_heads"),
    INT(model, intermediate_size, 1, MAX_WIDTH, NULL, "width of a feed-forward layer; of an expert when moe_intermediate_size is 0"),
    INT(model, moe_intermediate_size, 0, MAX_WIDTH, "0", "width of an expert; 0: intermediate_size"),
    INT(model, num_local_experts, 0, MAX_COUNT, "0", "experts in each MoE layer; 0: a dense model"),
    INT(model, num_experts_per_tok, 1, 1024, "2", "experts that each token is sent to"),
    INT(model, first_k_dense_replace, 0, MAX_COUNT, "0", "this many layers at the bottom are dense"),
    INT_OR_NULL(model, sliding_window, 0, MAX_I32, "0", "a query sees this many keys, its own included; 0: all before it"),
    BOOL(model, norm_topk_prob, "true", "router weights of the chosen experts are divided by their sum"),
    BOOL(model, tie_word_embeddings, "false", "the output projection is the embedding"),
    POSITIVE(model, rope_theta, "10000", "base of the rotary position angles"),
    POSITIVE(model, rms_norm_eps, "1e-5", "added to the mean square in RMSNorm"),
    REAL(model, initializer_range, 0, DBL_MAX, "0.02", "standard deviation of the initial weights"),
    REAL(model, router_aux_loss_coef, 0, DBL_MAX, "0.001", "weight of the load-balancing loss; 0: none"),
    REAL(model, router_z_loss_coef, 0, DBL_MAX, "0", "weight of the router's z-loss; 0: none"),
    IGNORED("model.architectures", NULL, "model_type says it"),
    IGNORED("model._name_or_path", NULL, "weights are read from where the command line says"),
    IGNORED("model.torch_dtype", NULL, "numerics.dtype says it"),
    IGNORED("model.dtype", NULL, "numerics.dtype says it"),
    IGNORED("model.transformers_version", NULL, "belongs to the library that wrote the file"),
    IGNORED("model.bos_token_id", NULL, "the data says where a text begins"),
    IGNORED("model.eos_token_id", NULL, "the data says where a text ends"),
    IGNORED("model.pad_token_id", NULL, "sequences are packed, never padded"),
    IGNORED("model.use_cache", NULL, "concerns generation, not training"),
    IGNORED("model.max_position_embeddings", NULL, "rotary positions have no table; data.seq_length says how long a sequence is"),
    IGNORED("model.output_router_logits", NULL, "router_aux_loss_coef says whether the loss is used"),
    IGNORED("model.pretraining_tp", only_one, "sums in slices are not in this version"),
    IGNORED("model.attention_bias", only_false, "biases are not in this version"),
    IGNORED("model.mlp_bias", only_false, "biases are not in this version"),
    IGNORED("model.attention_dropout", only_zero, "dropout is not in this version"),
    IGNORED("model.hidden_act", only_silu, "other activations are not in this version"),
    IGNORED("model.router_jitter_noise", only_zero, "router noise is not in this version"),
    IGNORED("model.rope_scaling", only_null, "scaled rotary positions are not in this version"),
    IGNORED("model.rope_parameters", only_null, "of a mapping rope_theta and rope_type: default are read"),
    IGNORED("model.attn_implementation", NULL, "there is one"),
    IGNORED("model._attn_implementation", NULL, "there is one"),
    IGNORED("model._attn_implementation_autoset", NULL, "there is one"),
    IGNORED("model.quantization_config", only_null, "quantized weights are not in this version"),

    ENUM(moe, routing, routing_words, "learned", "who chooses experts: the router, a pattern (to measure or to stress), or moe.replay (not in evaluations)"),
    ENUM(moe, aux_scope, aux_words, "sequence", "load balance is counted over one sequence or over the global batch"),
    REAL(moe, zipf_exponent, 0, 100, "1.0", "skew of routing zipf: expert i is drawn with weight 1 / (i + 1)^exponent"),
    TEXT(moe, record, "", "file for the experts that every training step's tokens are sent to (a routing trace); empty: none"),
    TEXT(moe, replay, "", "a routing trace whose choices are made again, step by step, with moe.routing: replay"),

    ENUM(numerics, mode, mode_words, "canonical", "canonical: same bits on every layout; native: faster, same bits on one layout only"),
    ENUM(numerics, dtype, dtype_words, "fp32", "type of weights, activations and gradients; bf16: of what products read, sums and master weights are fp32"),
    INT(numerics, window, 1, MAX_I32, "256", "tokens summed as one piece of a weight gradient; canonical bits depend on it"),
    INT(numerics, shards, 1, MAX_SHARDS, "1", "blocks that a feature axis is cut into; canonical bits depend on it"),

    INT(layout, dp, 0, MAX_I32, "0", "data-parallel groups; 0: ranks / (tp x pp x cp)"),
    INT(layout, tp, 1, MAX_SHARDS, "1", "tensor-parallel ranks (with sequence parallelism); canonical mode: at most numerics.shards"),
    INT(layout, pp, 1, MAX_COUNT, "1", "pipeline stages"),
    INT(layout, chunks, 1, 16, "1", "model chunks on each stage (virtual stages; schedule interleaved)"),
    TEXT(layout, pp_layers, "", "layers of each virtual stage in order, such as 8,8,7,7; empty: balanced, head and embedding counted"),
    INT(layout, ep, 1, MAX_I32, "1", "expert-parallel ranks, a divisor of dp x cp x tp / etp"),
    INT(layout, etp, 1, MAX_SHARDS, "1", "tensor-parallel ranks inside an expert; canonical mode: at most numerics.shards"),
    INT(layout, cp, 1, MAX_COUNT, "1", "context-parallel ranks: a sequence's windows are dealt to them in a zigzag"),
    ENUM(layout, cp_comm_type, cp_comm_words, "allgather", "how attention brings a sequence together over them: its keys and values are fetched, or each rank takes some of the heads (a2a, Ulysses), or they pass by one block after the other (p2p, ring; native mode)"),

    TEXT(data, train, "", "training tokens: a text, a token file, or the prefix of a .bin and .idx pair"),
    TEXT(data, valid, "", "validation tokens, likewise; empty: no evaluation"),
    ENUM(data, format, format_words, "auto", "what the files hold; auto: text by .txt, tokens by .u16 and .u32, megatron where NAME.bin and NAME.idx are there"),
    INT(data, seq_length, 1, 1 << 24, NULL, "tokens of a sequence"),
    BOOL(data, shuffle, "true", "sequences come in a random order, another one each epoch"),
    BOOL(data, document_mask, "false", "attention and positions stay within a document; documents end with data.eod_token"),
    INT(data, eod_token, -1, MAX_I32, "-1", "the token that ends a document, with data.document_mask; -1: 256 for a text, else it must be given"),

    INT(train, global_batch_size, 1, MAX_I32, NULL, "sequences of a step, over all ranks"),
    INT(train, micro_batch_size, 1, MAX_I32, "1", "sequences that a rank works on at a time; the last micro-batch may be smaller"),
    INT(train, train_iters, 1, MAX_STEPS, NULL, "steps in all"),
    INT(train, seed, 0, INT64_MAX, "1234", "of every random number: initial weights, order of the data"),
    INT(train, eval_interval, 0, MAX_STEPS, "0", "steps between evaluations; 0: at the end only"),
    REAL(train, max_minutes, 0, DBL_MAX, "0", "save and stop after this time (exit code 75); 0: no limit"),
    REAL(train, hang_seconds, 0, 1e9, "600", "stop (exit code 8) when no rank of a host has done anything for this long; 0: wait for ever"),
    TEXT(train, stop_file, "", "save and stop when this file appears (exit code 75); empty: none"),
    INT(train, replica_check_interval, 0, MAX_STEPS, "0", "steps between checks that replicas hold the same weights; 0: never"),
    BOOL(train, profile, "false", "print at the end where the time went: by op and pass, with GFLOP/s"),
    TEXT(train, trace, "", "file for a trace of a few steps on all ranks, for ui.perfetto.dev; empty: none"),
    INT(train, trace_start, 1, MAX_STEPS, "2", "first step of the trace, counted from where this run begins"),
    INT(train, trace_steps, 1, 1000, "2", "steps in the trace"),
    TEXT(train, sample_prompt, "", "at the end of training print this text as the model continues it (byte tokenizer only); empty: nothing"),
    INT(train, sample_tokens, 1, 1 << 20, "120", "at most this many bytes of continuation; it stops where a document ends"),

    REAL(optimizer, lr, 0, DBL_MAX, NULL, "peak learning rate of AdamW"),
    REAL(optimizer, min_lr, 0, DBL_MAX, "0", "learning rate at the end of the decay"),
    SHARE(optimizer, adam_beta1, "0.9", "decay of the first moment"),
    SHARE(optimizer, adam_beta2, "0.95", "decay of the second moment"),
    POSITIVE(optimizer, adam_eps, "1e-8", "added to the root of the second moment"),
    REAL(optimizer, weight_decay, 0, DBL_MAX, "0.1", "decoupled weight decay"),
    REAL(optimizer, clip_grad, 0, DBL_MAX, "1.0", "largest global gradient norm; 0: no clipping"),
    ENUM(optimizer, lr_decay_style, decay_words, "cosine", "shape of the decay; wsd: constant, then down over the last lr_wsd_decay_iters"),
    INT(optimizer, lr_warmup_iters, 0, MAX_STEPS, "0", "steps of linear warm-up from 0"),
    INT(optimizer, lr_decay_iters, 0, MAX_STEPS, "0", "step at which the decay ends; 0: train_iters"),
    INT(optimizer, lr_wsd_decay_iters, 0, MAX_STEPS, "0", "length of the decay of style wsd"),
    ENUM(optimizer, on_nonfinite, nonfinite_words, "stop", "at a NaN or infinity: stop (exit code 6), or skip the update"),
    BOOL(optimizer, shard, "true", "each data-parallel rank keeps a part of the optimizer state (ZeRO-1)"),
    BOOL(optimizer, shard_parameters, "false", "weights and gradients too are kept in shares, a weight is gathered for each use (ZeRO-3)"),

    ENUM(schedule, name, schedule_words, "1f1b", "order of micro-batches and stages; all_forward: every forward before the first backward; interleaved: with layout.chunks; zero_bubble: weight gradients fill the gaps"),

    BYTES(memory, device_limit, "0", "ceiling of device memory on each rank; 0: no limit"),
    BYTES(memory, host_limit, "0", "ceiling of host memory for offloaded values on each rank; 0: no limit"),
    BOOL(memory, guard, "false", "fill dead memory with NaN: slow, finds a value used after its end"),

    TEXT(device, name, "cpu", "cpu, or cpu-lag: copies delayed at random, so that a missing wait shows"),
    INT(device, threads, 1, 4096, "1", "threads of each rank"),
    ENUM(device, gemm, gemm_words, "auto", "matrix products: oneDNN or the built-in kernel; auto: the fastest there is for the type"),

    TEXT(checkpoint, dir, "checkpoints/run", "directory of the checkpoints"),
    INT(checkpoint, save_interval, 0, MAX_STEPS, "0", "steps between checkpoints; 0: at the end only"),
    INT(checkpoint, keep_last, 0, MAX_I32, "0", "checkpoints kept, the newest; 0: all"),
    BOOL(checkpoint, save_final, "true", "save after the last step"),
    BOOL(checkpoint, overwrite, "false", "at a run's first save delete the checkpoints in dir that it does not go on from; false: they refuse a run that resumes from none of them, and those of later steps than it resumes from go as it passes them"),
    BOOL(checkpoint, async, "false", "write from a copy in host memory while training goes on"),
    INT(checkpoint, compress, 0, 9, "0", "zlib's level; 0: not compressed. Compressed checkpoints are written by one rank"),

    INT(log, interval, 1, MAX_STEPS, "1", "steps between lines"),
    INT(log, hash_interval, 0, MAX_STEPS, "0", "steps between hashes of weights, gradients and moments, of every tensor in log.metrics; 0: none"),
    BOOL(log, hash_values, "false", "at those steps log.metrics also has hashes of every value of the forward pass, and of every sequence: slow"),
    INT(log, router_interval, 0, MAX_STEPS, "0", "steps between statistics of every layer's router (rows per expert, entropy, largest violation); 0: none"),
    TEXT(log, tensorboard, "", "directory for TensorBoard's event files; empty: none"),
    TEXT(log, metrics, "", "file that one JSON object per step is appended to, and one where a run begins: what stood there of its steps counts no more; empty: none"),
};
/* clang-format on */

int config_n_keys(void) { return (int)(sizeof table / sizeof table[0]); }

const ConfigKey *config_key(int i) {
  CHECK(i >= 0 && i < config_n_keys(), "no configuration key %d", i);
  return &table[i];
}

int config_find(const char *name) {
  for (int i = 0; i < config_n_keys(); i++)
    if (strcmp(table[i].name, name) == 0) return i;
  return -1;
}

const char *config_word(const Config *c, const char *key) {
  int i = config_find(key);
  CHECK(i >= 0 && table[i].type == KEY_ENUM, "%s is no key of words", key);
  return table[i].words[*(const unsigned *)(const void *)((const char *)c + table[i].offset)];
}

int config_section_length(const char *name) { return (int)strcspn(name, "."); }

bool config_has_section(const char *name, int length) {
  for (int i = 0; i < config_n_keys(); i++)
    if (config_section_length(table[i].name) == length && memcmp(table[i].name, name, (size_t)length) == 0) return true;
  return false;
}
