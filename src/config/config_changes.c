#include <string.h>

#include "config/config_table.h"

/* Beginnings of keys' names. A scope has the keys of those before it, too. */
static const char *const concern[N_CONFIG_SCOPE] = {
    [CONFIG_SCOPE_MODEL] = "model. ",
    [CONFIG_SCOPE_TRAINING] = "moe.aux moe.routing data. optimizer. train.global_batch_size train.train_iters train.seed ",
    [CONFIG_SCOPE_ALL] = ""};
static const char apart[] = "data.valid optimizer.shard "; /* nothing that is trained depends on these */

static bool begins_with_one_of(const char *name, const char *list) {
  for (const char *end; (end = strchr(list, ' ')); list = end + 1)
    if (!strncmp(name, list, (size_t)(end - list))) return true;
  return false;
}
static bool concerns(const char *name, ConfigScope scope) {
  if (scope == CONFIG_SCOPE_ALL) return true;
  bool any = false;
  for (int s = 0; s <= (int)scope; s++) any |= begins_with_one_of(name, concern[s]);
  return any && !begins_with_one_of(name, apart);
}

static const char *value_text(const ConfigKey *k, const Config *c, Arena *a) {
  enum { MOST = 1 << 16 };
  char *text = ARENA_NEW(a, char, MOST);
  FILE *f = fmemopen(text, MOST, "w");
  CHECK(f, "fmemopen");
  config_value_write(k, c, f);
  CHECK(fclose(f) == 0, "%s is longer than %d bytes", k->name, MOST);
  return text;
}

const char *config_changes(Arena *a, const char *was, const char *now, ConfigScope scope) {
  ConfigDoc doc[2];
  Err e = {0};
  if (!config_read_text(&doc[0], a, "", was, NULL, 0, &e) || !config_read_text(&doc[1], a, "", now, NULL, 0, &e)) return NULL;
  const char *list = "";
  for (int i = 0; i < config_n_keys(); i++) {
    const ConfigKey *k = config_key(i);
    if (k->type == KEY_IGNORED || !concerns(k->name, scope)) continue;
    const char *old = value_text(k, &doc[0].c, a), *new = value_text(k, &doc[1].c, a);
    if (strcmp(old, new)) list = arena_printf(a, "%s%s%s %s (was %s)", list, *list ? ", " : "", k->name, new, old);
  }
  return list;
}
