/* Configurations: the first byte chooses the number of ranks, the rest is YAML. What is accepted must be accepted again as config_text prints it. */
#include "config/config.h"
#include "fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  Arena a = fuzz_arena();
  Err e = {0}, again = {0};
  ConfigDoc *doc = ARENA_NEW(&a, ConfigDoc, 2);
  char *text = arena_alloc(&a, size, 1);
  memcpy(text, data + 1, size - 1);
  int world = 1 + data[0] % 12;
  bool ok = config_read_text(&doc[0], &a, "fuzz.yaml", text, NULL, 0, &e);
  const char *printed = ok ? config_text(&doc[0], &a) : NULL;
  if (ok && config_resolve(&doc[0], world, &e)) {
    CHECK(config_read_text(&doc[1], &a, "again.yaml", printed, NULL, 0, &again) && config_resolve(&doc[1], world, &again), "%s\n%s",
          again.text, printed);
    CHECK(strcmp(config_text(&doc[0], &a), config_text(&doc[1], &a)) == 0, "%s", printed);
  }
  CHECK(ok || (e.code == ERR_CONFIG && e.text[0]), "code %d", (int)e.code);
  arena_close(&a);
  return 0;
}
