#include "train/jsonl.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"

enum { PATH_TEXT = 512, NAME_SLOTS = 1 << 16 };

typedef struct Reader {
  Jsonl *j;
  Arena *a;
  const char **name; /* [NAME_SLOTS] paths seen, open addressing */
  int n_name;
  int64_t iteration;
} Reader;

/* ---- a file's bytes -------------------------------------------------------------------------------------------------------------- */
static char *read_file(Arena *a, const char *path, size_t *n, Err *e) {
  struct stat st;
  FILE *f = fopen(path, "rb");
  if (!f || fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
    err_set(e, ERR_DATA, "%s: %s", path, f ? "not a regular file" : strerror(errno));
    if (f) fclose(f);
    return NULL;
  }
  char *text = arena_alloc(a, (size_t)st.st_size + 1, 1);
  *n = fread(text, 1, (size_t)st.st_size, f);
  fclose(f);
  return text;
}

/* A field begins after one of these, so there are never more. */
static int64_t count_fields(const char *text, size_t n) {
  int64_t k = 0;
  for (size_t i = 0; i < n; i++) k += text[i] == '{' || text[i] == '[' || text[i] == ',';
  return k;
}

/* ---- fields ---------------------------------------------------------------------------------------------------------------------- */
static const char *intern(Reader *r, const char *path) {
  size_t at = hash_name(path) % NAME_SLOTS;
  for (; r->name[at]; at = (at + 1) % NAME_SLOTS)
    if (!strcmp(r->name[at], path)) return r->name[at];
  const char *copy = arena_printf(r->a, "%s", path);
  if (r->n_name < NAME_SLOTS / 2) r->name[at] = copy, r->n_name++;
  return copy;
}

static void add_field(Reader *r, const char *path, const json_t *v) {
  JsonlField *f = &r->j->field[r->j->n];
  *f = (JsonlField){.iteration = r->iteration, .path = intern(r, path), .number = NAN, .order = r->j->n};
  if (json_is_number(v)) f->number = json_number_value(v);
  if (json_is_boolean(v)) f->number = json_is_true(v);
  if (json_is_string(v)) f->text = arena_printf(r->a, "%s", json_string_value(v));
  r->j->n++;
}

static bool join(char out[PATH_TEXT], const char *path, const char *key) {
  return snprintf(out, PATH_TEXT, "%s%s%s", path, *path ? "/" : "", key) < PATH_TEXT;
}

/* Depth is that of jansson's own limit, and of paths. */
static bool add_value(Reader *r, const char *path, const json_t *v) {
  char at[PATH_TEXT], number[32];
  if (json_is_object(v)) {
    for (void *i = json_object_iter((json_t *)(uintptr_t)v); i; i = json_object_iter_next((json_t *)(uintptr_t)v, i))
      if (!join(at, path, json_object_iter_key(i)) || !add_value(r, at, json_object_iter_value(i))) return false;
    return true;
  }
  if (json_is_array(v)) {
    for (size_t i = 0; i < json_array_size(v); i++) {
      snprintf(number, sizeof number, "%zu", i);
      if (!join(at, path, number) || !add_value(r, at, json_array_get(v, i))) return false;
    }
    return true;
  }
  if (strcmp(path, "iteration")) add_field(r, path, v);
  return true;
}

/* ---- lines ----------------------------------------------------------------------------------------------------------------------- */
static bool read_line(Reader *r, const char *text, size_t n, int64_t line, bool last, Err *e) {
  json_error_t why;
  if (strspn(text, " \t\r") >= n) return true;
  json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
  if (!v && last) return true;
  if (!v) return err_set(e, ERR_DATA, "%s:%lld: not a line of JSON: %s", r->j->file, (long long)line, why.text);
  const json_t *it = json_object_get(v, "iteration");
  r->iteration = json_is_integer(it) ? (int64_t)json_integer_value(it) : 0;
  bool ok = !json_is_integer(it) || add_value(r, "", v);
  json_decref(v);
  return ok || err_set(e, ERR_DATA, "%s:%lld: a name is longer than %d bytes", r->j->file, (long long)line, PATH_TEXT);
}

static int by_step_and_path(const void *a, const void *b) {
  const JsonlField *x = a, *y = b;
  if (x->iteration != y->iteration) return x->iteration < y->iteration ? -1 : 1;
  int c = x->path == y->path ? 0 : strcmp(x->path, y->path);
  return c ? c : x->order < y->order ? -1 : 1;
}

static void sort_fields(Jsonl *j) {
  qsort(j->field, (size_t)j->n, sizeof *j->field, by_step_and_path);
  int64_t n = 0;
  for (int64_t i = 0; i < j->n; i++) {
    bool again = i + 1 < j->n && j->field[i + 1].iteration == j->field[i].iteration && !strcmp(j->field[i + 1].path, j->field[i].path);
    if (!again) j->field[n++] = j->field[i];
  }
  j->n = n;
}

bool jsonl_read(Jsonl *j, Arena *a, const char *file, Err *e) {
  size_t n = 0;
  *j = (Jsonl){.file = file};
  char *text = read_file(a, file, &n, e);
  if (!text) return false;
  Reader r = {.j = j, .a = a, .name = ARENA_NEW(a, const char *, NAME_SLOTS)};
  j->field = ARENA_NEW(a, JsonlField, count_fields(text, n) + 1);
  int64_t line = 1;
  for (size_t at = 0; at < n; line++) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t length = end ? (size_t)(end - text) - at : n - at;
    TRY(read_line(&r, text + at, length, line, !end, e));
    at += length + 1;
  }
  if (!j->n) return err_set(e, ERR_DATA, "%s: no line with an iteration: not a file of log.metrics", file);
  sort_fields(j);
  j->first = j->field[0].iteration, j->last = j->field[j->n - 1].iteration;
  return true;
}

int64_t jsonl_series(const Jsonl *j, Arena *a, const char *path, JsonlPoint **out) {
  int64_t n = 0;
  for (int64_t i = 0; i < j->n; i++) n += !strcmp(j->field[i].path, path);
  *out = ARENA_NEW(a, JsonlPoint, n + 1);
  n = 0;
  for (int64_t i = 0; i < j->n; i++)
    if (!strcmp(j->field[i].path, path) && isfinite(j->field[i].number))
      (*out)[n++] = (JsonlPoint){j->field[i].iteration, j->field[i].number};
  return n;
}
