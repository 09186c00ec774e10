#include "base/text.h"

/* How many bytes a character has that begins with b; 0: none does. */
static int utf8_length(uint8_t b) {
  if (b < 0x80) return 1;
  if (b >= 0xc2 && b <= 0xdf) return 2;
  if (b >= 0xe0 && b <= 0xef) return 3;
  return b >= 0xf0 && b <= 0xf4 ? 4 : 0;
}

/* May b be byte number i (from 1) after the first? No overlong forms, no surrogates, nothing above U+10FFFF, no C1 controls. */
static bool utf8_continues(uint8_t first, int i, uint8_t b) {
  uint8_t low = 0x80, high = 0xbf;
  if (i == 1) {
    if (first == 0xe0 || first == 0xc2) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  return b >= low && b <= high;
}

void text_end(TextOut *t) {
  for (int i = 0; i < t->n; i++) fprintf(t->f, "\\x%02x", t->part[i]);
  t->n = 0;
}

static void put_byte(TextOut *t, uint8_t b) {
  if (t->n && !utf8_continues(t->part[0], t->n, b)) text_end(t);
  bool control = t->n == 0 && ((b < 0x20 && b != '\n' && b != '\t') || b == 0x7f);
  t->part[t->n++] = b;
  if (control || !utf8_length(t->part[0])) {
    text_end(t);
  } else if (t->n == utf8_length(t->part[0])) {
    fwrite(t->part, 1, (size_t)t->n, t->f);
    t->n = 0;
  }
}

void text_put(TextOut *t, const void *bytes, size_t n) {
  if (!t->f) return;
  if (!t->escape) {
    fwrite(bytes, 1, n, t->f);
    return;
  }
  for (size_t i = 0; i < n; i++) put_byte(t, ((const uint8_t *)bytes)[i]);
}

void text_json(FILE *f, const char *text) {
  for (const uint8_t *b = (const uint8_t *)text; *b;) {
    int n = utf8_length(*b), k = 1;
    while (k < n && utf8_continues(*b, k, b[k])) k++;
    if (k != n)
      fputs("\\ufffd", f);
    else if (*b == '"' || *b == '\\')
      fprintf(f, "\\%c", *b);
    else if (*b < 0x20)
      fprintf(f, "\\u%04x", *b);
    else
      fwrite(b, 1, (size_t)n, f);
    b += k;
  }
}
