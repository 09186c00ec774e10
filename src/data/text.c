/* Plain text through the byte tokenizer. Tokens are computed from the mapped bytes when they are read; kept is where documents begin. */
#include "data/format.h"
#include <inttypes.h>
#include <string.h>

typedef struct TextIndex {
  const char *bytes;
  int64_t n_document;
  int64_t *byte;  /* [n_document] where the document begins in the file */
  int64_t *token; /* [n_document + 1] where its tokens begin in the stream; the last one: all tokens */
} TextIndex;

static bool is_blank(const char *line, const char *end) {
  while (line < end && (*line == ' ' || *line == '\t' || *line == '\r')) line++;
  return line == end;
}

/* Visits the lines of `bytes`; counts documents and, when x has room for them, notes where they begin. */
static int64_t find_documents(const char *bytes, int64_t n, TextIndex *x) {
  const char *end = bytes + n;
  int64_t count = 0, token = 0;
  bool inside = false;
  for (const char *line = bytes; line < end;) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    const char *next = stop ? stop + 1 : end;
    bool blank = is_blank(line, stop ? stop : end);
    if (inside && blank) token++; /* the end mark of the document before */
    if (!inside && !blank) {
      if (x->byte) x->byte[count] = line - bytes, x->token[count] = token;
      count++;
    }
    if (!blank) token += next - line;
    inside = !blank;
    line = next;
  }
  if (inside) token++;
  if (x->byte) x->token[count] = token;
  return count;
}

bool text_open(TokenFile *f, Arena *a, Err *e) {
  if (f->vocab < BYTE_VOCAB)
    return err_set(e, ERR_DATA, "%s: text needs model.vocab_size of at least %d (256 bytes and the end of a document), found %" PRId64,
                   f->path, BYTE_VOCAB, f->vocab);
  TextIndex *x = ARENA_NEW(a, TextIndex, 1);
  x->bytes = f->map;
  x->n_document = find_documents(f->map, (int64_t)f->map_bytes, x);
  if (x->n_document == 0) return err_set(e, ERR_DATA, "%s: holds blank lines only", f->path);
  x->byte = ARENA_NEW(a, int64_t, x->n_document);
  x->token = ARENA_NEW(a, int64_t, x->n_document + 1);
  find_documents(f->map, (int64_t)f->map_bytes, x);
  f->impl = x;
  f->n_document = x->n_document;
  f->n_token = x->token[x->n_document];
  f->width = 1;
  f->max_token = BYTE_EOD;
  return true;
}

void text_document(const TokenFile *f, int64_t d, int64_t *first, int64_t *n) {
  const TextIndex *x = f->impl;
  *first = x->token[d];
  *n = x->token[d + 1] - x->token[d];
}

static int64_t document_of(const TextIndex *x, int64_t token) {
  int64_t low = 0, high = x->n_document; /* token[low] <= token < token[high] */
  while (high - low > 1) {
    int64_t mid = low + (high - low) / 2;
    if (x->token[mid] <= token)
      low = mid;
    else
      high = mid;
  }
  return low;
}

void text_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out) {
  const TextIndex *x = f->impl;
  if (n == 0) return;
  for (int64_t d = document_of(x, first), t = first; t < first + n; d++) {
    int64_t mark = x->token[d + 1] - 1;
    const char *byte = x->bytes + x->byte[d] - x->token[d];
    for (; t < mark && t < first + n; t++) *out++ = (unsigned char)byte[t];
    if (t == mark && t < first + n) *out++ = BYTE_EOD, t++;
  }
}

/* A document's end mark is no byte: the place behind it stands for it. */
void text_span(const TokenFile *f, int64_t first, int64_t n, size_t *from, size_t *to) {
  const TextIndex *x = f->impl;
  int64_t a = document_of(x, first), b = document_of(x, first + n - 1), end = x->byte[b] - x->token[b] + first + n;
  *from = (size_t)(x->byte[a] - x->token[a] + first);
  *to = (size_t)end < f->map_bytes ? (size_t)end : f->map_bytes;
}
