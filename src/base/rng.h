/* Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11): a value is a pure function of (seed, purpose, stream, index), so it does
 * not depend on the layout, the order of calls or the number of threads.                                               */
#ifndef ETALON_RNG_H
#define ETALON_RNG_H
#include <stdint.h>
typedef enum { RNG_INIT, RNG_SHUFFLE, RNG_ROUTING, RNG_LAG, RNG_TEST, RNG_SAMPLE } RngPurpose;
typedef struct RngKey { uint64_t seed, stream; RngPurpose purpose; } RngKey;   /* stream: a hash of a tensor name, an epoch, ... */
/* The bijection itself: 4 counter words, 2 key words, 4 words out. The functions below are made of it. */
void     rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint64_t rng_key(RngKey k);                           /* the bijection's key: seed and purpose mixed */
uint64_t rng_u64(RngKey k, uint64_t index);
double   rng_uniform(RngKey k, uint64_t index);      /* [0, 1), 53 bits */
/* Numbers index .. index + n - 1 of mean 0 and variance 1 (Box-Muller in FP64): each the same in any call, with any C library and instruction set. */
void     rng_normals(RngKey k, uint64_t index, int64_t n, double *out);
uint64_t rng_below(RngKey k, uint64_t index, uint64_t n);   /* 0 .. n-1, unbiased to 2^-64 * n */
/* A random permutation of 0..n-1 as a function: where element i goes (Feistel network with cycle walking; no table). */
uint64_t rng_permute(RngKey k, uint64_t n, uint64_t i);
#endif
