/* Worlds at random, for checks of what a plan says of each of their ranks. */
#ifndef ETALON_TEST_DRAW_WORLD_H
#define ETALON_TEST_DRAW_WORLD_H
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

enum { DRAWN_SETS = 18, DRAWN_RANKS = 36 };
typedef struct Draw {
  RngKey key;
  uint64_t n;
} Draw;
static inline Draw draw_open(uint64_t seed) { return (Draw){.key = {.seed = seed, .purpose = RNG_TEST}}; }
static inline int draw(Draw *d, int n) { return (int)rng_below(d->key, d->n++, (uint64_t)n); }

/* Sets of a world of some ranks; returns how many ranks, 0: such a layout there is not. Sizes that nothing divides, shares that are empty, sequences of a few tokens. */
static inline int draw_world(Draw *d, Arena *a, const char **set) {
  static const char *const kind[][3] = {{"optimizer.shard=true", "optimizer.shard=false", "optimizer.shard_parameters=true"},
                                        {"numerics.dtype=fp32", "numerics.dtype=bf16", "numerics.dtype=fp64"},
                                        {"layout.cp_comm_type=allgather", "layout.cp_comm_type=a2a", "layout.cp_comm_type=p2p"},
                                        {"schedule.name=1f1b", "schedule.name=all_forward", "schedule.name=zero_bubble"}};
  static const struct {
    const char *key;
    int lo, hi;
  } size[] = {{"train.global_batch_size", 1, 24}, {"train.micro_batch_size", 1, 3}, {"data.seq_length", 1, 60},
              {"numerics.window", 1, 9},          {"model.vocab_size", 97, 3000},   {"model.sliding_window", 0, 20},
              {"model.num_local_experts", 6, 24}};
  int pp = 1 + draw(d, 3), dp = 1 + draw(d, 5), cp = 1 + draw(d, 4), tp = 1 + draw(d, 3), etp = 1 + draw(d, 3), ep = 1 + draw(d, 6), n = 0;
  const int axis[] = {pp, cp, tp, ep, etp};
  static const char *const name[] = {"pp", "cp", "tp", "ep", "etp"};
  for (int i = 0; i < 5; i++) set[n++] = arena_printf(a, "layout.%s=%d", name[i], axis[i]);
  for (size_t i = 0; i < sizeof size / sizeof *size; i++)
    set[n++] = arena_printf(a, "%s=%d", size[i].key, size[i].lo + draw(d, size[i].hi + 1 - size[i].lo));
  for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
    set[n++] = kind[i][draw(d, 3)];
    if (strstr(set[n - 1], "p2p")) set[n++] = "numerics.mode=native";
  }
  set[n] = NULL;
  return dp * cp * tp % (ep * etp) || pp * dp * cp * tp > DRAWN_RANKS ? 0 : pp * dp * cp * tp;
}
#endif
