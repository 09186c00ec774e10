/* What a terminal is shown of arbitrary bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"

/* In one piece and byte by byte. */
static void shows(bool escape, const char *bytes, const char *want) {
  for (int pieces = 0; pieces < 2; pieces++) {
    char got[256] = {0};
    FILE *f = fmemopen(got, sizeof got, "w");
    TextOut t = {.f = f, .escape = escape};
    size_t n = strlen(bytes), step = pieces ? 1 : n;
    for (size_t i = 0; i < n; i += step) text_put(&t, bytes + i, step);
    text_end(&t);
    fclose(f);
    assert_string_equal(got, want);
  }
}

static void text_stays(void **state) {
  (void)state;
  shows(true, "a line\n\tand one \\ more ~", "a line\n\tand one \\ more ~");
  shows(true, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd");
  shows(false, "\x1b[31m\xff\x80\r", "\x1b[31m\xff\x80\r");
}

static void controls_are_escaped(void **state) {
  (void)state;
  shows(true, "a\x1b[2J\x07\r\x7f", "a\\x1b[2J\\x07\\x0d\\x7f");
  shows(true, "\xc2\x9b", "\\xc2\\x9b"); /* a C1 control, CSI */
  shows(true, "\xc2\xa0", "\xc2\xa0");
}

static void broken_utf8_is_escaped(void **state) {
  (void)state;
  shows(true, "\x80 \xbf\xff", "\\x80 \\xbf\\xff");
  shows(true, "\xc0\xaf", "\\xc0\\xaf");          /* overlong */
  shows(true, "\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"); /* overlong */
  shows(true, "\xed\xa0\x80", "\\xed\\xa0\\x80"); /* a surrogate */
  shows(true, "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
  shows(true, "\xe2\x82z\xe2\x82", "\\xe2\\x82z\\xe2\\x82"); /* cut short by a letter, and by the end */
  shows(true, "\xe2\xc3\xa9", "\\xe2\xc3\xa9");
}

static void strings_of_json(void **state) {
  (void)state;
  static const struct {
    const char *text, *json;
  } say[] = {{"a/b (1.5 s) \xc3\xa9", "a/b (1.5 s) \xc3\xa9"},
             {"\"q\" \\ \n\t\x1b", "\\\"q\\\" \\\\ \\u000a\\u0009\\u001b"},
             {"\xff \xe2\x82 \xe2\x82", "\\ufffd \\ufffd \\ufffd"},
             {"", ""}};
  for (size_t i = 0; i < sizeof say / sizeof *say; i++) {
    char got[256] = {0};
    FILE *f = fmemopen(got, sizeof got, "w");
    text_json(f, say[i].text);
    fclose(f);
    assert_string_equal(got, say[i].json);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(text_stays), cmocka_unit_test(controls_are_escaped),
                                     cmocka_unit_test(broken_utf8_is_escaped), cmocka_unit_test(strings_of_json)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
