#include <string.h>

#include "config/config_table.h"

static int min_int(int a, int b) { return a < b ? a : b; }

/* Insertions, deletions, exchanges that turn a into b (Levenshtein). */
static int edit_distance(const char *a, const char *b) {
  int row[CONFIG_NAME + 1], n = min_int((int)strlen(b), CONFIG_NAME);
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 1; a[i - 1]; i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= n; j++) {
      int change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = min_int(change, min_int(row[j], row[j - 1]) + 1);
    }
  }
  return row[n];
}

static const char *last_part(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

/* Sections that are one, or where `name` has none of that name, one a letter or two apart. */
static bool same_section(const char *name, const char *key) {
  char a[CONFIG_NAME], b[CONFIG_NAME];
  int length = config_section_length(name);
  snprintf(a, sizeof a, "%.*s", length, name);
  snprintf(b, sizeof b, "%.*s", config_section_length(key), key);
  return edit_distance(a, b) <= (config_has_section(name, length) ? 0 : 2);
}

/* Words spelled nearly alike: in the same section a letter and one in five, or one the beginning of the other; elsewhere one in eight. */
static bool comes_near(const char *a, const char *b, int distance, bool same) {
  int n = min_int((int)strlen(a), (int)strlen(b));
  if (same && n >= 4 && !strncmp(a, b, (size_t)n)) return true;
  return distance <= (same ? 1 + n / 5 : n / 8);
}

/* The key that `name` may be meant for: the same word in another section, else what comes near, first in the same section; NULL: nothing does. */
static const char *nearest_key(const char *name) {
  enum { ELSEWHERE = CONFIG_NAME };
  const char *best = NULL, *word = last_part(name);
  int best_cost = 1 << 30;
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    bool same = same_section(name, k->name);
    int distance = edit_distance(word, last_part(k->name));
    int cost = distance == 0 ? !same + (k->type == KEY_IGNORED) : 2 * distance + (same ? 1 : ELSEWHERE);
    if (k->type == KEY_IGNORED && distance > 0) continue;
    if (cost < best_cost && comes_near(word, last_part(k->name), distance, same)) best = k->name, best_cost = cost;
  }
  return best;
}

static void list_keys(const char *section, int length, char *out, size_t size) {
  size_t n = 0;
  out[0] = '\0';
  for (int i = 0; i < config_n_keys(); i++) {
    const char *name = config_key(i)->name;
    if (config_key(i)->type == KEY_IGNORED || config_section_length(name) != length || memcmp(name, section, (size_t)length) != 0) continue;
    n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", last_part(name));
  }
}

static void list_sections(char *out, size_t size) {
  size_t n = 0;
  const char *last = "";
  for (int i = 0; i < config_n_keys(); i++) {
    const char *name = config_key(i)->name;
    int length = config_section_length(name);
    if (strncmp(last, name, (size_t)length + 1) == 0) continue;
    n += (size_t)snprintf(out + n, size - n, "%s%.*s", n ? ", " : "", length, name);
    last = name;
  }
}

void config_explain_key(const char *name, char *out, size_t size) {
  const char *near = nearest_key(name);
  int length = config_section_length(name);
  char list[ERR_TEXT / 2];
  if (config_has_section(name, length) && !name[length]) {
    list_keys(name, length, list, sizeof list);
    snprintf(out, size, "is a section, not a key; its keys: %s", list);
  } else if (near) {
    snprintf(out, size, "unknown key; did you mean %s?", near);
  } else if (config_has_section(name, length)) {
    list_keys(name, length, list, sizeof list);
    snprintf(out, size, "unknown key; keys of section %.*s: %s", length, name, list);
  } else {
    list_sections(list, sizeof list);
    snprintf(out, size, "unknown section; sections: %s", list);
  }
}

void config_explain_section(const char *name, char *text, size_t size) {
  const char *best = NULL;
  int best_cost = 3;
  for (int i = 0; i < config_n_keys(); i++) {
    const char *key = config_key(i)->name;
    char section[CONFIG_NAME];
    snprintf(section, sizeof section, "%.*s", config_section_length(key), key);
    int cost = edit_distance(name, section);
    if (cost < best_cost) best = key, best_cost = cost;
  }
  const char *near = best ? NULL : nearest_key(name);
  char list[ERR_TEXT / 2];
  list_sections(list, sizeof list);
  if (best)
    snprintf(text, size, "unknown section; did you mean %.*s?", config_section_length(best), best);
  else if (near)
    snprintf(text, size, "unknown section; did you mean the key %s?", near);
  else
    snprintf(text, size, "unknown section; sections: %s", list);
}
