/* CRC-32C (Castagnoli; RFC 3720, appendix B.4), as TensorBoard's files want it. Not for integrity of our own files: those use hash.h. */
#ifndef ETALON_CRC_H
#define ETALON_CRC_H
#include <stddef.h>
#include <stdint.h>
uint32_t crc32c(const void *p, size_t n);
#endif
