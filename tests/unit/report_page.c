/* Numbers, text and odd data of the report's plots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/plot.h"

static void numbers_are_short(void **state) {
  (void)state;
  static const struct {
    double v;
    const char *text;
  } known[] = {{0, "0"},         {1, "1"},      {0.25, "0.25"},  {2.16034, "2.16"}, {123.456, "123.5"},     {9876, "9876"},
               {12345, "12.3k"}, {-5e6, "-5M"}, {4.1e9, "4.1G"}, {3e-4, "3e-4"},    {-1.25e-7, "-1.25e-7"}, {0.001, "0.001"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    char buf[32];
    assert_string_equal(plot_number(known[i].v, buf, sizeof buf), known[i].text);
  }
}

static void text_is_escaped(void **state) {
  (void)state;
  char got[256] = {0};
  FILE *f = fmemopen(got, sizeof got, "w");
  html_text(f, "<b> & \"c\" 'd'");
  fclose(f);
  assert_string_equal(got, "&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
}

static char *plotted(Arena *a, Plot p, int64_t first, int64_t last) {
  enum { ROOM = 1 << 18 };
  char *text = arena_alloc(a, ROOM, 1);
  FILE *f = fmemopen(text, ROOM, "w");
  plot_write(f, a, &p, first, last);
  fclose(f);
  return text;
}

static int count(const char *text, const char *what) {
  int n = 0;
  for (; (text = strstr(text, what)); text++) n++;
  return n;
}

/* Nothing to show, one point, a flat line, many points: drawn once each, and no coordinate is NaN. */
static void odd_series(void **state) {
  (void)state;
  enum { N = 5000 };
  Arena a;
  arena_open(&a, "plot", (size_t)64 << 20);
  JsonlPoint *p = ARENA_NEW(&a, JsonlPoint, N);
  for (int i = 0; i < N; i++) p[i] = (JsonlPoint){i + 1, 3};
  assert_string_equal(plotted(&a, (Plot){.title = "t", .series = {{.name = "s", .p = p}}, .n = 1}, 1, 9), "");
  char *one = plotted(&a, (Plot){.title = "t", .series = {{.name = "s", .p = p, .n = 1}}, .n = 1}, 1, 1);
  assert_int_equal(count(one, "<circle"), 1);
  char *flat = plotted(&a, (Plot){.title = "t", .series = {{.name = "s", .p = p, .n = N, .smoothed = true}}, .n = 1}, 1, N);
  assert_int_equal(count(flat, "<polyline"), 2); /* themselves, and smoothed */
  assert_int_equal(count(flat, "<polygon"), 1);
  for (int i = 0; i < N; i++) p[i].v = i % 7 == 0 ? 1e-6 : 10;
  char *steep = plotted(&a, (Plot){.title = "t", .series = {{.name = "s", .p = p, .n = N}}, .n = 1}, 1, N);
  assert_int_equal(count(steep, "logarithmic"), 1);
  assert_int_equal(
      count(one, "nan") + count(flat, "nan") + count(steep, "nan") + count(one, "inf") + count(flat, "inf") + count(steep, "inf"), 0);
  arena_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_short), cmocka_unit_test(text_is_escaped), cmocka_unit_test(odd_series)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
