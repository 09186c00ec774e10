/* The CPU backend, private to src/device. Two rows of the device table share it; they differ in what happens just before a queued copy. */
#ifndef ETALON_DEVICE_CPU_H
#define ETALON_DEVICE_CPU_H
#include "device/device.h"
#include <stddef.h>
#include <stdint.h>

/* Called by a copy thread before its copy number `index` to dst[0..bytes). NULL: the copy starts at once. */
typedef void (*CpuCopyDelay)(uint64_t seed, StreamId s, uint64_t index, void *dst, size_t bytes);
/* Marks dst with 0xFF bytes (NaN as a float, -1 as an integer), then sleeps 0 to 2 ms: what is read without a wait is wrong at once. */
void cpu_delay_lag(uint64_t seed, StreamId s, uint64_t index, void *dst, size_t bytes);

/* Fills ops, impl, f32, f64, bf16 and isa; starts the copy threads. */
void cpu_open(Device *d, CpuCopyDelay delay, uint64_t seed);
#endif
