/* The JSON that a golden file carries as its configuration. */
#include "ckpt/golden.h"
#include "fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Arena a = fuzz_arena();
  Err e = {0};
  GoldenConfig c;
  char *text = arena_alloc(&a, size + 1, 1);
  memcpy(text, data, size);
  int n = 0;
  if (golden_config_parse(text, &c, &a, &e))
    CHECK(golden_config_sets(&c, &a, &n) && n > 0, "no settings");
  else
    CHECK(e.text[0], "no message");
  arena_close(&a);
  return 0;
}
