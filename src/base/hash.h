/* Hashes. hash_name/hash_bytes: XXH64. hash_element: the term of a layout-free sum, see README "Numerics": a tensor's
 * hash is the sum modulo 2^64 of its elements' terms, so any cut and any order give the same.                          */
#ifndef ETALON_HASH_H
#define ETALON_HASH_H
#include <stddef.h>
#include <stdint.h>
uint64_t hash_bytes(const void *p, size_t n);
uint64_t hash_name(const char *s);
static inline uint64_t hash_mix(uint64_t x) {        /* finaliser of splitmix64 */
  x ^= x >> 30; x *= 0xbf58476d1ce4e5b9u; x ^= x >> 27; x *= 0x94d049bb133111ebu; return x ^ (x >> 31);
}
static inline uint64_t hash_element(uint64_t tensor, uint64_t index, uint64_t bits) {
  return hash_mix(hash_mix(tensor + 0x9e3779b97f4a7c15u * (index + 1)) ^ bits);
}
/* The sum of the terms of n elements of `size` bytes (1, 2, 4 or 8), one behind the other in memory and in the tensor: `index` is the first one's. */
uint64_t hash_run(uint64_t tensor, uint64_t index, const void *elements, size_t size, int64_t n);
#endif
