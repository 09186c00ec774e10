/* Token files. First byte: format and vocabulary; the next two: bytes of the index; the rest: index, then tokens. Whatever opens can be read to its end. */
#include "data/data.h"
#include "fuzz/target.h"

static void read_all(const TokenFile *f) {
  int32_t token[64], label[64];
  Err e = {0};
  for (int64_t at = 0; at < f->n_token && e.code == ERR_NONE; at += 61) {
    int64_t n = f->n_token - at < 61 ? f->n_token - at : 61;
    if (token_file_read(f, at, n, token, &e))
      for (int64_t i = 0; i < n; i++) CHECK(token[i] >= 0 && token[i] < f->vocab, "token %d", (int)token[i]);
  }
  Sampler s;
  Err none = {0};
  if (sampler_open(&s, f, 13, 7, true, &none))
    for (int64_t i = 0; i < 5; i++) sampler_fetch(&s, i * 1000003, token, label, &none);
  for (int64_t i = 0; i < valid_count(f, 64) && i < 4; i++) valid_fetch(f, 64, i, token, label, &none);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t vocab[] = {0, 257, 61, 65536};
  enum { HEAD = 3 };
  if (size < HEAD) return 0;
  Arena a = fuzz_arena();
  Err e = {0};
  TokenFile f;
  TokenFormat format = (TokenFormat)(data[0] % TOK_AUTO);
  size_t index = format == TOK_MEGATRON ? data[1] + 256u * data[2] : 0;
  if (index > size - HEAD) index = size - HEAD;
  char *bin = arena_printf(&a, "%s", fuzz_path("t.bin")), *idx = arena_printf(&a, "%s", fuzz_path("t.idx"));
  fuzz_write(idx, data + HEAD, index);
  fuzz_write(bin, data + HEAD + index, size - HEAD - index);
  if (token_file_open(&f, &a, bin, format, vocab[data[0] / 16 % 4], &e)) {
    read_all(&f);
    token_file_close(&f);
  }
  CHECK(e.code == ERR_NONE || (e.code == ERR_DATA && e.text[0]), "code %d", (int)e.code);
  unlink(bin);
  unlink(idx);
  arena_close(&a);
  return 0;
}
