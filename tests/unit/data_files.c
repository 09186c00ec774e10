/* Token files: the golden Megatron data set, text, raw tokens, files beyond 2^31 tokens, and every kind of damage. */
#include "data/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a folder of files for one test ---- */

typedef struct Box {
  Arena arena;
  char dir[64];
} Box;

static void box_open(Box *b) {
  arena_open(&b->arena, "test", (size_t)1 << 24);
  snprintf(b->dir, sizeof b->dir, "/tmp/etalon-data-XXXXXX");
  assert_non_null(mkdtemp(b->dir));
}

static void box_close(Box *b) {
  assert_int_equal(system(arena_printf(&b->arena, "rm -r '%s'", b->dir)), 0);
  arena_close(&b->arena);
}

static const char *box_path(Box *b, const char *name) { return arena_printf(&b->arena, "%s/%s", b->dir, name); }

static const char *box_write(Box *b, const char *name, const void *p, size_t bytes) {
  const char *path = box_path(b, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(p, 1, bytes, f), bytes);
  assert_int_equal(fclose(f), 0);
  return path;
}

/* A file that is `bytes` long and takes no room but for what is written at its end. */
static const char *box_sparse(Box *b, const char *name, int64_t bytes, const void *tail, size_t tail_bytes) {
  const char *path = box_path(b, name);
  int fd = open(path, O_CREAT | O_WRONLY, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, bytes), 0);
  assert_int_equal(pwrite(fd, tail, tail_bytes, bytes - (int64_t)tail_bytes), (int64_t)tail_bytes);
  close(fd);
  return path;
}

static TokenFile opened(Box *b, const char *path, TokenFormat format, int64_t vocab) {
  TokenFile f;
  Err e = {0};
  if (!token_file_open(&f, &b->arena, path, format, vocab, &e)) fail_msg("%s", e.text);
  return f;
}

static void read_ok(const TokenFile *f, int64_t first, int64_t n, int32_t *out) {
  Err e = {0};
  if (!token_file_read(f, first, n, out, &e)) fail_msg("%s", e.text);
}

/* Refused as a data error whose text names the path and says `says`. */
static void refused(Box *b, const char *path, TokenFormat format, int64_t vocab, const char *says) {
  TokenFile f;
  Err e = {0};
  if (token_file_open(&f, &b->arena, path, format, vocab, &e)) fail_msg("%s was opened; expected: %s", path, says);
  assert_int_equal(e.code, ERR_DATA);
  if (!strstr(e.text, says)) fail_msg("'%s' is not in: %s", says, e.text);
  if (!strstr(e.text, b->dir)) fail_msg("no path in: %s", e.text);
}

/* ---- Megatron ---- */

/* Documents [1,2,3,0], [4,5,0], [6..13,0] in u16, as Megatron-LM writes them. */
static const uint16_t golden_token[16] = {1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 10, 11, 12, 13, 0};
static const unsigned char golden_idx[102] = {
    0x4d, 0x4d, 0x49, 0x44, 0x49, 0x44, 0x58, 0, 0,                                               /* magic */
    1,    0,    0,    0,    0,    0,    0,    0,                                                  /* version, byte 9 */
    8,                                                                                            /* type, byte 17 */
    3,    0,    0,    0,    0,    0,    0,    0,                                                  /* sequences, byte 18 */
    4,    0,    0,    0,    0,    0,    0,    0,                                                  /* marks, byte 26 */
    4,    0,    0,    0,    3,    0,    0,    0, 9,  0, 0, 0,                                     /* lengths, byte 34 */
    0,    0,    0,    0,    0,    0,    0,    0,                                                  /* offsets, byte 46 */
    8,    0,    0,    0,    0,    0,    0,    0, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* marks, byte 70 */
    1,    0,    0,    0,    0,    0,    0,    0, 2,  0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};

static void golden_is_read(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  box_write(&b, "g.bin", golden_token, sizeof golden_token);
  box_write(&b, "g.idx", golden_idx, sizeof golden_idx);
  const char *const names[] = {"g.bin", "g.idx", "g"};
  for (int i = 0; i < 6; i++) {
    TokenFile f = opened(&b, box_path(&b, names[i / 2]), i % 2 ? TOK_AUTO : TOK_MEGATRON, 14);
    assert_int_equal(f.format, TOK_MEGATRON);
    assert_int_equal(f.n_token, 16);
    assert_int_equal(f.n_document, 3);
    assert_int_equal(f.width, 2);
    assert_int_equal(f.max_token, 13);
    int32_t token[16];
    read_ok(&f, 0, 16, token);
    for (int t = 0; t < 16; t++) assert_int_equal(token[t], golden_token[t]);
    read_ok(&f, 15, 1, token);
    assert_int_equal(token[0], 0);
    token_file_close(&f);
  }
  box_close(&b);
}

typedef struct Damage {
  int at, bytes; /* what of the golden index is replaced by `value`; bytes 0: nothing */
  int64_t value;
  int size;     /* of the index */
  int bin_size; /* of the tokens */
  int64_t vocab;
  const char *says;
} Damage;

static void damage_is_refused(void **state) {
  (void)state;
  static const Damage damages[] = {
      {0, 1, 'X', 102, 32, 0, "does not begin with MMIDIDX"},
      {8, 1, 1, 102, 32, 0, "does not begin with MMIDIDX"},
      {9, 8, 2, 102, 32, 0, "byte 9: version 2"},
      {17, 1, 6, 102, 32, 0, "byte 17: token type 6 (floats)"},
      {17, 1, 7, 102, 32, 0, "byte 17: token type 7 (floats)"},
      {17, 1, 9, 102, 32, 0, "byte 17: token type 9;"},
      {17, 1, 0, 102, 32, 0, "byte 17: token type 0;"},
      {17, 1, 4, 102, 32, 0, "sequence 1 begins at byte 8 of the tokens; the one before ends at 16"},
      {18, 8, 4, 102, 32, 0, "102 bytes; 4 sequences and 4 document marks take 114"},
      {18, 8, 6, 102, 32, 0, "byte 18: 6 sequences do not fit a file of 102 bytes"},
      {18, 8, -1, 102, 32, 0, "18446744073709551615 sequences do not fit"},
      {18, 8, INT64_MAX, 102, 32, 0, "sequences do not fit"},
      {18, 8, ((int64_t)1 << 62) + 3, 102, 32, 0, "sequences do not fit"}, /* times 4 wraps to 12 */
      {26, 8, 3, 102, 32, 0, "102 bytes; 3 sequences and 3 document marks take 94"},
      {26, 8, 0, 102, 32, 0, "byte 26: 0 document marks"},
      {26, 8, ((int64_t)1 << 61) + 4, 102, 32, 0, "document marks; at least 1"}, /* times 8 wraps to 32 */
      {0, 0, 0, 101, 32, 0, "101 bytes; 3 sequences and 4 document marks take 102"},
      {0, 0, 0, 103, 32, 0, "103 bytes; 3 sequences and 4 document marks take 102"},
      {0, 0, 0, 105, 32, 0, "multimodal"},
      {0, 0, 0, 33, 32, 0, "33 bytes are less than the header's 34"},
      {0, 0, 0, 0, 32, 0, "g.idx: is empty"},
      {34, 4, 5, 102, 32, 0, "sequence 1 begins at byte 8 of the tokens; the one before ends at 10"},
      {34, 4, -4, 102, 32, 0, "sequence 0 has length -4"},
      {42, 4, 10, 102, 32, 0, "sequence 2 ends at byte 34 of"},
      {42, 4, 8, 102, 32, 0, "32 bytes, but the sequences of"},
      {46, 8, 2, 102, 32, 0, "byte 46: sequence 0 begins at byte 2"},
      {54, 8, 6, 102, 32, 0, "byte 54: sequence 1 begins at byte 6"},
      {54, 8, 10, 102, 32, 0, "byte 54: sequence 1 begins at byte 10"},
      {62, 8, -2, 102, 32, 0, "byte 62: sequence 2 begins at byte -2"},
      {62, 8, (1LL << 32) + 14, 102, 32, 0, "byte 62: sequence 2 begins at byte 4294967310"},
      {70, 8, 1, 102, 32, 0, "byte 70: the first document mark is 1, not 0"},
      {78, 8, 3, 102, 32, 0, "byte 86: document mark 2 is 2, below the one before (3)"},
      {94, 8, 2, 102, 32, 0, "byte 94: the last document mark is 2; there are 3 sequences"},
      {94, 8, 4, 102, 32, 0, "byte 94: the last document mark is 4; there are 3 sequences"},
      {0, 0, 0, 102, 31, 0, "sequence 2 ends at byte 32 of"},
      {0, 0, 0, 102, 30, 0, "sequence 2 ends at byte 32 of"},
      {0, 0, 0, 102, 33, 0, "33 bytes, but the sequences of"},
      {0, 0, 0, 102, 34, 0, "34 bytes, but the sequences of"},
      {0, 0, 0, 102, 0, 0, "g.bin: is empty"},
      {0, 0, 0, 102, 32, 13, "token 14 (byte 28) is 13; tokens must be 0 to 12"},
  };
  Box b;
  box_open(&b);
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const Damage *d = &damages[i];
    unsigned char idx[128] = {0};
    uint16_t bin[32] = {0};
    memcpy(idx, golden_idx, sizeof golden_idx);
    memcpy(bin, golden_token, sizeof golden_token);
    memcpy(idx + d->at, &d->value, (size_t)d->bytes);
    box_write(&b, "g.bin", bin, (size_t)d->bin_size);
    box_write(&b, "g.idx", idx, (size_t)d->size);
    refused(&b, box_path(&b, "g.bin"), TOK_MEGATRON, d->vocab, d->says);
  }
  box_close(&b);
}

static void missing_half_is_refused(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  const char *bin = box_write(&b, "g.bin", golden_token, sizeof golden_token);
  refused(&b, bin, TOK_MEGATRON, 0, "g.idx: No such file");
  refused(&b, bin, TOK_AUTO, 0, "g.idx is not there");
  unlink(bin);
  const char *idx = box_write(&b, "g.idx", golden_idx, sizeof golden_idx);
  refused(&b, idx, TOK_MEGATRON, 0, "g.bin: No such file");
  refused(&b, idx, TOK_AUTO, 0, "g.bin is not there");
  box_close(&b);
}

/* A sign, a width: each integer type through the golden index of one sequence. */
static void integer_types_are_read(void **state) {
  (void)state;
  static const struct {
    int code, width;
    int64_t value, vocab;
    const char *says; /* NULL: read */
  } cases[] = {
      {1, 1, 255, 256, NULL},         {2, 1, 127, 128, NULL},
      {2, 1, -1, 0, "is -1; tokens"}, {3, 2, 32767, 32768, NULL},
      {3, 2, -2, 0, "is -2; tokens"}, {8, 2, 65535, 65536, NULL},
      {4, 4, 2000000000, 0, NULL},    {4, 4, -3, 0, "is -3; tokens"},
      {5, 8, 2147483647, 0, NULL},    {5, 8, (int64_t)1 << 32, 0, "is 4294967296; tokens must be 0 to 2147483647"},
      {5, 8, -4, 5, "is -4; tokens"}, {4, 4, 50257, 50257, "token 0 (byte 0) is 50257; tokens must be 0 to 50256"},
  };
  Box b;
  box_open(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    unsigned char idx[62] = {0};
    memcpy(idx, golden_idx, 18);
    idx[17] = (unsigned char)cases[i].code;
    idx[18] = 1, idx[26] = 2, idx[34] = 1, idx[54] = 1; /* 1 sequence, 2 marks, length 1, offset 0, marks 0 1 */
    const char *path = box_write(&b, "t.bin", &cases[i].value, (size_t)cases[i].width);
    box_write(&b, "t.idx", idx, sizeof idx);
    if (cases[i].says) {
      refused(&b, path, TOK_MEGATRON, cases[i].vocab, cases[i].says);
      continue;
    }
    TokenFile f = opened(&b, path, TOK_MEGATRON, cases[i].vocab);
    int32_t token;
    read_ok(&f, 0, 1, &token);
    assert_int_equal(token, cases[i].value);
    assert_int_equal(f.max_token, cases[i].value);
    token_file_close(&f);
  }
  box_close(&b);
}

/* ---- raw tokens and things that are no files ---- */

static void raw_tokens_are_read(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  TokenFile f = opened(&b, box_write(&b, "a.u16", (uint16_t[]){7, 65535, 9}, 6), TOK_AUTO, 65536);
  int32_t token[3];
  assert_int_equal(f.n_token, 3);
  assert_int_equal(f.n_document, -1);
  read_ok(&f, 1, 2, token);
  assert_int_equal(token[0], 65535);
  assert_int_equal(token[1], 9);
  token_file_close(&f);
  f = opened(&b, box_write(&b, "a.u32", (uint32_t[]){7, 128256}, 8), TOK_AUTO, 128257);
  read_ok(&f, 0, 2, token);
  assert_int_equal(token[1], 128256);
  token_file_close(&f);
  box_close(&b);
}

static void odd_files_are_refused(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  const char *five = box_write(&b, "five.u16", "abcde", 5);
  refused(&b, five, TOK_AUTO, 0, "5 bytes are not a whole number of u16 tokens");
  refused(&b, five, TOK_U32, 0, "5 bytes are not a whole number of u32 tokens");
  refused(&b, box_write(&b, "big.u32", (uint32_t[]){1, 3000000000u}, 8), TOK_AUTO, 0, "token 1 (byte 4) is 3000000000;");
  refused(&b, box_write(&b, "v.u16", (uint16_t[]){1, 2, 257}, 6), TOK_AUTO, 257, "token 2 (byte 4) is 257; tokens must be 0 to 256");
  refused(&b, box_write(&b, "empty.txt", "", 0), TOK_AUTO, 0, "is empty");
  refused(&b, box_write(&b, "blank.txt", "\n \t\r\n\n", 6), TOK_AUTO, 0, "blank lines only");
  refused(&b, box_write(&b, "t.txt", "text", 4), TOK_AUTO, 256, "at least 257 (256 bytes and the end of a document), found 256");
  refused(&b, box_write(&b, "t.json", "text", 4), TOK_AUTO, 0, "cannot tell the format");
  refused(&b, box_path(&b, "none.txt"), TOK_AUTO, 0, "No such file");
  refused(&b, box_path(&b, "none"), TOK_AUTO, 0, "none: No such file or directory, and there is no data set of that prefix");
  const char *dir = box_path(&b, "dir.txt");
  assert_int_equal(mkdir(dir, 0700), 0);
  refused(&b, dir, TOK_AUTO, 0, "is a directory");
  const char *fifo = box_path(&b, "fifo.txt");
  assert_int_equal(mkfifo(fifo, 0600), 0);
  refused(&b, fifo, TOK_AUTO, 0, "is not a regular file");
  box_close(&b);
}

/* ---- text ---- */

/* `shown`: the tokens wanted, '|' for the end of a document. */
static void text_gives(const char *text, int64_t n_document, const char *shown) {
  Box b;
  box_open(&b);
  TokenFile f = opened(&b, box_write(&b, "t.txt", text, strlen(text)), TOK_AUTO, BYTE_VOCAB);
  int64_t n = (int64_t)strlen(shown);
  assert_int_equal(f.n_document, n_document);
  assert_int_equal(f.n_token, n);
  int32_t token[64];
  for (int64_t first = 0; first <= n; first++)
    for (int64_t end = first; end <= n; end++) {
      token[end - first] = -7;
      read_ok(&f, first, end - first, token);
      for (int64_t t = first; t < end; t++) assert_int_equal(token[t - first], shown[t] == '|' ? BYTE_EOD : shown[t]);
      assert_int_equal(token[end - first], -7);
    }
  token_file_close(&f);
  box_close(&b);
}

static void text_is_cut_into_documents(void **state) {
  (void)state;
  text_gives("a", 1, "a|");
  text_gives("ab\n", 1, "ab\n|");
  text_gives("ab\ncd\n", 1, "ab\ncd\n|");
  text_gives("ab\n\ncd\n", 2, "ab\n|cd\n|");
  text_gives("ab\n\ncd", 2, "ab\n|cd|");
  text_gives("\n\nab\n\n\n \t\ncd\n\n", 2, "ab\n|cd\n|");
  text_gives("ab\r\n\r\ncd\r\n", 2, "ab\r\n|cd\r\n|");
  text_gives("  ab \n\n x", 2, "  ab \n| x|");
}

static void bytes_are_unsigned(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  TokenFile f = opened(&b, box_write(&b, "t.txt", "\xc3\xa9\0\xff", 4), TOK_AUTO, BYTE_VOCAB);
  int32_t token[5];
  read_ok(&f, 0, 5, token);
  assert_int_equal(token[0], 0xc3);
  assert_int_equal(token[1], 0xa9);
  assert_int_equal(token[2], 0);
  assert_int_equal(token[3], 0xff);
  assert_int_equal(token[4], BYTE_EOD);
  token_file_close(&f);
  box_close(&b);
}

static void long_line_is_read(void **state) {
  (void)state;
  enum { LINE = 300000 };
  Box b;
  box_open(&b);
  char *text = ARENA_NEW(&b.arena, char, LINE + 4);
  memset(text, 'x', LINE);
  memcpy(text + LINE, "\n\nz", 3);
  TokenFile f = opened(&b, box_write(&b, "t.txt", text, LINE + 3), TOK_AUTO, BYTE_VOCAB);
  assert_int_equal(f.n_token, LINE + 1 + 1 + 1 + 1);
  int32_t token[4];
  read_ok(&f, LINE, 4, token);
  assert_int_equal(token[0], '\n');
  assert_int_equal(token[1], BYTE_EOD);
  assert_int_equal(token[2], 'z');
  assert_int_equal(token[3], BYTE_EOD);
  token_file_close(&f);
  box_close(&b);
}

/* Counted by another program from the same rule. */
static void corpus_has_its_size(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  TokenFile f = opened(&b, SOURCE_DIR "/data/sotu-1790-1859.txt", TOK_AUTO, BYTE_VOCAB);
  assert_int_equal(f.n_document, 70);
  assert_int_equal(f.n_token, 2981163);
  token_file_close(&f);
  f = opened(&b, SOURCE_DIR "/data/sotu-1860-1869.txt", TOK_AUTO, BYTE_VOCAB);
  assert_int_equal(f.n_document, 10);
  assert_int_equal(f.n_token, 524660);
  token_file_close(&f);
  box_close(&b);
}

/* ---- beyond 2^31 ---- */

static void offsets_are_64_bit(void **state) {
  (void)state;
  const int64_t n = (int64_t)2700000000; /* above 2^31 tokens, above 2^32 bytes */
  Box b;
  box_open(&b);
  TokenFile f = opened(&b, box_sparse(&b, "big.u16", 2 * n, (uint16_t[]){11, 500, 13}, 6), TOK_AUTO, 257);
  assert_int_equal(f.n_token, n);
  assert_int_equal(f.max_token, -1); /* too large to look at every token now ... */
  int32_t token[4] = {1, 1, 1, 1};
  read_ok(&f, n - 5, 3, token);
  assert_int_equal(token[0], 0);
  assert_int_equal(token[2], 11);
  read_ok(&f, n - 1, 1, token);
  assert_int_equal(token[0], 13);
  Err e = {0};
  assert_false(token_file_read(&f, n - 3, 3, token, &e)); /* ... so the bad one is found when it is read */
  assert_int_equal(e.code, ERR_DATA);
  if (!strstr(e.text, "token 2699999998 (byte 5399999996) is 500; tokens must be 0 to 256")) fail_msg("%s", e.text);
  token_file_close(&f);

  Sampler s;
  e = (Err){0};
  f = opened(&b, box_sparse(&b, "ok.u16", 2 * n, (uint16_t[]){11, 12, 13}, 6), TOK_AUTO, 257);
  assert_true(sampler_open(&s, &f, 2, 1, false, &e));
  assert_int_equal(s.n_sample, n / 2 - 1); /* n - 1 is odd: the last token is the tail */
  int32_t label[4];
  assert_true(sampler_fetch(&s, s.n_sample - 1, token, label, &e));
  assert_int_equal(token[1], 11);
  assert_int_equal(label[0], 11);
  assert_int_equal(label[1], 12);
  token_file_close(&f);
  box_close(&b);
}

static void megatron_beyond_4_gib(void **state) {
  (void)state;
  enum { S = 3, LENGTH = 1200000000 };
  Box b;
  box_open(&b);
  unsigned char idx[34 + 12 * S + 16] = {0};
  memcpy(idx, golden_idx, 18);
  idx[18] = S, idx[26] = 2;
  for (int i = 0; i < S; i++) {
    memcpy(idx + 34 + 4 * i, &(int32_t){LENGTH}, 4);
    memcpy(idx + 34 + 4 * S + 8 * i, &(int64_t){(int64_t)i * LENGTH * 2}, 8);
  }
  idx[34 + 12 * S + 8] = S;
  box_write(&b, "m.idx", idx, sizeof idx);
  const char *path = box_sparse(&b, "m.bin", (int64_t)S * LENGTH * 2, (uint16_t[]){77}, 2);
  TokenFile f = opened(&b, path, TOK_AUTO, 100);
  assert_int_equal(f.n_token, (int64_t)S * LENGTH);
  int32_t token;
  read_ok(&f, f.n_token - 1, 1, &token);
  assert_int_equal(token, 77);
  token_file_close(&f);
  box_close(&b);
}

/* ---- etalon data ---- */

static size_t file_bytes(const char *path, unsigned char *out, size_t room) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  size_t n = fread(out, 1, room, f);
  fclose(f);
  return n;
}

static void pack_writes_megatron(void **state) {
  (void)state;
  static const unsigned char want_bin[] = {'a', 0, 'b', 0, '\n', 0, 0, 1, 0xe9, 0, '\n', 0, 0, 1};
  static const unsigned char want_idx[34 + 12 * 2 + 8 * 3] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0,
                                                              0,   0,   0,   0,   0,   3,   0,   0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0,
                                                              0,   0,   0,   0,   0,   0,   0,   0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                              0,   0,   0,   1,   0,   0,   0,   0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};
  Box b;
  box_open(&b);
  Err e = {0};
  const char *text = box_write(&b, "in.txt", "ab\n\n\n\xe9\n", 7), *out = box_path(&b, "out");
  char said[512] = "";
  FILE *log = fmemopen(said, sizeof said, "w");
  if (!data_pack(&b.arena, text, out, log, &e)) fail_msg("%s", e.text);
  fclose(log);
  assert_non_null(strstr(said, "2 documents, 7 tokens"));
  unsigned char got[256];
  assert_int_equal(file_bytes(box_path(&b, "out.bin"), got, sizeof got), sizeof want_bin);
  assert_memory_equal(got, want_bin, sizeof want_bin);
  assert_int_equal(file_bytes(box_path(&b, "out.idx"), got, sizeof got), sizeof want_idx);
  assert_memory_equal(got, want_idx, sizeof want_idx);
  assert_int_equal(access(box_path(&b, "out.bin.part"), F_OK), -1);
  assert_int_equal(access(box_path(&b, "out.idx.part"), F_OK), -1);

  FILE *info = fmemopen(said, sizeof said, "w");
  assert_true(data_info(&b.arena, out, TOK_AUTO, info, &e));
  fclose(info);
  assert_non_null(strstr(said, "megatron, 2 bytes a token"));
  assert_non_null(strstr(said, "documents  2\n"));
  assert_non_null(strstr(said, "largest    256, so model.vocab_size of at least 257"));
  box_close(&b);
}

static void packed_corpus_is_the_text(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  Err e = {0};
  FILE *log = fopen("/dev/null", "w");
  const char *text = SOURCE_DIR "/data/sotu-1860-1869.txt";
  if (!data_pack(&b.arena, text, box_path(&b, "c"), log, &e)) fail_msg("%s", e.text);
  fclose(log);
  TokenFile f = opened(&b, text, TOK_TEXT, BYTE_VOCAB), g = opened(&b, box_path(&b, "c"), TOK_AUTO, BYTE_VOCAB);
  assert_int_equal(f.n_token, g.n_token);
  assert_int_equal(f.n_document, g.n_document);
  int32_t *x = ARENA_NEW(&b.arena, int32_t, f.n_token), *y = ARENA_NEW(&b.arena, int32_t, f.n_token);
  read_ok(&f, 0, f.n_token, x);
  read_ok(&g, 0, f.n_token, y);
  assert_memory_equal(x, y, (size_t)f.n_token * sizeof *x);
  token_file_close(&f);
  token_file_close(&g);
  box_close(&b);
}

static void pack_fails_without_a_trace(void **state) {
  (void)state;
  Box b;
  box_open(&b);
  Err e = {0};
  const char *text = box_write(&b, "in.txt", "ab\n", 3);
  assert_false(data_pack(&b.arena, text, box_path(&b, "no/such/out"), stdout, &e));
  assert_int_equal(e.code, ERR_DATA);
  assert_non_null(strstr(e.text, "no/such/out.bin.part: cannot be written: No such file"));
  e = (Err){0};
  assert_false(data_pack(&b.arena, box_path(&b, "none.txt"), box_path(&b, "out"), stdout, &e));
  assert_non_null(strstr(e.text, "none.txt: No such file"));
  box_write(&b, "old.idx", "precious", 8);
  e = (Err){0};
  assert_false(data_pack(&b.arena, text, box_path(&b, "old"), stdout, &e));
  assert_int_equal(e.code, ERR_CONFIG);
  assert_non_null(strstr(e.text, "old.idx: is already there"));
  assert_int_equal(access(box_path(&b, "old.bin"), F_OK), -1);
  assert_int_equal(mkdir(box_path(&b, "out.idx"), 0700), 0);
  e = (Err){0};
  assert_false(data_pack(&b.arena, text, box_path(&b, "out"), stdout, &e));
  assert_non_null(strstr(e.text, "out.idx"));
  assert_int_equal(access(box_path(&b, "out.idx.part"), F_OK), -1);
  box_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_is_read),
      cmocka_unit_test(damage_is_refused),
      cmocka_unit_test(missing_half_is_refused),
      cmocka_unit_test(integer_types_are_read),
      cmocka_unit_test(raw_tokens_are_read),
      cmocka_unit_test(odd_files_are_refused),
      cmocka_unit_test(text_is_cut_into_documents),
      cmocka_unit_test(bytes_are_unsigned),
      cmocka_unit_test(long_line_is_read),
      cmocka_unit_test(corpus_has_its_size),
      cmocka_unit_test(offsets_are_64_bit),
      cmocka_unit_test(megatron_beyond_4_gib),
      cmocka_unit_test(pack_writes_megatron),
      cmocka_unit_test(packed_corpus_is_the_text),
      cmocka_unit_test(pack_fails_without_a_trace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
