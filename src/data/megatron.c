/* Megatron-LM's indexed data set: X.bin holds bare tokens, X.idx says where sequences and documents begin. Nothing of the index is kept:
 * sequences that follow each other without gaps make X.bin the stream of tokens itself.                                             */
#include "data/format.h"
#include <inttypes.h>
#include <string.h>

const char idx_magic[IDX_MAGIC] = "MMIDIDX\0"; /* and the string's own zero */

void megatron_paths(Arena *a, const char *path, const char **bin, const char **idx) {
  int n = (int)strlen(path);
  if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 || strcmp(path + n - 4, ".idx") == 0)) n -= 4;
  *bin = arena_printf(a, "%.*s.bin", n, path);
  *idx = arena_printf(a, "%.*s.idx", n, path);
}

typedef struct Index {
  const char *path, *bytes;
  int64_t size, n_sequence, n_mark;
} Index;

static int64_t read_i64(const Index *x, int64_t at) {
  int64_t v;
  memcpy(&v, x->bytes + at, sizeof v);
  return v;
}

static int32_t read_i32(const Index *x, int64_t at) {
  int32_t v;
  memcpy(&v, x->bytes + at, sizeof v);
  return v;
}

static int64_t length_at(int64_t i) { return IDX_HEADER + 4 * i; }
static int64_t offset_at(const Index *x, int64_t i) { return IDX_HEADER + 4 * x->n_sequence + 8 * i; }
static int64_t mark_at(const Index *x, int64_t i) { return IDX_HEADER + 12 * x->n_sequence + 8 * i; }

static bool check_header(Index *x, const TokenType **type, Err *e) {
  if (x->size < IDX_HEADER)
    return err_set(e, ERR_DATA, "%s: %" PRId64 " bytes are less than the header's %d", x->path, x->size, IDX_HEADER);
  if (memcmp(x->bytes, idx_magic, IDX_MAGIC) != 0)
    return err_set(e, ERR_DATA, "%s: does not begin with MMIDIDX: not a Megatron index", x->path);
  int64_t version = read_i64(x, 9);
  if (version != 1) return err_set(e, ERR_DATA, "%s: byte 9: version %" PRId64 "; 1 is known", x->path, version);
  int code = (unsigned char)x->bytes[17];
  *type = token_type_megatron(code);
  if (!*type)
    return err_set(e, ERR_DATA, "%s: byte 17: token type %d%s; integers are needed: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16", x->path, code,
                   code == 6 || code == 7 ? " (floats)" : "");
  return true;
}

/* S and D come from the file: they are compared before they are multiplied. */
static bool check_size(Index *x, Err *e) {
  int64_t s = read_i64(x, 18), d = read_i64(x, 26), room = x->size - IDX_HEADER;
  if (s < 0 || s > room / 12)
    return err_set(e, ERR_DATA, "%s: byte 18: %" PRIu64 " sequences do not fit a file of %" PRId64 " bytes", x->path, (uint64_t)s, x->size);
  if (d < 1 || d > room / 8)
    return err_set(e, ERR_DATA, "%s: byte 26: %" PRIu64 " document marks; at least 1, and no more than fit a file of %" PRId64 " bytes",
                   x->path, (uint64_t)d, x->size);
  x->n_sequence = s;
  x->n_mark = d;
  int64_t want = IDX_HEADER + 12 * s + 8 * d;
  if (x->size == want) return true;
  if (x->size == want + s) return err_set(e, ERR_DATA, "%s: has a mode for each sequence: multimodal data sets are not supported", x->path);
  return err_set(e, ERR_DATA, "%s: %" PRId64 " bytes; %" PRId64 " sequences and %" PRId64 " document marks take %" PRId64, x->path, x->size,
                 s, d, want);
}

static bool check_sequences(const Index *x, const TokenType *type, const TokenFile *f, Err *e) {
  int64_t end = 0, bytes = (int64_t)f->map_bytes;
  for (int64_t i = 0; i < x->n_sequence; i++) {
    int64_t n = read_i32(x, length_at(i)), offset = read_i64(x, offset_at(x, i));
    if (n < 0) return err_set(e, ERR_DATA, "%s: byte %" PRId64 ": sequence %" PRId64 " has length %" PRId64, x->path, length_at(i), i, n);
    if (offset != end)
      return err_set(e, ERR_DATA,
                     "%s: byte %" PRId64 ": sequence %" PRId64 " begins at byte %" PRId64 " of the tokens; the one before ends at %" PRId64,
                     x->path, offset_at(x, i), i, offset, end);
    end += n * type->width;
    if (end > bytes)
      return err_set(e, ERR_DATA, "%s: sequence %" PRId64 " ends at byte %" PRId64 " of %s, which has %" PRId64 " bytes; was it cut off?",
                     x->path, i, end, f->path, bytes);
  }
  if (end != bytes)
    return err_set(e, ERR_DATA, "%s: %" PRId64 " bytes, but the sequences of %s end at %" PRId64 "; the two files do not belong together",
                   f->path, bytes, x->path, end);
  return true;
}

static bool check_marks(const Index *x, Err *e) {
  int64_t before = 0;
  for (int64_t i = 0; i < x->n_mark; i++) {
    int64_t mark = read_i64(x, mark_at(x, i));
    if (i == 0 && mark != 0)
      return err_set(e, ERR_DATA, "%s: byte %" PRId64 ": the first document mark is %" PRId64 ", not 0", x->path, mark_at(x, 0), mark);
    if (mark < before)
      return err_set(e, ERR_DATA, "%s: byte %" PRId64 ": document mark %" PRId64 " is %" PRId64 ", below the one before (%" PRId64 ")",
                     x->path, mark_at(x, i), i, mark, before);
    before = mark;
  }
  if (before != x->n_sequence)
    return err_set(e, ERR_DATA, "%s: byte %" PRId64 ": the last document mark is %" PRId64 "; there are %" PRId64 " sequences", x->path,
                   mark_at(x, x->n_mark - 1), before, x->n_sequence);
  return true;
}

static bool check_index(Index *x, TokenFile *f, Err *e) {
  const TokenType *type;
  TRY(check_header(x, &type, e));
  TRY(check_size(x, e));
  TRY(check_sequences(x, type, f, e));
  TRY(check_marks(x, e));
  TRY(flat_open(f, type, e));
  f->n_document = x->n_mark - 1;
  return true;
}

bool megatron_open(TokenFile *f, Arena *a, Err *e) {
  const char *bin, *idx;
  megatron_paths(a, f->path, &bin, &idx);
  Mapping m;
  if (!file_map(&m, idx, e)) return err_wrap(e, "%s needs its index", f->path);
  Index x = {.path = idx, .bytes = m.p, .size = (int64_t)m.bytes};
  bool ok = check_index(&x, f, e);
  file_unmap(&m);
  return ok;
}
