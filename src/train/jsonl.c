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
  Err torn; /* of a line that is none: forgiven where a run begins next, or nothing does */
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
/* A run begins at `first`: it goes on from what was before. */
static void begin_run(Reader *r, int64_t first) {
  Jsonl *j = r->j;
  int64_t n = 0;
  for (int64_t i = 0; i < j->n; i++) {
    int64_t it = j->field[i].iteration;
    if (it < first) {
      j->field[n++] = j->field[i];
      continue;
    }
    if (!j->left_to || it < j->left_from) j->left_from = it;
    if (it > j->left_to) j->left_to = it;
  }
  j->n = n;
  j->n_run++;
}

static bool read_object(Reader *r, const json_t *v) {
  const json_t *it = json_object_get(v, "iteration"), *event = json_object_get(v, "event"), *first = json_object_get(v, "first_iteration");
  if (json_is_integer(first) && json_is_string(event) && !strcmp(json_string_value(event), "run")) {
    begin_run(r, (int64_t)json_integer_value(first));
    r->torn.code = ERR_NONE;
    return true;
  }
  r->iteration = json_is_integer(it) ? (int64_t)json_integer_value(it) : 0;
  return !json_is_integer(it) || add_value(r, "", v);
}

static bool read_line(Reader *r, const char *text, size_t n, int64_t line, Err *e) {
  json_error_t why;
  if (strspn(text, " \t\r") >= n) return true;
  json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
  if (v) {
    bool ok = read_object(r, v);
    json_decref(v);
    if (!ok) return err_set(e, ERR_DATA, "%s:%lld: a name is longer than %d bytes", r->j->file, (long long)line, PATH_TEXT);
  }
  if (r->torn.code != ERR_NONE) return err_set(e, r->torn.code, "%s", r->torn.text);
  if (!v) err_set(&r->torn, ERR_DATA, "%s:%lld: not a line of JSON: %s", r->j->file, (long long)line, why.text);
  return true;
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
    TRY(read_line(&r, text + at, length, line, e));
    at += length + 1;
    if (end && at == n && r.torn.code != ERR_NONE) return err_set(e, r.torn.code, "%s", r.torn.text);
  }
  if (!j->n && j->n_run) return err_set(e, ERR_DATA, "%s: the run in it has not logged a step", file);
  if (!j->n) return err_set(e, ERR_DATA, "%s: no line with an iteration: not a file of log.metrics", file);
  sort_fields(j);
  j->first = j->field[0].iteration, j->last = j->field[j->n - 1].iteration;
  return true;
}

void jsonl_say_left(const Jsonl *j, FILE *out) {
  if (j->left_to)
    fprintf(out, "%s: %lld runs; steps %lld to %lld of earlier ones are left out: a later one began before them\n", j->file,
            (long long)j->n_run, (long long)j->left_from, (long long)j->left_to);
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
