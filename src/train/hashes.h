/* Hashes that tell where two runs part: of every tensor, and of every value of a forward pass. Layout-free like all hashes here (README,
 * "Numerics"): sums over elements, keyed by name and logical place. For `etalon compare`. */
#ifndef ETALON_HASHES_H
#define ETALON_HASHES_H
#include "train/metrics.h"
#include "train/setup.h"
#include "train/tap_map.h"

typedef struct ValueHash {
  TapMap map;
  const char **name[STEP_MAX_CHUNK];   /* [n_val] layout-free name; NULL: not hashed */
  uint64_t *value[STEP_MAX_CHUNK];     /* [n_val] of this rank's elements, over all micro-batches */
  int64_t n_seq, seq_length;
  uint64_t *sequence;        /* [sequences of the batch] of all values of its tokens */
} ValueHash;

void value_hash_open(ValueHash *h, const Setup *s);
void value_hash_clear(ValueHash *h, const Setup *s);
/* An ExecTap of the training step; ctx: the ValueHash. */
void value_hash_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row);
/* Collective. One line of metrics: "value_hash": {name: hash, ...} in program order, "sequence_hash": [...]. */
void value_hash_write(const ValueHash *h, Setup *s, Metrics *m, int64_t it);
/* Collective. One line of metrics: "tensor_hash": {"weights": {name: hash, ...}, "gradients": {...}} after a training step. */
void tensor_hash_write(Setup *s, Metrics *m, int64_t it);
#endif
