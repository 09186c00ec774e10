/* Text from a model that was trained with the byte tokenizer, for people to see what it has learned. Every token costs a forward pass over
 * the whole context window (no key-value cache): correct first. Called by `etalon sample`, and by train when it ends. */
#ifndef ETALON_SAMPLE_H
#define ETALON_SAMPLE_H
#include "base/log.h"
#include "train/setup.h"

typedef struct SampleArgs {
  const char *prompt;        /* bytes; a document begins before the first of them */
  int64_t n_token;           /* at most; generation stops where a document ends */
  double temperature;        /* logits are divided by it; 0: always the likeliest (ties: lowest byte) */
  uint64_t seed;
} SampleArgs;

/* ERR_CONFIG: the model's vocabulary is not the byte tokenizer's. */
bool sample_possible(const Config *c, Err *e);
/* Collective. s: opened with one validation sequence and sample_config's configuration. Writes prompt and continuation, and a newline, to
 * `out` on the rank whose log speaks. A function of the weights, the arguments and seq_length alone: canonical numerics give the same text
 * on every layout. Context: the last seq_length tokens. ERR_NONFINITE. */
bool sample_run(Setup *s, const SampleArgs *args, const Log *log, Err *e);
/* The same model, mesh and numerics with as little memory as a step can have. */
Config sample_config(const Config *c);
/* Collective. The trained setup ends here (its memory is given back first); its weights go on. Prints train.sample_prompt, continued. */
bool sample_trained(Setup *trained, Log *log, Err *e);
/* `etalon sample`: collective. */
bool sample_verb(World *w, Arena *a, const Config *c, const char *resume, const SampleArgs *args, FILE *out, Err *e);
#endif
