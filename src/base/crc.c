#include "base/crc.h"

/* Four bits at a time: the table is short enough to read, and records are small. */
uint32_t crc32c(const void *p, size_t n) {
  static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                     0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  const uint8_t *byte = p;
  uint32_t c = ~0u;
  for (size_t i = 0; i < n; i++) {
    c ^= byte[i];
    c = c >> 4 ^ table[c & 15];
    c = c >> 4 ^ table[c & 15];
  }
  return ~c;
}
