/* A device: one slab of memory, streams, events, kernel tables. "cpu" runs kernels on the calling thread (and `threads` workers) and copies
 * on a thread per copy stream; "cpu-lag" is the same, but a queued copy first fills its target with 0xFF bytes and comes 0 to 2 ms late, so
 * that a missing wait shows. Opened once per rank by train. All calls come from one thread. Nothing is allocated after device_open but the
 * two slabs.                                                                                                                            */
#ifndef ETALON_DEVICE_H
#define ETALON_DEVICE_H
#include "base/dtype.h"
#include "base/err.h"
#include "kernel.h"

typedef enum { SPACE_DEVICE, SPACE_HOST, N_SPACE } Space;
typedef enum { STREAM_COMPUTE, STREAM_IN, STREAM_OUT, N_STREAM } StreamId;
enum { DEVICE_MAX_EVENT = 256 };

typedef struct Device Device;
typedef struct DeviceOps {
  void *(*alloc)(Device *d, Space s, size_t bytes);         /* once per space per run; zeroed, 4096-byte aligned; NULL when refused */
  void  (*release)(Device *d, Space s, void *p, size_t bytes);
  /* in order within its stream; asynchronous except on STREAM_COMPUTE */
  void  (*copy)(Device *d, StreamId s, void *dst, const void *src, size_t bytes);
  void  (*record)(Device *d, StreamId s, int event);        /* event completes when all earlier work of s has */
  /* later work of s starts after the latest record of event (none: a bug, dies); COMPUTE on a CPU blocks */
  void  (*wait)(Device *d, StreamId s, int event);
  void  (*sync)(Device *d);                                 /* all streams idle */
  void  (*close)(Device *d);
} DeviceOps;
struct Device {
  const DeviceOps *ops;
  const Kernels *f32, *f64, *bf16; /* NULL where the device lacks the type */
  struct Gemm *gemm;
  int threads;
  void *impl;
  char name[32], gemm_name[32], gemm_version[32], isa[128] /* of this processor, and of the build */;
};
/* name: "cpu" | "cpu-lag"; gemm: "auto" | "onednn" | "plain". ERR_CONFIG: unknown name (lists those there are), provider not built in. */
bool device_open(Device *d, const char *name, const char *gemm, int threads, uint64_t lag_seed, Err *e);
void device_close(Device *d);
const Kernels *device_kernels(const Device *d, DType act);   /* dies when the device lacks the type: config checks first */
#endif
