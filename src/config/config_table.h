/* The list of all keys and what may be done with one: a value from text, a value to text. Private to this folder. */
#ifndef ETALON_CONFIG_TABLE_H
#define ETALON_CONFIG_TABLE_H
#include <float.h>
#include <stddef.h>

#include "config/config.h"

typedef enum { KEY_INT, KEY_REAL, KEY_BOOL, KEY_STRING, KEY_ENUM, KEY_BYTES, KEY_IGNORED } KeyType;

typedef struct ConfigKey {
  const char *name;              /* "section.key" */
  KeyType type;
  size_t offset;                 /* in Config */
  int64_t lo, hi;                /* KEY_INT, KEY_BYTES: both ends allowed */
  double real_lo, real_hi;       /* KEY_REAL */
  bool open_lo, open_hi;         /* KEY_REAL: the end itself is not allowed */
  bool null_is_zero;             /* `null`, as Hugging Face writes it, means 0 */
  const char *const *words;      /* ends with NULL. KEY_ENUM: in the order of the enumerators; KEY_IGNORED: the values allowed, NULL: any */
  const char *preset;            /* default, as it would be written; NULL: the key is required */
  const char *help;
} ConfigKey;

/* A value as the user wrote it. `quoted`: it stood in quotes, so it is text and nothing else. */
typedef struct ConfigScalar { const char *text; size_t length; bool quoted; } ConfigScalar;

enum {
  CONFIG_WORDS = 512,            /* bytes that hold any list of allowed values, any formatted number */
  CONFIG_NAME = 256              /* bytes that hold any key */
};

const ConfigKey *config_key(int i);                               /* 0 <= i < config_n_keys() */
int  config_find(const char *name);                               /* -1: no such key */
int  config_section_length(const char *name);                     /* letters before the dot */
bool config_has_section(const char *name, int length);
/* Say why `name` is no key ("section.key") or no section, and what may have been meant. `out` of ERR_TEXT bytes holds it all. */
void config_explain_key(const char *name, char *out, size_t size);
void config_explain_section(const char *name, char *out, size_t size);
/* Parses and stores one value. false: `why` says what is wrong with it, without naming the key. Text goes to `a`. */
bool config_value_set(const ConfigKey *k, Config *c, ConfigScalar v, Arena *a, char why[CONFIG_WORDS]);
/* As YAML that config_value_set reads back; returns the number of characters. */
int  config_value_write(const ConfigKey *k, const Config *c, FILE *f);
void config_value_allowed(const ConfigKey *k, char out[CONFIG_WORDS]);                /* "a number >= 0" */
/* Numbers as people write them: digits, a point, an exponent. false: `why` says what is wrong. */
bool config_parse_int(const char *s, int64_t *out, char why[CONFIG_WORDS]);
bool config_parse_real(const char *s, double *out, char why[CONFIG_WORDS]);
bool config_parse_bytes(const char *s, int64_t *out, char why[CONFIG_WORDS]);
/* Are all required keys given? ERR_CONFIG names the first required key that is missing and lists the others. */
bool config_check_required(const ConfigDoc *d, Err *e);
#endif
