/* Sizes in whole units: of lines of memory, of words of a file. */
#ifndef ETALON_ALIGN_H
#define ETALON_ALIGN_H
#include <stddef.h>

/* The least multiple of `unit` that is not below n. Both in bytes, unit > 0. */
static inline size_t align_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
#endif
