#include "base/rng.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/philox.h"

static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox(c, key[0], key[1]);
  for (int i = 0; i < 4; i++) out[i] = c[i];
}

uint64_t rng_key(RngKey k) { return hash_mix(k.seed + GOLDEN * ((uint64_t)k.purpose + 1)); }

/* Index and stream fill the counter; seed and purpose are mixed into the key (a bijection of the seed for each purpose). */
static void rng_pair(RngKey k, uint64_t index, uint64_t out[2]) {
  uint64_t key = rng_key(k);
  uint32_t w[4];
  rng_philox((uint32_t[4]){(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)k.stream, (uint32_t)(k.stream >> 32)},
             (uint32_t[2]){(uint32_t)key, (uint32_t)(key >> 32)}, w);
  out[0] = w[0] | (uint64_t)w[1] << 32;
  out[1] = w[2] | (uint64_t)w[3] << 32;
}

uint64_t rng_u64(RngKey k, uint64_t index) {
  uint64_t w[2];
  rng_pair(k, index, w);
  return w[0];
}

double rng_uniform(RngKey k, uint64_t index) { return (double)(rng_u64(k, index) >> 11) * 0x1p-53; }

uint64_t rng_below(RngKey k, uint64_t index, uint64_t n) {
  CHECK(n > 0, "random number below 0 wanted");
  return (uint64_t)(((unsigned __int128)rng_u64(k, index) * n) >> 64);
}

enum { FEISTEL_ROUNDS = 8 };

uint64_t rng_permute(RngKey k, uint64_t n, uint64_t i) {
  CHECK(i < n, "element %llu of a permutation of %llu", (unsigned long long)i, (unsigned long long)n);
  int half = 1; /* the network permutes 2^(2 half) >= n numbers; walking on until the image is below n keeps the bijection */
  while (half < 32 && (n - 1) >> (2 * half)) half++;
  uint64_t mask = ((uint64_t)1 << half) - 1, key[FEISTEL_ROUNDS];
  for (int r = 0; r < FEISTEL_ROUNDS; r += 2) rng_pair(k, (uint64_t)r, key + r);
  do {
    uint64_t left = i >> half, right = i & mask;
    for (int r = 0; r < FEISTEL_ROUNDS; r++) {
      uint64_t next = left ^ (hash_mix(key[r] ^ right) & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
