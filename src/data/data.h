/* Tokens on disk and the order in which they are trained on. One file = one stream of tokens: Megatron .bin/.idx, raw u16/u32, or text through the byte
 * tokenizer (256 bytes + 256 = end of document, after each line that a blank line follows, and at the end). 64-bit offsets everywhere.  */
#ifndef ETALON_DATA_H
#define ETALON_DATA_H
#include <stdint.h>
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

typedef enum { TOK_MEGATRON, TOK_U16, TOK_U32, TOK_TEXT, TOK_AUTO } TokenFormat;   /* AUTO: by what is there: X.idx beside X.bin, .u16, .u32, .txt; else refused */
enum { BYTE_EOD = 256, BYTE_VOCAB = 257 };
typedef struct TokenFile { const char *path; TokenFormat format; int64_t n_token; int64_t n_document; int width; const void *map; size_t map_bytes; int64_t max_token; void *impl; } TokenFile;

/* Checks everything a reader can check (sizes, offsets, marks; with vocab > 0 every token < vocab). ERR_DATA: file, what is wrong, where. */
bool token_file_open(TokenFile *f, Arena *a, const char *path, TokenFormat format, int64_t vocab, Err *e);
void token_file_close(TokenFile *f);
void token_file_read(const TokenFile *f, int64_t first, int64_t n, int32_t *out);          /* first + n <= n_token */
const char *token_format_name(TokenFormat f);

/* The sampler is a pure function of (seed, index): sample i of the run is sequence permute(epoch, i mod n) of epoch i / n. A sample is seq+1 tokens, label t = token
 * t+1; consecutive samples start seq tokens apart, n = (n_token - 1) / seq; nothing but the tail is dropped. */
typedef struct Sampler { const TokenFile *file; int64_t seq, n_sample; uint64_t seed; bool shuffle; } Sampler;
bool sampler_open(Sampler *s, const TokenFile *f, int64_t seq, uint64_t seed, bool shuffle, Err *e);   /* ERR_DATA: fewer than seq+1 tokens */
int64_t sampler_sequence(const Sampler *s, int64_t sample);                     /* which sequence */
void sampler_fetch(const Sampler *s, int64_t sample, int32_t *token /* [seq] */, int32_t *label /* [seq] */);
/* Validation covers *all* tokens: n = ceil((n_token - 1) / seq) sequences in order, the last one padded with label -100. */
int64_t valid_count(const TokenFile *f, int64_t seq);
void valid_fetch(const TokenFile *f, int64_t seq, int64_t i, int32_t *token, int32_t *label);

/* `etalon data pack IN.txt OUT` writes OUT.bin and OUT.idx (Megatron, u16); `data info PATH`. */
bool data_pack(Arena *a, const char *text, const char *out_prefix, FILE *log, Err *e);
bool data_info(Arena *a, const char *path, TokenFormat format, FILE *out, Err *e);
#endif
