#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *p, size_t n) { return XXH64(p, n, 0); }

uint64_t hash_name(const char *s) { return XXH64(s, strlen(s), 0); }

#define DEFINE_HASH(T, NAME)                                                                                                               \
  static uint64_t NAME(uint64_t tensor, uint64_t index, const void *p, int64_t n) {                                                        \
    const T *x = p;                                                                                                                        \
    uint64_t sum = 0;                                                                                                                      \
    for (int64_t i = 0; i < n; i++) sum += hash_element(tensor, index + (uint64_t)i, x[i]);                                                \
    return sum;                                                                                                                            \
  }
DEFINE_HASH(uint8_t, hash_8)
DEFINE_HASH(uint16_t, hash_16)
DEFINE_HASH(uint32_t, hash_32)
DEFINE_HASH(uint64_t, hash_64)

uint64_t hash_run(uint64_t tensor, uint64_t index, const void *elements, size_t size, int64_t n) {
  switch (size) {
  case 1:
    return hash_8(tensor, index, elements, n);
  case 2:
    return hash_16(tensor, index, elements, n);
  case 4:
    return hash_32(tensor, index, elements, n);
  default:
    return hash_64(tensor, index, elements, n);
  }
}
