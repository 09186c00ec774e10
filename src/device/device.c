#include "device/device.h"
#include "device/cpu.h"
#include "gemm.h"
#include <stdio.h>
#include <string.h>

/* A backend is one row here and one file beside this one. */
typedef struct DeviceKind {
  const char *name;
  void (*open)(Device *d, CpuCopyDelay delay, uint64_t seed);
  CpuCopyDelay delay;
} DeviceKind;

static const DeviceKind device_kinds[] = {
    {"cpu", cpu_open, NULL},
    {"cpu-lag", cpu_open, cpu_delay_lag},
};
enum { N_DEVICE_KIND = sizeof device_kinds / sizeof device_kinds[0] };

static const DeviceKind *find_kind(const char *name) {
  for (int i = 0; i < N_DEVICE_KIND; i++)
    if (strcmp(device_kinds[i].name, name) == 0) return &device_kinds[i];
  return NULL;
}

static bool unknown_kind(const char *name, Err *e) {
  char list[128];
  int at = 0;
  for (int i = 0; i < N_DEVICE_KIND; i++) at += snprintf(list + at, sizeof list - (size_t)at, "%s%s", i ? ", " : "", device_kinds[i].name);
  return err_set(e, ERR_CONFIG, "device.name: '%s' is not a device of this build; there are: %s", name, list);
}

bool device_open(Device *d, const char *name, const char *gemm, int threads, uint64_t lag_seed, Err *e) {
  const DeviceKind *kind = find_kind(name);
  if (!kind) return unknown_kind(name, e);
  if (threads < 1) return err_set(e, ERR_CONFIG, "device.threads: %d threads; at least 1 is needed", threads);

  *d = (Device){.threads = threads};
  char why[256] = "";
  d->gemm = gemm_open(gemm, threads, why, sizeof why);
  if (!d->gemm) return err_set(e, ERR_CONFIG, "device.gemm: '%s' is not available: %s", gemm, why);

  GemmInfo info = gemm_info(d->gemm);
  snprintf(d->name, sizeof d->name, "%s", name);
  snprintf(d->gemm_name, sizeof d->gemm_name, "%s", info.name);
  snprintf(d->gemm_version, sizeof d->gemm_version, "%s", info.version);
  kind->open(d, kind->delay, lag_seed);
  return true;
}

void device_close(Device *d) {
  if (!d->ops) return;
  d->ops->close(d);
  gemm_close(d->gemm);
  *d = (Device){0};
}

const Kernels *device_kernels(const Device *d, DType act) {
  const Kernels *k = act == DT_F32 ? d->f32 : act == DT_F64 ? d->f64 : act == DT_BF16 ? d->bf16 : NULL;
  CHECK(k, "device %s has no kernels for %s", d->name, dtype_name(act));
  return k;
}
