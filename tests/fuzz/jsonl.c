/* Metrics files. */
#include "train/jsonl.h"
#include "fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Arena a = fuzz_arena();
  Err e = {0};
  Jsonl j;
  JsonlPoint *point;
  char *path = arena_printf(&a, "%s", fuzz_path("m.jsonl"));
  fuzz_write(path, data, size);
  if (jsonl_read(&j, &a, path, &e))
    for (int64_t i = 0; i < j.n && i < 20; i++) jsonl_series(&j, &a, j.field[i].path, &point);
  else
    CHECK(e.code == ERR_DATA && e.text[0], "code %d", (int)e.code);
  unlink(path);
  arena_close(&a);
  return 0;
}
