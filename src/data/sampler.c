#include "base/rng.h"
#include "data/data.h"
#include <inttypes.h>
#include <string.h>

bool sampler_open(Sampler *s, const TokenFile *f, int64_t seq, uint64_t seed, bool shuffle, Err *e) {
  CHECK(seq > 0, "sequences of %" PRId64 " tokens", seq);
  if (f->n_token <= seq)
    return err_set(e, ERR_DATA,
                   "%s: %" PRId64 " tokens; one sequence of data.seq_length %" PRId64 " needs %" PRId64
                   ": shorten it or take a longer file",
                   f->path, f->n_token, seq, seq + 1);
  *s = (Sampler){.file = f, .seq = seq, .n_sample = (f->n_token - 1) / seq, .seed = seed, .shuffle = shuffle};
  return true;
}

int64_t sampler_sequence(const Sampler *s, int64_t sample) {
  CHECK(sample >= 0, "sample %" PRId64, sample);
  int64_t epoch = sample / s->n_sample, i = sample % s->n_sample;
  if (!s->shuffle) return i;
  RngKey key = {.seed = s->seed, .stream = (uint64_t)epoch, .purpose = RNG_SHUFFLE};
  return (int64_t)rng_permute(key, (uint64_t)s->n_sample, (uint64_t)i);
}

/* Tokens first .. first+n-1 and, one further on, their labels. */
static bool fetch(const TokenFile *f, int64_t first, int64_t n, int32_t *token, int32_t *label, Err *e) {
  TRY(token_file_read(f, first, n, token, e));
  memcpy(label, token + 1, (size_t)(n - 1) * sizeof *label);
  return token_file_read(f, first + n, 1, label + n - 1, e);
}

bool sampler_fetch(const Sampler *s, int64_t sample, int32_t *token, int32_t *label, Err *e) {
  return fetch(s->file, sampler_sequence(s, sample) * s->seq, s->seq, token, label, e);
}

int64_t valid_count(const TokenFile *f, int64_t seq) { return (f->n_token - 1 + seq - 1) / seq; }

bool valid_fetch(const TokenFile *f, int64_t seq, int64_t i, int32_t *token, int32_t *label, Err *e) {
  CHECK(i >= 0 && i < valid_count(f, seq), "validation sequence %" PRId64 " of %" PRId64, i, valid_count(f, seq));
  int64_t first = i * seq, left = f->n_token - 1 - first, n = left < seq ? left : seq;
  TRY(fetch(f, first, n, token, label, e));
  for (int64_t t = n; t < seq; t++) token[t] = 0, label[t] = LABEL_IGNORED;
  return true;
}
