#include "train/outputs.h"

#include "base/path.h"

typedef struct Name {
  const char *key, *path;
} Name;

bool outputs_apart(Arena *a, const Config *c, const char *config, const char *resume, Err *e) {
  const Name out[] = {{"log.metrics", c->log.metrics}, {"train.trace", c->train.trace}, {"moe.record", c->moe.record}};
  const Name in[] = {{"the command line", config},
                     {"--resume", resume},
                     {"data.train", c->data.train},
                     {"data.train", arena_printf(a, "%s.bin", c->data.train)},
                     {"data.train", arena_printf(a, "%s.idx", c->data.train)},
                     {"data.valid", c->data.valid},
                     {"data.valid", arena_printf(a, "%s.bin", c->data.valid)},
                     {"data.valid", arena_printf(a, "%s.idx", c->data.valid)},
                     {"moe.replay", c->moe.replay}};
  enum { N_OUT = sizeof out / sizeof *out, N_IN = sizeof in / sizeof *in };
  for (int i = 0; i < N_OUT; i++)
    for (int k = 0; k < N_IN; k++) TRY(path_apart(out[i].key, out[i].path, in[k].key, in[k].path, e));
  for (int i = 0; i < N_OUT; i++)
    for (int k = 0; k < i; k++)
      if (*out[i].path && path_same(out[i].path, out[k].path))
        return err_set(e, ERR_CONFIG, "%s and %s: both would write \"%s\"; name another file", out[k].key, out[i].key, out[i].path);
  return true;
}
