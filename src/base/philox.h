/* Private to random numbers: the bijection of Philox 4x32-10, for loops that a compiler turns into vectors. */
#ifndef ETALON_PHILOX_H
#define ETALON_PHILOX_H
#include <stdint.h>

/* c: 4 counter words in, 4 words out. */
static inline void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
  uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b;
    c3 = (uint32_t)a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}
#endif
