#include "data/data.h"
#include "data/format.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- token types ---- */

#define TOKEN_TYPE(T)                                                                                                                      \
  static int64_t scan_##T(const void *p, int64_t first, int64_t n, int64_t limit, int64_t *max) {                                          \
    const T *token = (const T *)p + first;                                                                                                 \
    uint64_t top = 0;                                                                                                                      \
    for (int64_t i = 0; i < n; i++) {                                                                                                      \
      uint64_t v = (uint64_t)(int64_t)token[i]; /* a negative token is a huge one */                                                       \
      top = v > top ? v : top;                                                                                                             \
    }                                                                                                                                      \
    if (top < (uint64_t)limit) {                                                                                                           \
      *max = (int64_t)top > *max ? (int64_t)top : *max;                                                                                    \
      return n;                                                                                                                            \
    }                                                                                                                                      \
    int64_t i = 0;                                                                                                                         \
    while ((uint64_t)(int64_t)token[i] < (uint64_t)limit) i++;                                                                             \
    return i;                                                                                                                              \
  }                                                                                                                                        \
  static void widen_##T(const void *p, int64_t first, int64_t n, int32_t *out) {                                                           \
    const T *token = (const T *)p + first;                                                                                                 \
    for (int64_t i = 0; i < n; i++) out[i] = (int32_t)token[i];                                                                            \
  }                                                                                                                                        \
  static int64_t at_##T(const void *p, int64_t i) { return (int64_t)((const T *)p)[i]; }
TOKEN_TYPE(uint8_t)
TOKEN_TYPE(int8_t)
TOKEN_TYPE(int16_t)
TOKEN_TYPE(uint16_t)
TOKEN_TYPE(int32_t)
TOKEN_TYPE(uint32_t)
TOKEN_TYPE(int64_t)

static const TokenType megatron_types[] = {
    {1, "u8", 1, scan_uint8_t, widen_uint8_t, at_uint8_t},  {2, "i8", 1, scan_int8_t, widen_int8_t, at_int8_t},
    {3, "i16", 2, scan_int16_t, widen_int16_t, at_int16_t}, {4, "i32", 4, scan_int32_t, widen_int32_t, at_int32_t},
    {5, "i64", 8, scan_int64_t, widen_int64_t, at_int64_t}, {8, "u16", 2, scan_uint16_t, widen_uint16_t, at_uint16_t},
};
const TokenType token_type_u16 = {8, "u16", 2, scan_uint16_t, widen_uint16_t, at_uint16_t};
const TokenType token_type_u32 = {0, "u32", 4, scan_uint32_t, widen_uint32_t, at_uint32_t};

const TokenType *token_type_megatron(int code) {
  for (size_t i = 0; i < sizeof megatron_types / sizeof megatron_types[0]; i++)
    if (megatron_types[i].megatron_code == code) return &megatron_types[i];
  return NULL;
}

/* ---- files ---- */

static bool map_open_file(Mapping *m, int fd, Err *e) {
  struct stat st;
  if (fstat(fd, &st) != 0) return err_set(e, ERR_DATA, "%s: %s", m->path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return err_set(e, ERR_DATA, "%s: is a directory; name a file of tokens or text", m->path);
  if (!S_ISREG(st.st_mode)) return err_set(e, ERR_DATA, "%s: is not a regular file, so it cannot be mapped", m->path);
  if (st.st_size == 0) return err_set(e, ERR_DATA, "%s: is empty", m->path);
  void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return err_set(e, ERR_DATA, "%s: cannot be mapped: %s", m->path, strerror(errno));
  m->p = p;
  m->bytes = (size_t)st.st_size;
  m->fd = fd;
  return true;
}

bool file_map(Mapping *m, const char *path, Err *e) {
  *m = (Mapping){.path = path};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
  if (fd < 0) return err_set(e, ERR_DATA, "%s: %s", path, strerror(errno));
  bool ok = map_open_file(m, fd, e);
  if (!ok) close(fd);
  return ok;
}

void file_unmap(const Mapping *m) {
  if (!m->p) return;
  CHECK(munmap((void *)(uintptr_t)m->p, m->bytes) == 0, "%s: munmap: %s", m->path, strerror(errno));
  close(m->fd);
}

/* ---- formats ---- */

bool flat_open(TokenFile *f, const TokenType *type, Err *e) {
  if (f->map_bytes % (size_t)type->width)
    return err_set(e, ERR_DATA, "%s: %zu bytes are not a whole number of %s tokens of %d bytes; the file is cut off or of another type",
                   f->path, f->map_bytes, type->name, type->width);
  f->n_token = (int64_t)(f->map_bytes / (size_t)type->width);
  f->n_document = -1;
  f->width = type->width;
  f->impl = type;
  return true;
}

static void flat_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out) {
  ((const TokenType *)f->impl)->widen(f->map, first, n, out);
}

static void flat_span(const TokenFile *f, int64_t first, int64_t n, size_t *from, size_t *to) {
  *from = (size_t)(first * f->width);
  *to = (size_t)((first + n) * f->width);
}

static int64_t flat_scan(const TokenFile *f, int64_t first, int64_t n, int64_t *max) {
  return ((const TokenType *)f->impl)->scan(f->map, first, n, f->vocab, max);
}

static bool u16_open(TokenFile *f, Arena *a, Err *e) {
  (void)a;
  return flat_open(f, &token_type_u16, e);
}

static bool u32_open(TokenFile *f, Arena *a, Err *e) {
  (void)a;
  return flat_open(f, &token_type_u32, e);
}

/* Every byte is a token: text_open's look at vocab stands for the scan. */
static int64_t text_scan(const TokenFile *f, int64_t first, int64_t n, int64_t *max) {
  (void)f, (void)first, (void)max;
  return n;
}

typedef struct FormatRow {
  const char *name, *suffix; /* suffix: what AUTO goes by */
  bool (*open)(TokenFile *f, Arena *a, Err *e);
  int64_t (*scan)(const TokenFile *f, int64_t first, int64_t n, int64_t *max); /* as in TokenType */
  void (*read)(const TokenFile *f, int64_t first, int64_t n, int32_t *out);
  void (*span)(const TokenFile *f, int64_t first, int64_t n, size_t *from, size_t *to); /* as text_span */
} FormatRow;

static const FormatRow format_rows[] = {
    [TOK_MEGATRON] = {"megatron", NULL, megatron_open, flat_scan, flat_read, flat_span},
    [TOK_U16] = {"u16", ".u16", u16_open, flat_scan, flat_read, flat_span},
    [TOK_U32] = {"u32", ".u32", u32_open, flat_scan, flat_read, flat_span},
    [TOK_TEXT] = {"text", ".txt", text_open, text_scan, text_read, text_span},
    [TOK_AUTO] = {"auto", NULL, NULL, NULL, NULL, NULL},
};

const char *token_format_name(TokenFormat f) { return format_rows[f].name; }

static bool ends_with(const char *s, const char *suffix) {
  size_t n = strlen(s), m = strlen(suffix);
  return n > m && strcmp(s + n - m, suffix) == 0;
}

static bool format_guess(TokenFormat *format, Arena *a, const char *path, Err *e) {
  const char *bin, *idx;
  megatron_paths(a, path, &bin, &idx);
  if (access(bin, F_OK) == 0 && access(idx, F_OK) == 0) return *format = TOK_MEGATRON, true;
  for (int i = 0; i < TOK_AUTO; i++)
    if (format_rows[i].suffix && ends_with(path, format_rows[i].suffix)) return *format = (TokenFormat)i, true;
  if (ends_with(path, ".bin") || ends_with(path, ".idx"))
    return err_set(e, ERR_DATA, "%s: a Megatron data set is two files, and %s is not there; for bare tokens set data.format to u16 or u32",
                   path, access(bin, F_OK) == 0 ? idx : bin);
  if (access(path, F_OK) != 0)
    return err_set(e, ERR_DATA, "%s: %s, and there is no data set of that prefix (%s with %s)", path, strerror(errno), bin, idx);
  return err_set(e, ERR_DATA,
                 "%s: cannot tell the format by the name: expected NAME.bin with NAME.idx, or .u16, .u32, .txt; or set data.format to one "
                 "of megatron, u16, u32, text",
                 path);
}

static bool check_tokens(TokenFile *f, int64_t first, int64_t n, Err *e) {
  int64_t bad = format_rows[f->format].scan(f, first, n, &f->max_token);
  if (bad == n) return true;
  int64_t at = first + bad;
  return err_set(e, ERR_DATA,
                 "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64 "; tokens must be 0 to %" PRId64
                 ": is model.vocab_size right, and the format (%s)?",
                 f->path, at, at * f->width, ((const TokenType *)f->impl)->at(f->map, at), f->vocab - 1, token_format_name(f->format));
}

static bool open_mapped(TokenFile *f, Arena *a, Err *e) {
  TRY(format_rows[f->format].open(f, a, e));
  if (f->n_token == 0) return err_set(e, ERR_DATA, "%s: holds no tokens", f->path);
  if (f->n_token > TOKEN_SCAN_MAX) return true;
  return check_tokens(f, 0, f->n_token, e);
}

bool token_file_open(TokenFile *f, Arena *a, const char *path, TokenFormat format, int64_t vocab, Err *e) {
  *f = (TokenFile){.vocab = vocab > 0 ? vocab : (int64_t)INT32_MAX + 1, .max_token = -1};
  if (format == TOK_AUTO) TRY(format_guess(&format, a, path, e));
  const char *file = path, *idx;
  if (format == TOK_MEGATRON) megatron_paths(a, path, &file, &idx);
  f->format = format;
  f->path = arena_printf(a, "%s", file);

  Mapping m;
  TRY(file_map(&m, f->path, e));
  f->map = m.p;
  f->map_bytes = m.bytes;
  f->fd = m.fd;
  if (open_mapped(f, a, e)) return true;
  token_file_close(f);
  return false;
}

void token_file_close(TokenFile *f) {
  file_unmap(&(Mapping){f->path, f->map, f->map_bytes, f->fd});
  f->map = NULL;
}

/* A file that shrinks, or a disk that fails, would end the process by a signal when its bytes are touched: the size is asked for and the pages are fetched
 * before (Linux 5.14; an older kernel refuses, which is no error). What is lost between here and the read cannot be helped. */
static bool check_size(const TokenFile *f, Err *e) {
  struct stat st;
  if (fstat(f->fd, &st) != 0 || (uint64_t)st.st_size >= f->map_bytes) return true;
  return err_set(e, ERR_DATA, "%s: had %zu bytes when it was opened and has %lld now: it was changed while in use", f->path, f->map_bytes,
                 (long long)st.st_size);
}
static bool check_readable(const TokenFile *f, int64_t first, int64_t n, Err *e) {
  TRY(check_size(f, e));
  size_t from, to, page = (size_t)sysconf(_SC_PAGESIZE);
  format_rows[f->format].span(f, first, n, &from, &to);
  from = from / page * page;
  char *p = (char *)(uintptr_t)f->map + from;
  if (madvise(p, to - from, MADV_POPULATE_READ) == 0 || (errno != EFAULT && errno != EHWPOISON && errno != EIO)) return true;
  const char *why = errno == EFAULT ? "the disk failed, or the file was changed" : strerror(errno);
  TRY(check_size(f, e)); /* it may have shrunk in between */
  return err_set(e, ERR_DATA, "%s: bytes %zu to %zu cannot be read: %s", f->path, from, to, why);
}

bool token_file_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out, Err *e) {
  CHECK(first >= 0 && n >= 0 && first <= f->n_token - n, "%s: tokens %" PRId64 " to %" PRId64 " of %" PRId64, f->path, first, first + n,
        f->n_token);
  if (n > 0) TRY(check_readable(f, first, n, e));
  TokenFile look = *f; /* what a look at the tokens finds stays with it: the file is const */
  TRY(check_tokens(&look, first, n, e));
  format_rows[f->format].read(f, first, n, out);
  return true;
}
