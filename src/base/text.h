/* Bytes of unknown origin for people's eyes: text is shown as it is, what a terminal would obey or cannot show as \xNN. */
#ifndef ETALON_TEXT_H
#define ETALON_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* f NULL: nothing is written. escape false: bytes as they are, for files and pipes. Of UTF-8, valid characters other than controls are
 * text; newline and tab too. A character may come in pieces. */
typedef struct TextOut { FILE *f; bool escape; uint8_t part[4]; int n /* bytes of an unfinished character */; } TextOut;
void text_put(TextOut *t, const void *bytes, size_t n);
void text_end(TextOut *t);         /* shows what is left of an unfinished character */
/* What stands between the quotes of a JSON string. Bytes that are no UTF-8 become U+FFFD. */
void text_json(FILE *f, const char *text);
#endif
