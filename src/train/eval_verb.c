#include "train/eval_verb.h"

#include <math.h>

#include "base/log.h"
#include "train/evaluate.h"
#include "train/setup.h"
#include "train/weights.h"

static bool run(Setup *s, TokenFile *f, const char *resume, Log *log, Err *e) {
  const double ln2 = 0.693147180559945309417;
  WeightsFrom from;
  EvalResult r;
  TRY(weights_load(s->x, &s->job, s->world, resume, &from, log, e));
  TRY(evaluate_run(s->x, &s->job, s->world, f, NULL, &r, e));
  if (r.fault) return err_set(e, ERR_NONFINITE, "%s: a validation loss is not finite or beyond its bound", from.file);
  log_line(log, "%s: step %lld | validation loss %.9g over %lld tokens | perplexity %.6g | %.6g bits a token", from.file,
           (long long)from.step, r.loss, (long long)r.n_token, exp(r.loss), r.loss / ln2);
  return true;
}

bool eval_verb(World *w, Arena *a, const Config *c, const char *resume, FILE *out, Err *e) {
  Setup *s = ARENA_NEW(a, Setup, 1);
  TokenFile *f = ARENA_NEW(a, TokenFile, 1);
  Log log;
  log_open(&log, out, world_rank(w) == 0);
  if (!c->data.valid || !*c->data.valid) return err_set(e, ERR_CONFIG, "data.valid is empty: it names the tokens to evaluate on");
  bool open = setup_tokens(f, a, c, c->data.valid, e);
  if (open && !valid_count(f, c->data.seq_length)) err_set(e, ERR_DATA, "%s: fewer than two tokens, nothing to predict", f->path);
  bool ok = world_agree(w, e) && setup_open(s, w, a, c, valid_count(f, c->data.seq_length), e) && run(s, f, resume, &log, e);
  setup_close(s);
  if (open) token_file_close(f);
  return ok;
}
