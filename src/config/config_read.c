#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "config/config_table.h"

enum { MAX_FILE = 1 << 20, MAX_SECTIONS = 32 };

typedef struct Reader {
  ConfigDoc *doc;
  Err *err;
  yaml_parser_t parser;
  yaml_event_t event;                /* the current one */
  const char *text;                  /* the whole file */
  const char *section[MAX_SECTIONS]; /* seen so far: names in the table, and where */
  int section_line[MAX_SECTIONS], n_sections;
} Reader;

static int line_of(const yaml_event_t *ev) { return (int)ev->start_mark.line + 1; }

static bool problem(Reader *r, int line, const char *key, const char *text) {
  if (key) return err_set(r->err, ERR_CONFIG, "%s:%d: %s: %s", r->doc->file, line, key, text);
  return err_set(r->err, ERR_CONFIG, "%s:%d: %s", r->doc->file, line, text);
}

/* ---- events ---- */

static int line_at(const char *text, size_t offset) {
  int line = 1;
  for (size_t i = 0; i < offset && text[i]; i++) line += text[i] == '\n';
  return line;
}

/* A pasted config.json: YAML takes a brace at the margin for a key. */
static bool brace_at_margin(const Reader *r) {
  const yaml_parser_t *p = &r->parser;
  if (!p->context || strcmp(p->context, "while scanning a simple key") != 0) return false;
  const char *line = r->text;
  for (size_t i = 0; i < p->context_mark.line && line; i++) line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
  return line && *line == '{';
}

static bool yaml_problem(Reader *r) {
  const yaml_parser_t *p = &r->parser;
  if (brace_at_margin(r))
    return err_set(r->err, ERR_CONFIG,
                   "%s:%d: a line begins with \"{\": put the brace behind its section's name, as in \"model: {\", or indent it",
                   r->doc->file, (int)p->context_mark.line + 1);
  bool reader = p->error == YAML_READER_ERROR;
  int line = reader ? line_at(r->text, p->problem_offset) : (int)p->problem_mark.line + 1;
  const char *what = p->problem ? p->problem : "unknown error";
  const char *hint = strcmp(what, "found character that cannot start any token") == 0 ? " (a tab? indent with spaces)" : "";
  return err_set(r->err, ERR_CONFIG, "%s:%d: not valid YAML: %s%s", r->doc->file, line, what, hint);
}

static const char *anchor_of(const yaml_event_t *ev) {
  switch (ev->type) {
  case YAML_ALIAS_EVENT:
    return (const char *)ev->data.alias.anchor;
  case YAML_SCALAR_EVENT:
    return (const char *)ev->data.scalar.anchor;
  case YAML_SEQUENCE_START_EVENT:
    return (const char *)ev->data.sequence_start.anchor;
  case YAML_MAPPING_START_EVENT:
    return (const char *)ev->data.mapping_start.anchor;
  default:
    return NULL;
  }
}

static const char *tag_of(const yaml_event_t *ev) {
  switch (ev->type) {
  case YAML_SCALAR_EVENT:
    return (const char *)ev->data.scalar.tag;
  case YAML_SEQUENCE_START_EVENT:
    return (const char *)ev->data.sequence_start.tag;
  case YAML_MAPPING_START_EVENT:
    return (const char *)ev->data.mapping_start.tag;
  default:
    return NULL;
  }
}

static bool next(Reader *r) {
  yaml_event_delete(&r->event);
  if (!yaml_parser_parse(&r->parser, &r->event)) return yaml_problem(r);
  if (anchor_of(&r->event))
    return problem(r, line_of(&r->event), NULL, "anchors and aliases (& and *) are not allowed; write the value out");
  if (tag_of(&r->event)) return problem(r, line_of(&r->event), NULL, "tags (!) are not allowed; write the plain value");
  return true;
}

/* Passes over one value, however nested; the current event is its first. */
static bool skip_value(Reader *r) {
  int depth = 0;
  for (;;) {
    yaml_event_type_t t = r->event.type;
    depth += (t == YAML_MAPPING_START_EVENT || t == YAML_SEQUENCE_START_EVENT);
    depth -= (t == YAML_MAPPING_END_EVENT || t == YAML_SEQUENCE_END_EVENT);
    if (depth == 0) return true;
    TRY(next(r));
  }
}

/* ---- keys ---- */

/* The current event is a key; leaves its text in `name`. */
static bool read_name(Reader *r, const char *section, char name[CONFIG_NAME]) {
  const yaml_event_t *ev = &r->event;
  if (ev->type != YAML_SCALAR_EVENT) return problem(r, line_of(ev), section, "a key must be a word");
  int n = snprintf(name, CONFIG_NAME, "%s%s%s", section ? section : "", section ? "." : "", (const char *)ev->data.scalar.value);
  bool whole = strlen((const char *)ev->data.scalar.value) == ev->data.scalar.length;
  if (n >= CONFIG_NAME || !whole || ev->data.scalar.length == 0) return problem(r, line_of(ev), section, "a key must be a word");
  return true;
}

/* Steps to the next key of a mapping, or past its end. */
static bool next_key(Reader *r, bool *end) {
  TRY(next(r));
  *end = r->event.type == YAML_MAPPING_END_EVENT;
  return true;
}

/* ---- values ---- */

static bool store(Reader *r, int key, ConfigScalar v, int line) {
  const ConfigKey *k = config_key(key);
  char why[CONFIG_WORDS], allowed[CONFIG_WORDS], text[2 * CONFIG_WORDS + 16];
  if (config_value_set(k, &r->doc->c, v, r->doc->arena, why)) return true;
  config_value_allowed(k, allowed);
  snprintf(text, sizeof text, "%s; allowed: %s", why, allowed);
  return problem(r, line, k->name, text);
}

static bool read_value(Reader *r, int key, int line);

/* Hugging Face's mappings of rotary positions: newer files have rope_theta there. What would scale them is refused. */
static bool is_rope(const ConfigKey *k) { return !strcmp(k->name, "model.rope_parameters") || !strcmp(k->name, "model.rope_scaling"); }
static bool read_rope_entry(Reader *r, const ConfigKey *group, const char *name, int line) {
  static const struct {
    const char *name, *allowed[4];
  } plain[] = {{"rope_type", {"default", "null"}}, {"type", {"default", "null"}}, {"partial_rotary_factor", {"1", "1.0", "null"}}};
  const yaml_event_t *ev = &r->event;
  const char *value = ev->type == YAML_SCALAR_EVENT ? (const char *)ev->data.scalar.value : "a list or mapping", *allowed = "null";
  char key[2 * CONFIG_NAME], text[2 * CONFIG_NAME + 128];
  if (!strcmp(name, "rope_theta")) return read_value(r, config_find("model.rope_theta"), line);
  bool fine = !strcmp(value, "null");
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    if (strcmp(name, plain[i].name) != 0) continue;
    allowed = plain[i].allowed[0];
    for (int n = 0; plain[i].allowed[n]; n++) fine = fine || !strcmp(value, plain[i].allowed[n]);
  }
  if (fine) return true;
  snprintf(key, sizeof key, "%s.%s", group->name, name);
  snprintf(text, sizeof text, "\"%.120s\" would change the model (scaled rotary positions are not in this version); allowed: %s", value,
           allowed);
  return problem(r, line, key, text);
}
static bool read_rope(Reader *r, const ConfigKey *group) {
  for (;;) {
    char name[CONFIG_NAME];
    bool end;
    TRY(next_key(r, &end));
    if (end) return true;
    TRY(read_name(r, NULL, name));
    int line = line_of(&r->event);
    TRY(next(r));
    TRY(read_rope_entry(r, group, name, line));
  }
}

static bool read_value(Reader *r, int key, int line) {
  const ConfigKey *k = config_key(key);
  ConfigSource *source = &r->doc->source[key];
  char allowed[CONFIG_WORDS], text[2 * CONFIG_WORDS + 64];
  if (source->file) {
    snprintf(text, sizeof text, "given twice; first on line %d", source->line);
    return problem(r, line, k->name, text);
  }
  *source = (ConfigSource){.file = r->doc->file, .line = line};
  const yaml_event_t *ev = &r->event;
  if (ev->type == YAML_SCALAR_EVENT) {
    bool quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return store(r, key, (ConfigScalar){(const char *)ev->data.scalar.value, ev->data.scalar.length, quoted}, line_of(ev));
  }
  if (k->type == KEY_IGNORED && !k->words) return skip_value(r);
  if (ev->type == YAML_MAPPING_START_EVENT && is_rope(k)) return read_rope(r, k);
  config_value_allowed(k, allowed);
  const char *what = ev->type == YAML_MAPPING_START_EVENT ? "mapping" : "list";
  if (k->type == KEY_IGNORED)
    snprintf(text, sizeof text, "a %s would change the model (%s); allowed: %s", what, k->help, allowed);
  else
    snprintf(text, sizeof text, "a %s stands where one value is expected; allowed: %s", what, allowed);
  return problem(r, line_of(ev), k->name, text);
}

static bool read_entry(Reader *r, const char *section) {
  char name[CONFIG_NAME], text[ERR_TEXT];
  TRY(read_name(r, section, name));
  int line = line_of(&r->event), key = config_find(name);
  if (key < 0) {
    config_explain_key(name, text, sizeof text);
    return problem(r, line, name, text);
  }
  TRY(next(r));
  return read_value(r, key, line);
}

static bool read_section(Reader *r, const char *section) {
  const yaml_event_t *ev = &r->event;
  if (ev->type == YAML_SCALAR_EVENT && ev->data.scalar.length == 0 && ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) return true;
  if (ev->type != YAML_MAPPING_START_EVENT)
    return problem(r, line_of(ev), section, "is a section: a mapping of keys to values is expected, indented on the lines below");
  for (;;) {
    bool end;
    TRY(next_key(r, &end));
    if (end) return true;
    TRY(read_entry(r, section));
  }
}

static bool note_section(Reader *r, const char *name, int line) {
  for (int i = 0; i < r->n_sections; i++) {
    char text[64];
    if (strcmp(r->section[i], name) != 0) continue;
    snprintf(text, sizeof text, "section given twice; first on line %d", r->section_line[i]);
    return problem(r, line, name, text);
  }
  CHECK(r->n_sections < MAX_SECTIONS, "more than %d sections", MAX_SECTIONS);
  r->section[r->n_sections] = arena_printf(r->doc->arena, "%s", name);
  r->section_line[r->n_sections++] = line;
  return true;
}

static bool read_root_entry(Reader *r) {
  char name[CONFIG_NAME], text[ERR_TEXT];
  TRY(read_name(r, NULL, name));
  int line = line_of(&r->event);
  if (!config_has_section(name, (int)strlen(name))) {
    config_explain_section(name, text, sizeof text);
    return problem(r, line, name, text);
  }
  TRY(note_section(r, name, line));
  TRY(next(r));
  return read_section(r, name);
}

static bool read_root(Reader *r) {
  if (r->event.type != YAML_MAPPING_START_EVENT)
    return problem(r, line_of(&r->event), NULL, "not a configuration: sections such as \"model:\" are expected");
  for (;;) {
    bool end;
    TRY(next_key(r, &end));
    if (end) return true;
    TRY(read_root_entry(r));
  }
}

static bool read_stream(Reader *r) {
  TRY(next(r)); /* stream start */
  TRY(next(r));
  if (r->event.type == YAML_STREAM_END_EVENT) return problem(r, 1, NULL, "the file is empty; sections such as \"model:\" are expected");
  TRY(next(r)); /* past document start */
  TRY(read_root(r));
  TRY(next(r)); /* document end */
  TRY(next(r));
  if (r->event.type != YAML_STREAM_END_EVENT) return problem(r, line_of(&r->event), NULL, "a second document starts here; one is expected");
  return true;
}

/* ---- command line ---- */

static bool apply_set(ConfigDoc *d, const char *set, Err *e) {
  const char *eq = strchr(set, '=');
  char name[CONFIG_NAME], why[ERR_TEXT], allowed[CONFIG_WORDS];
  if (!eq || eq == set || eq - set >= CONFIG_NAME)
    return err_set(e, ERR_CONFIG, "--set: \"%.200s\" is not KEY=VALUE, as in optimizer.lr=3e-4", set);
  snprintf(name, sizeof name, "%.*s", (int)(eq - set), set);
  int key = config_find(name);
  if (key < 0) {
    config_explain_key(name, why, sizeof why);
    return err_set(e, ERR_CONFIG, "--set: %s: %s", name, why);
  }
  const ConfigKey *k = config_key(key);
  ConfigScalar v = {eq + 1, strlen(eq + 1), k->type == KEY_STRING};
  if (!config_value_set(k, &d->c, v, d->arena, why)) {
    config_value_allowed(k, allowed);
    return err_set(e, ERR_CONFIG, "--set: %s: %s; allowed: %s", name, why, allowed);
  }
  d->source[key] = (ConfigSource){.file = "--set", .line = 0};
  return true;
}

/* ---- whole ---- */

static void set_defaults(ConfigDoc *d, Arena *a, const char *file) {
  *d = (ConfigDoc){.arena = a, .file = file ? arena_printf(a, "%s", file) : NULL, .source = ARENA_NEW(a, ConfigSource, config_n_keys())};
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    char why[CONFIG_WORDS];
    if (!k->preset || k->type == KEY_IGNORED) continue;
    ConfigScalar v = {k->preset, strlen(k->preset), k->type == KEY_STRING};
    CHECK(config_value_set(k, &d->c, v, a, why), "default of %s: %s", k->name, why);
  }
}

bool config_check_required(const ConfigDoc *d, Err *e) {
  const ConfigKey *first = NULL;
  char others[ERR_TEXT / 2] = "", allowed[CONFIG_WORDS];
  size_t n = 0;
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    if (k->preset || d->source[i].file) continue;
    if (first)
      n += (size_t)snprintf(others + n, sizeof others - n, "%s%s", n ? ", " : "; also missing: ", k->name);
    else
      first = k;
  }
  if (!first) return true;
  config_value_allowed(first, allowed);
  return err_set(e, ERR_CONFIG, "%s: %s: missing from section %.*s; allowed: %s%s", d->file ? d->file : "no configuration file",
                 first->name, config_section_length(first->name), first->name, allowed, others);
}

static bool finish(ConfigDoc *d, const char *const *sets, int n_sets, Err *e) {
  for (int i = 0; i < n_sets; i++) TRY(apply_set(d, sets[i], e));
  return !d->file || config_check_required(d, e);
}

static bool parse(ConfigDoc *d, const char *text, size_t length, Err *e) {
  Reader r = {.doc = d, .err = e, .text = text};
  CHECK(yaml_parser_initialize(&r.parser), "libyaml: no memory");
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
  bool ok = read_stream(&r);
  yaml_event_delete(&r.event);
  yaml_parser_delete(&r.parser);
  return ok;
}

bool config_read_text(ConfigDoc *d, Arena *a, const char *name, const char *text, const char *const *sets, int n_sets, Err *e) {
  set_defaults(d, a, name);
  TRY(parse(d, text, strlen(text), e));
  return finish(d, sets, n_sets, e);
}

static bool load(const char *path, int fd, char *text, size_t *length, Err *e) {
  struct stat st;
  if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) return err_set(e, ERR_CONFIG, "%s: is a directory; a YAML file is expected", path);
  ssize_t got = 1;
  for (*length = 0; got > 0 && *length <= MAX_FILE; *length += (size_t)got) {
    got = read(fd, text + *length, MAX_FILE + 1 - *length);
    if (got < 0) return err_set(e, ERR_CONFIG, "%s: cannot be read: %s", path, strerror(errno));
  }
  if (*length > MAX_FILE) return err_set(e, ERR_CONFIG, "%s: is larger than %d bytes; a YAML file is expected", path, MAX_FILE);
  return true;
}

bool config_read(ConfigDoc *d, Arena *a, const char *path, const char *const *sets, int n_sets, Err *e) {
  set_defaults(d, a, path);
  if (!path) return finish(d, sets, n_sets, e);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return err_set(e, ERR_CONFIG, "%s: cannot be opened: %s", path, strerror(errno));
  char *text = ARENA_NEW(a, char, MAX_FILE + 2); /* only the pages that the file fills are touched */
  size_t length = 0;
  bool ok = load(path, fd, text, &length, e);
  close(fd);
  return ok && parse(d, text, length, e) && finish(d, sets, n_sets, e);
}
