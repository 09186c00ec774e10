#include <string.h>

#include "config/config_table.h"

enum { COMMENT_COLUMN = 46 };

static bool new_section(int i) {
  if (i == 0) return true;
  const char *a = config_key(i - 1)->name, *b = config_key(i)->name;
  return strncmp(a, b, (size_t)config_section_length(b) + 1) != 0;
}

static const char *short_name(const ConfigKey *k) { return k->name + config_section_length(k->name) + 1; }

static bool is_missing(const ConfigDoc *d, int i) { return !config_key(i)->preset && !d->source[i].file; }

static void print_comment(const ConfigDoc *d, int i, int column, FILE *f) {
  ConfigSource s = d->source[i];
  fprintf(f, "%*s# ", column < COMMENT_COLUMN ? COMMENT_COLUMN - column : 1, "");
  if (!s.file)
    fputs("default", f);
  else if (s.line)
    fprintf(f, "%s:%d", s.file, s.line);
  else
    fputs(s.file, f);
}

static void print_keys(const ConfigDoc *d, FILE *f, bool comments) {
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    if (new_section(i)) fprintf(f, "%.*s:\n", config_section_length(k->name), k->name);
    if (k->type == KEY_IGNORED) continue;
    if (is_missing(d, i)) {
      if (comments) fprintf(f, "  # %s: required, not given\n", short_name(k));
      continue;
    }
    int column = fprintf(f, "  %s: ", short_name(k));
    column += config_value_write(k, &d->c, f);
    if (comments) print_comment(d, i, column, f);
    fputc('\n', f);
  }
}

void config_print(const ConfigDoc *d, FILE *f) { print_keys(d, f, true); }

char *config_text(const ConfigDoc *d, Arena *a) {
  enum { CHUNK = 1 << 16 };
  char *text = ARENA_NEW(a, char, CHUNK);
  FILE *f = fmemopen(text, CHUNK - 1, "w");
  CHECK(f, "fmemopen");
  print_keys(d, f, false);
  CHECK(fclose(f) == 0, "the configuration's text is longer than %d bytes", CHUNK);
  return text;
}

static const char *type_name(KeyType t) {
  static const char *const names[] = {[KEY_INT] = "integer", [KEY_REAL] = "real",   [KEY_BOOL] = "bool",      [KEY_STRING] = "text",
                                      [KEY_ENUM] = "word",   [KEY_BYTES] = "bytes", [KEY_IGNORED] = "ignored"};
  return names[t];
}

void config_print_reference(FILE *f) {
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    char allowed[CONFIG_WORDS];
    config_value_allowed(k, allowed);
    if (new_section(i))
      fprintf(f, "%s### `%.*s:`\n\n| key | type | allowed | default | meaning |\n|---|---|---|---|---|\n", i ? "\n" : "",
              config_section_length(k->name), k->name);
    const char *preset = !k->preset ? "required" : *k->preset ? k->preset : k->type == KEY_IGNORED ? "" : "empty";
    fprintf(f, "| `%s` | %s | %s | %s | %s |\n", short_name(k), type_name(k->type), allowed, preset, k->help);
  }
}
