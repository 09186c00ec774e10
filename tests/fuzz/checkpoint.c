/* Checkpoints: what `etalon ckpt show|verify` does, and the load of a run of one rank without its messages. The trial in a child process comes first, as
 * everywhere; HDF5 itself may fail in it, our code nowhere. */
#include "ckpt/ckpt.h"
#include "fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Arena a = fuzz_arena();
  Err e = {0};
  char *path = arena_printf(&a, "%s", fuzz_path("step_00000001.h5"));
  FILE *out = fopen("/dev/null", "w");
  fuzz_write(path, data, size);
  bool shown = ckpt_show(&a, path, out, &e);
  CHECK(shown == (e.code == ERR_NONE) && (shown || (e.code == ERR_CKPT && e.text[0])), "code %d", (int)e.code);
  Err v = {0};
  bool whole = ckpt_verify(&a, path, out, &v);
  CHECK(whole == (v.code == ERR_NONE) && (whole || (v.code == ERR_CKPT && v.text[0])), "code %d", (int)v.code);
  CHECK(!whole || shown, "verified but not shown: %s", e.text);
  fclose(out);
  unlink(path);
  arena_close(&a);
  return 0;
}
