#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/config_table.h"

typedef struct Decimal {
  bool negative;
  unsigned __int128 mantissa; /* value = mantissa * 10^exponent */
  int exponent;
  const char *end;
} Decimal;

enum { SHOWN = 120, MAX_EXPONENT = 9999, MAX_TEXT = 4000 };
static const unsigned __int128 MANTISSA_LIMIT = (unsigned __int128)1 << 120;

/* The value in quotes, cut and on one line, then the message. Always false. */
__attribute__((format(printf, 3, 4))) static bool because(char why[CONFIG_WORDS], const char *value, const char *fmt, ...) {
  size_t n = 0;
  why[n++] = '"';
  for (const char *s = value; *s && n < SHOWN; s++) why[n++] = (char)((unsigned char)*s < 0x20 ? ' ' : *s);
  n += (size_t)snprintf(why + n, CONFIG_WORDS - n, strlen(value) < SHOWN ? "\" " : "...\" ");
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(why + n, CONFIG_WORDS - n, fmt, ap);
  va_end(ap);
  return false;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* What other programs read as numbers, and why it is not one here. */
static bool not_a_number(const char *s, char why[CONFIG_WORDS]) {
  const char *t = s + (*s == '-' || *s == '+');
  if (*t == '.' && !is_digit(t[1])) t++;
  if (strcasecmp(t, "nan") == 0 || strcasecmp(t, "inf") == 0 || strcasecmp(t, "infinity") == 0)
    return because(why, s, "is not a finite number");
  if (t[0] == '0' && t[1] && strchr("xXoObB", t[1])) return because(why, s, "is not a decimal number");
  if (t[0] == '0' && is_digit(t[1])) return because(why, s, "has a leading zero, which some programs read as octal");
  if (is_digit(*t) && strchr(t, '_')) return because(why, s, "has an underscore, which numbers may not have");
  return because(why, s, "is not a number");
}

static const char *scan_digits(const char *s, Decimal *d, int step, bool *fits) {
  for (; is_digit(*s); s++, d->exponent -= step) {
    *fits = *fits && d->mantissa < MANTISSA_LIMIT;
    if (*fits) d->mantissa = d->mantissa * 10 + (unsigned)(*s - '0');
  }
  return s;
}

/* [sign] digits [. digits] [e [sign] digits]; stops at the first other character. */
static bool decimal_scan(const char *s, Decimal *d, char why[CONFIG_WORDS]) {
  *d = (Decimal){.negative = *s == '-'};
  bool fits = true;
  const char *start = s + (*s == '-' || *s == '+'), *whole = scan_digits(start, d, 0, &fits), *p = whole;
  if (*p == '.') p = scan_digits(p + 1, d, 1, &fits);
  bool any = whole > start || p > whole + 1;
  if (!any || (*start == '0' && whole > start + 1)) return not_a_number(s, why);
  if (*p == 'e' || *p == 'E') {
    const char *q = p + 1;
    bool down = *q == '-';
    q += *q == '-' || *q == '+';
    if (!is_digit(*q)) return not_a_number(s, why);
    int e = 0;
    for (; is_digit(*q); q++) e = e < MAX_EXPONENT ? e * 10 + (*q - '0') : e;
    d->exponent += down ? -e : e;
    p = q;
  }
  d->end = p;
  return fits || because(why, s, "has too many digits");
}

/* mantissa * 10^exponent * unit, exactly. */
static bool decimal_integer(const char *s, const Decimal *d, int64_t unit, int64_t *out, char why[CONFIG_WORDS]) {
  unsigned __int128 v = d->mantissa, limit = (unsigned __int128)INT64_MAX;
  if (v > ~(unsigned __int128)0 / (uint64_t)unit) return because(why, s, "is too large");
  v *= (uint64_t)unit;
  int e = v ? d->exponent : 0;
  for (; e < 0 && v % 10 == 0; e++) v /= 10;
  if (e < 0) return because(why, s, unit > 1 ? "is not a whole number of bytes" : "is not an integer");
  for (; e > 0 && v <= limit; e--) v *= 10;
  if (v > limit) return because(why, s, d->negative ? "is too small" : "is too large");
  *out = d->negative ? -(int64_t)v : (int64_t)v;
  return true;
}

bool config_parse_int(const char *s, int64_t *out, char why[CONFIG_WORDS]) {
  Decimal d;
  TRY(decimal_scan(s, &d, why));
  if (*d.end) return not_a_number(s, why);
  return decimal_integer(s, &d, 1, out, why);
}

bool config_parse_real(const char *s, double *out, char why[CONFIG_WORDS]) {
  Decimal d;
  TRY(decimal_scan(s, &d, why));
  if (*d.end) return not_a_number(s, why);
  double v = strtod(s, NULL);
  if (isinf(v)) return because(why, s, "is too large for a double");
  if (d.mantissa && fabs(v) < DBL_MIN) return because(why, s, "is too small for a double");
  *out = v + 0.0; /* no -0 */
  return true;
}

static const struct {
  const char *name;
  int64_t bytes;
} units[] = {{"TiB", INT64_C(1) << 40}, {"GiB", INT64_C(1) << 30}, {"MiB", INT64_C(1) << 20}, {"KiB", INT64_C(1) << 10}, {"", 1}};
enum { N_UNITS = sizeof units / sizeof units[0] };

bool config_parse_bytes(const char *s, int64_t *out, char why[CONFIG_WORDS]) {
  Decimal d;
  TRY(decimal_scan(s, &d, why));
  const char *unit = d.end + strspn(d.end, " ");
  if (unit == d.end && *unit && strchr("_xXoObB", *unit)) return not_a_number(s, why);
  for (int i = 0; i < N_UNITS; i++)
    if (strcmp(unit, units[i].name) == 0) return decimal_integer(s, &d, units[i].bytes, out, why);
  return because(why, s, "has an unknown unit");
}

/* Length of the character at s when it may stand in a text (well-formed UTF-8, no control or line-break character), else 0. */
static int text_character(const unsigned char *s) {
  static const uint32_t smallest[] = {0, 0x20, 0x80, 0x800, 0x10000};
  int n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
  uint32_t c = n == 1 ? s[0] : n ? s[0] & (0x7fu >> n) : 0;
  for (int i = 1; i < n; i++) {
    if (s[i] >> 6 != 2) return 0;
    c = c << 6 | (s[i] & 0x3fu);
  }
  bool control = (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || (c >= 0xd800 && c < 0xe000);
  bool outside = c == 0xfffe || c == 0xffff || c > 0x10ffff;
  return n && c >= smallest[n] && !control && !outside ? n : 0;
}

static bool set_text(ConfigScalar v, char **out, Arena *a, char why[CONFIG_WORDS]) {
  if (v.length > MAX_TEXT) return because(why, v.text, "is longer than %d bytes", MAX_TEXT);
  for (size_t i = 0; i < v.length;) {
    int n = text_character((const unsigned char *)v.text + i);
    if (n == 0) return because(why, v.text, "holds a character that may not stand in a text");
    i += (size_t)n;
  }
  *out = arena_printf(a, "%s", v.text);
  return true;
}

static bool is_null(ConfigScalar v) { return !v.quoted && (!*v.text || strcmp(v.text, "~") == 0 || strcasecmp(v.text, "null") == 0); }

static int word_index(const char *const *words, const char *s) {
  for (int i = 0; words[i]; i++)
    if (strcmp(words[i], s) == 0) return i;
  return -1;
}

static bool set_ignored(const ConfigKey *k, ConfigScalar v, char why[CONFIG_WORDS]) {
  const char *text = is_null(v) ? "null" : v.text;
  if (!k->words || word_index(k->words, text) >= 0) return true;
  return because(why, text, "would change the model (%s)", k->help);
}

static bool set_number(const ConfigKey *k, void *to, const char *s, char why[CONFIG_WORDS]) {
  if (k->type == KEY_REAL) {
    double v;
    TRY(config_parse_real(s, &v, why));
    if (v < k->real_lo || (k->open_lo && v == k->real_lo)) return because(why, s, "is too small");
    if (v > k->real_hi || (k->open_hi && v == k->real_hi)) return because(why, s, "is too large");
    memcpy(to, &v, sizeof v);
    return true;
  }
  int64_t v;
  TRY((k->type == KEY_BYTES ? config_parse_bytes : config_parse_int)(s, &v, why));
  if (v < k->lo) return because(why, s, "is too small");
  if (v > k->hi) return because(why, s, "is too large");
  memcpy(to, &v, sizeof v);
  return true;
}

bool config_value_set(const ConfigKey *k, Config *c, ConfigScalar v, Arena *a, char why[CONFIG_WORDS]) {
  void *to = (char *)c + k->offset;
  if (strlen(v.text) != v.length) return because(why, v.text, "goes on after a zero byte");
  if (k->type == KEY_IGNORED) return set_ignored(k, v, why);
  if (is_null(v)) {
    if (!k->null_is_zero) return because(why, *v.text ? v.text : "null", "is no value");
    v.text = "0";
  }
  if (k->type == KEY_STRING) return set_text(v, to, a, why);
  if (k->type == KEY_ENUM) {
    int i = word_index(k->words, v.text);
    if (i < 0) return because(why, v.text, "is unknown");
    memcpy(to, &i, sizeof i);
    return true;
  }
  if (v.quoted) return because(why, v.text, "is text, since it stands in quotes");
  if (k->type != KEY_BOOL) return set_number(k, to, v.text, why);
  bool yes = strcmp(v.text, "true") == 0;
  if (!yes && strcmp(v.text, "false") != 0) return because(why, v.text, "is neither true nor false");
  memcpy(to, &yes, sizeof yes);
  return true;
}

/* Fewest digits that read back to the same bits. The point keeps readers of YAML 1.1 from taking 1e-05 for a text. */
static int write_real(double v, FILE *f) {
  char s[64];
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(s, sizeof s, "%.*g", digits, v);
    if (strtod(s, NULL) == v) break;
  }
  char *e = strchr(s, 'e');
  return e && !strchr(s, '.') ? fprintf(f, "%.*s.0%s", (int)(e - s), s, e) : fprintf(f, "%s", s);
}

static int write_bytes(int64_t v, FILE *f) {
  int i = 0;
  while (v % units[i].bytes || (v == 0 && units[i].bytes > 1)) i++;
  return fprintf(f, "%" PRId64 "%s", v / units[i].bytes, units[i].name);
}

static int write_text(const char *s, FILE *f) {
  int n = fprintf(f, "\"");
  for (; *s; s++) n += fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
  return n + fprintf(f, "\"");
}

int config_value_write(const ConfigKey *k, const Config *c, FILE *f) {
  const void *at = (const char *)c + k->offset;
  switch (k->type) {
  case KEY_INT:
    return fprintf(f, "%" PRId64, *(const int64_t *)at);
  case KEY_REAL:
    return write_real(*(const double *)at, f);
  case KEY_BOOL:
    return fprintf(f, "%s", *(const bool *)at ? "true" : "false");
  case KEY_STRING:
    return write_text(*(char *const *)at, f);
  case KEY_ENUM:
    return fprintf(f, "%s", k->words[*(const unsigned *)at]);
  case KEY_BYTES:
    return write_bytes(*(const int64_t *)at, f);
  case KEY_IGNORED:
    break;
  }
  return 0;
}

static void list_words(const char *const *words, char out[CONFIG_WORDS]) {
  size_t n = 0;
  for (int i = 0; words[i]; i++)
    n += (size_t)snprintf(out + n, CONFIG_WORDS - n, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
}

void config_value_allowed(const ConfigKey *k, char out[CONFIG_WORDS]) {
  int n = 0;
  switch (k->type) {
  case KEY_INT:
    snprintf(out, CONFIG_WORDS, "an integer from %" PRId64 " to %" PRId64, k->lo, k->hi);
    break;
  case KEY_REAL:
    n = snprintf(out, CONFIG_WORDS, "a number %s %g", k->open_lo ? ">" : ">=", k->real_lo);
    if (k->real_hi < DBL_MAX) snprintf(out + n, (size_t)(CONFIG_WORDS - n), " and %s %g", k->open_hi ? "<" : "<=", k->real_hi);
    break;
  case KEY_BOOL:
    snprintf(out, CONFIG_WORDS, "true or false");
    break;
  case KEY_STRING:
    snprintf(out, CONFIG_WORDS, "text");
    break;
  case KEY_BYTES:
    snprintf(out, CONFIG_WORDS, "bytes, such as 65536, 1e9, 512MiB or 2GiB");
    break;
  case KEY_ENUM:
    list_words(k->words, out);
    break;
  case KEY_IGNORED:
    if (k->words)
      list_words(k->words, out);
    else
      snprintf(out, CONFIG_WORDS, "anything");
    break;
  }
}
