/* Golden files: opened, then every weight and some of the rest read. */
#include "ckpt/golden.h"
#include "fuzz/target.h"

static void read_all(Golden *g, Arena *a) {
  static const char *const others[] = {"steps/1/tokens", "step1/loss/ce", "step1/logits", "train/ce", "step1/layers/0/hidden"};
  int n, n_dim;
  int64_t dims[GOLDEN_MAX_DIM];
  const GoldenTensor *t = golden_weights(g, &n);
  double *out = ARENA_NEW(a, double, 1 << 16);
  for (int i = 0; i < n; i++) {
    Err e = {0};
    int64_t size = 1;
    for (int d = 0; d < t[i].n_dim; d++) size *= t[i].dims[d];
    char path[768];
    snprintf(path, sizeof path, "weights/%s", t[i].name);
    if (size > 0 && size <= 1 << 16) golden_read_f64(g, path, out, size, &e);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    Err e = {0};
    golden_has(g, others[i]);
    golden_dims(g, others[i], &n_dim, dims, &e);
    golden_read_f64(g, others[i], out, 4, &e);
    golden_read_i64(g, others[i], (int64_t *)out, 26, &e);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Arena a = fuzz_arena();
  Err e = {0};
  Golden *g;
  char *path = arena_printf(&a, "%s", fuzz_path("g.h5"));
  fuzz_write(path, data, size);
  if (golden_open(&g, &a, path, &e)) {
    read_all(g, &a);
    golden_close(g);
  } else {
    CHECK((e.code == ERR_CKPT || e.code == ERR_CONFIG) && e.text[0], "code %d", (int)e.code);
  }
  unlink(path);
  arena_close(&a);
  return 0;
}
