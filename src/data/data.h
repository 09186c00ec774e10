/* Tokens on disk and the order in which they are trained on. One file = one stream of tokens: Megatron .bin/.idx, raw u16/u32, or text
 * through the byte tokenizer. Everything is mapped, nothing is read ahead; 64-bit offsets everywhere. Called by train and `etalon data`;
 * knows nothing of ranks.
 *
 * Text: a line is blank when it holds nothing but spaces, tabs and carriage returns. A document is a maximal run of lines that are not
 * blank; its tokens are its bytes as they are, newlines included, then BYTE_EOD. Blank lines give no tokens of their own. No limit on the
 * length of a line.                                                                                                                   */
#ifndef ETALON_DATA_H
#define ETALON_DATA_H
#include "base/arena.h"
#include "base/err.h"
#include <stdint.h>
#include <stdio.h>

/* AUTO: by what is there: X.bin beside X.idx, .u16, .u32, .txt; else refused */
typedef enum { TOK_MEGATRON, TOK_U16, TOK_U32, TOK_TEXT, TOK_AUTO } TokenFormat;
enum { BYTE_EOD = 256, BYTE_VOCAB = 257, LABEL_IGNORED = -100 };

typedef struct TokenFile {
  const char *path;                  /* the file that holds the tokens: X.bin for Megatron */
  TokenFormat format;
  int64_t n_token;
  int64_t n_document;                /* -1: the format does not say */
  int64_t vocab;                     /* every token is below; what token_file_open was told, or 2^31 */
  int64_t max_token;                 /* -1: too large a file to look at every token when it is opened */
  int width;                         /* bytes a token takes in the file */
  const void *map;
  size_t map_bytes;
  int fd;
  const void *impl;                  /* the format's own */
} TokenFile;

/* Tokens of files up to this size are all compared with vocab by token_file_open; of larger files only when they are read. */
#define TOKEN_SCAN_MAX ((int64_t)64 << 20)

/* Checks everything a reader can check: sizes, offsets, marks; with vocab > 0 that every token is below it (see TOKEN_SCAN_MAX).
 * Megatron: `path` is X, X.bin or X.idx; sequences must follow each other without gaps, as every known writer lays them.
 * ERR_DATA: file, what is wrong, where, what to do. */
bool token_file_open(TokenFile *f, Arena *a, const char *path, TokenFormat format, int64_t vocab, Err *e);
void token_file_close(TokenFile *f);
/* Tokens first .. first + n - 1, first + n <= n_token. ERR_DATA: a token not below vocab, with its place; a file that has shrunk since it was opened, a disk
 * that fails. */
bool token_file_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out /* [n] */, Err *e);
const char *token_format_name(TokenFormat f);   /* "megatron", "u16", "u32", "text", "auto": the values of data.format */

/* The sampler is a pure function of (seed, index): sample i of the run is sequence permute(epoch, i mod n) of epoch i / n. A sequence is
 * seq+1 tokens, label t = token t+1; sequences start seq tokens apart, n = (n_token - 1) / seq; nothing but the tail is dropped. */
typedef struct Sampler { const TokenFile *file; int64_t seq, n_sample; uint64_t seed; bool shuffle; } Sampler;
/* ERR_DATA: fewer than seq+1 tokens */
bool sampler_open(Sampler *s, const TokenFile *f, int64_t seq, uint64_t seed, bool shuffle, Err *e);
int64_t sampler_sequence(const Sampler *s, int64_t sample);   /* which sequence; any sample >= 0 */
bool sampler_fetch(const Sampler *s, int64_t sample, int32_t *token /* [seq] */, int32_t *label /* [seq] */, Err *e);
/* Validation covers *all* tokens: n = ceil((n_token - 1) / seq) sequences in order, the last one padded with token 0 and label -100.
 * 0: fewer than 2 tokens, so nothing to predict. */
int64_t valid_count(const TokenFile *f, int64_t seq);
bool valid_fetch(const TokenFile *f, int64_t seq, int64_t i, int32_t *token /* [seq] */, int32_t *label /* [seq] */, Err *e);

/* `etalon data pack IN.txt OUT` writes OUT.bin and OUT.idx (Megatron, u16, a sequence and a mark for each document), under another name
 * until they are complete; ERR_CONFIG where one of them is already there. `etalon data info PATH` prints what token_file_open found. */
bool data_pack(Arena *a, const char *text, const char *out_prefix, FILE *log, Err *e);
bool data_info(Arena *a, const char *path, TokenFormat format, FILE *out, Err *e);
#endif
