/* `etalon data`: text to Megatron's two files, and a look at any data set. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "data/format.h"

enum { CHUNK = 1 << 16 };

/* What was packed before is not lost to a second run of the same line. */
static bool not_there(const char *prefix, const char *suffix, Arena *a, Err *e) {
  const char *path = arena_printf(a, "%s%s", prefix, suffix);
  TRY(path_replaceable(path, e));
  return access(path, F_OK) != 0 || err_set(e, ERR_CONFIG, "%s: is already there; remove it, or name another", path);
}

/* A file that gets its name when it is complete. Write errors are kept by stdio and asked for once, at the end. */
typedef struct OutFile {
  const char *path, *part;
  FILE *file;
} OutFile;

static bool out_open(OutFile *o, Arena *a, const char *prefix, const char *suffix, Err *e) {
  o->path = arena_printf(a, "%s%s", prefix, suffix);
  o->part = arena_printf(a, "%s.part", o->path);
  o->file = fopen(o->part, "wb");
  return o->file || err_set(e, ERR_DATA, "%s: cannot be written: %s", o->part, strerror(errno));
}

static bool out_finish(OutFile *o, Err *e) {
  bool ok = fflush(o->file) == 0 && !ferror(o->file) && fsync(fileno(o->file)) == 0;
  int why = errno;
  ok = fclose(o->file) == 0 && ok;
  o->file = NULL;
  return ok || err_set(e, ERR_DATA, "%s: cannot be written: %s", o->part, strerror(why));
}

static bool out_name(const OutFile *o, Err *e) {
  return rename(o->part, o->path) == 0 || err_set(e, ERR_DATA, "%s: cannot be renamed to %s: %s", o->part, o->path, strerror(errno));
}

static void out_drop(OutFile *o) {
  if (o->file) fclose(o->file);
  if (o->part) unlink(o->part);
}

static void put(OutFile *o, const void *p, size_t bytes) { fwrite(p, 1, bytes, o->file); }
static void put_i32(OutFile *o, int64_t v) { put(o, &(int32_t){(int32_t)v}, sizeof(int32_t)); }
static void put_i64(OutFile *o, int64_t v) { put(o, &v, sizeof v); }

static bool write_tokens(OutFile *bin, Arena *a, const TokenFile *text, Err *e) {
  int32_t *wide = ARENA_NEW(a, int32_t, CHUNK);
  uint16_t *narrow = ARENA_NEW(a, uint16_t, CHUNK);
  for (int64_t t = 0; t < text->n_token; t += CHUNK) {
    int64_t n = text->n_token - t < CHUNK ? text->n_token - t : CHUNK;
    TRY(token_file_read(text, t, n, wide, e));
    for (int64_t i = 0; i < n; i++) narrow[i] = (uint16_t)wide[i];
    put(bin, narrow, (size_t)n * sizeof *narrow);
  }
  return out_finish(bin, e);
}

static bool check_documents(const TokenFile *text, Err *e) {
  for (int64_t d = 0; d < text->n_document; d++) {
    int64_t first, n;
    text_document(text, d, &first, &n);
    if (n > INT32_MAX)
      return err_set(e, ERR_DATA, "%s: document %" PRId64 " has %" PRId64 " tokens; a Megatron sequence holds %d: part it by a blank line",
                     text->path, d, n, INT32_MAX);
  }
  return true;
}

static bool write_index(OutFile *idx, const TokenFile *text, Err *e) {
  int64_t first, n;
  put(idx, idx_magic, IDX_MAGIC);
  put_i64(idx, 1);
  put(idx, &(uint8_t){IDX_TYPE_U16}, 1);
  put_i64(idx, text->n_document);
  put_i64(idx, text->n_document + 1);
  for (int64_t d = 0; d < text->n_document; d++) text_document(text, d, &first, &n), put_i32(idx, n);
  for (int64_t d = 0; d < text->n_document; d++) text_document(text, d, &first, &n), put_i64(idx, first * (int64_t)sizeof(uint16_t));
  for (int64_t d = 0; d <= text->n_document; d++) put_i64(idx, d);
  return out_finish(idx, e);
}

static bool pack_open(Arena *a, const TokenFile *text, const char *prefix, Err *e) {
  OutFile bin = {0}, idx = {0};
  bool ok = check_documents(text, e) && out_open(&bin, a, prefix, ".bin", e) && out_open(&idx, a, prefix, ".idx", e) &&
            write_tokens(&bin, a, text, e) && write_index(&idx, text, e) && out_name(&bin, e) && out_name(&idx, e);
  if (!ok) out_drop(&bin), out_drop(&idx);
  return ok;
}

bool data_pack(Arena *a, const char *text, const char *out_prefix, FILE *log, Err *e) {
  TokenFile f;
  TRY(token_file_open(&f, a, text, TOK_TEXT, 0, e));
  bool ok = path_apart("etalon data pack", arena_printf(a, "%s.bin", out_prefix), "it", text, e) &&
            path_apart("etalon data pack", arena_printf(a, "%s.idx", out_prefix), "it", text, e) && not_there(out_prefix, ".bin", a, e) &&
            not_there(out_prefix, ".idx", a, e) && pack_open(a, &f, out_prefix, e);
  if (ok)
    fprintf(log, "%s.bin, %s.idx: %" PRId64 " documents, %" PRId64 " tokens of 2 bytes, vocabulary %d\n", out_prefix, out_prefix,
            f.n_document, f.n_token, BYTE_VOCAB);
  token_file_close(&f);
  return ok;
}

bool data_info(Arena *a, const char *path, TokenFormat format, FILE *out, Err *e) {
  TokenFile f;
  TRY(token_file_open(&f, a, path, format, 0, e));
  fprintf(out, "file       %s\nformat     %s, %d bytes a token\ntokens     %" PRId64 "\n", f.path, token_format_name(f.format), f.width,
          f.n_token);
  if (f.n_document >= 0) fprintf(out, "documents  %" PRId64 "\n", f.n_document);
  if (f.max_token >= 0)
    fprintf(out, "largest    %" PRId64 ", so model.vocab_size of at least %" PRId64 "\n", f.max_token, f.max_token + 1);
  else
    fprintf(out, "largest    not looked for in a file of this size; each token is checked when it is read\n");
  token_file_close(&f);
  return true;
}
