/* What the formats share, private to src/data. A format is one row in token_file.c: how to open, look at and read it. */
#ifndef ETALON_DATA_FORMAT_H
#define ETALON_DATA_FORMAT_H
#include "data/data.h"
#include <stddef.h>

/* Fixed-width tokens in a file. `scan`: how many tokens from `first` on are in 0 .. limit-1 before one is not (n: all); raises *max. */
typedef struct TokenType {
  int megatron_code;
  const char *name;
  int width;
  int64_t (*scan)(const void *p, int64_t first, int64_t n, int64_t limit, int64_t *max);
  void (*widen)(const void *p, int64_t first, int64_t n, int32_t *out);
  int64_t (*at)(const void *p, int64_t i);
} TokenType;
extern const TokenType token_type_u16, token_type_u32;
/* NULL: no integer type has this code. */
const TokenType *token_type_megatron(int code);

typedef struct Mapping {
  const char *path;
  const void *p;
  size_t bytes;
  int fd; /* stays open, so that the file can be asked for its size */
} Mapping;
/* Maps a whole regular file that is not empty. */
bool file_map(Mapping *m, const char *path, Err *e);
void file_unmap(const Mapping *m);

/* ---- formats: each fills n_token, n_document, width, impl of a TokenFile whose path and map are set ---- */
bool flat_open(TokenFile *f, const TokenType *type, Err *e); /* whole file = tokens */
bool text_open(TokenFile *f, Arena *a, Err *e);
bool megatron_open(TokenFile *f, Arena *a, Err *e);
void text_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out);
/* Bytes [*from, *to) of the file hold tokens first .. first + n - 1. n > 0 */
void text_span(const TokenFile *f, int64_t first, int64_t n, size_t *from, size_t *to);
/* Tokens of document d, its end included. */
void text_document(const TokenFile *f, int64_t d, int64_t *first, int64_t *n);
/* X.bin and X.idx from X, X.bin or X.idx. */
void megatron_paths(Arena *a, const char *path, const char **bin, const char **idx);

enum { IDX_MAGIC = 9, IDX_HEADER = 34, IDX_TYPE_U16 = 8 };
extern const char idx_magic[IDX_MAGIC];
#endif
