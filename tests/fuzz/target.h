/* What the fuzz targets share: a target is a file with LLVMFuzzerTestOneInput. A failed CHECK must look like a crash. */
#ifndef ETALON_FUZZ_TARGET_H
#define ETALON_FUZZ_TARGET_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_stop(void *ctx, int code) {
  (void)ctx, (void)code;
  abort();
}

/* An arena for one input; whatever the input asks for above this is our bug. */
static inline Arena fuzz_arena(void) {
  Arena a;
  die_set_hook(fuzz_stop, NULL);
  arena_open(&a, "fuzz", (size_t)256 << 20);
  return a;
}

/* A place of this process in memory, made once: PREFIX + name. */
static inline const char *fuzz_path(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "/dev/shm/etalon-fuzz-%ld-%s", (long)getpid(), name);
  return path;
}

static inline void fuzz_write(const char *path, const void *p, size_t n) {
  FILE *f = fopen(path, "wb");
  CHECK(f && fwrite(p, 1, n, f) == n && fclose(f) == 0, "%s", path);
}
#endif
