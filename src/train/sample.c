#include "train/sample.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/feed.h"
#include "train/state.h"
#include "train/tap_map.h"
#include "train/weights.h"

typedef struct Sampling {
  Setup *s;
  TapMap map;
  int64_t row;    /* whose logits are wanted */
  uint64_t *bits; /* [vocabulary] logits as FP64 bit patterns; zero on ranks that do not have them */
} Sampling;

bool sample_possible(const Config *c, Err *e) {
  if (c->model.vocab_size == BYTE_VOCAB) return true;
  return err_set(e, ERR_CONFIG, "model.vocab_size = %lld: text can be sampled from models of the byte tokenizer alone, whose size is %d",
                 (long long)c->model.vocab_size, BYTE_VOCAB);
}

/* ---- one forward pass ------------------------------------------------------------------------------------------------------------ */
static void take_logits(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  Sampling *g = ctx;
  const Value *val = &s->p->val[v];
  if (strcmp(val->name, "head")) return;
  const Shards *cut = &val->cut;
  for (int64_t r = 0; r < n_row; r++) {
    if (tap_token(&g->map, s, i, v, r) != g->row) continue;
    for (int b = cut->first; b < cut->first + cut->count; b++)
      for (int64_t c = 0; c < shard_width(cut, b); c++) {
        int64_t at = shard_local(cut, b) * n_row + r * shard_width(cut, b) + c;
        double x = dtype_get(data, val->dtype, at);
        memcpy(&g->bits[shard_begin(cut, b) + c], &x, sizeof x);
      }
  }
}

/* The context, then padding that no token before it can see. */
typedef struct Context {
  const int32_t *token;
  int64_t n, seq_length;
} Context;
static bool fetch(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  (void)seq, (void)e;
  const Context *c = ctx;
  for (int64_t t = 0; t < c->seq_length; t++) token[t] = t < c->n ? c->token[t] : 0, label[t] = LABEL_IGNORED;
  return true;
}

static bool forward(Sampling *g, const int32_t *context, int64_t n, double *logit, Err *e) {
  int64_t V = g->s->c->model.vocab_size;
  StepResult r;
  memset(g->bits, 0, (size_t)V * sizeof *g->bits);
  g->row = n - 1;
  Context c = {context, n, g->s->job.eval.deal.seq_length};
  feed_step(g->s->x, &g->s->job, EXEC_EVAL, fetch, &c, e);
  exec_set_tap(g->s->x, take_logits, g);
  exec_run(g->s->x, EXEC_EVAL, NULL, &r);
  exec_set_tap(g->s->x, NULL, NULL);
  comm_allreduce_u64(g->s->world, AXES_WORLD, g->bits, V);
  memcpy(logit, g->bits, (size_t)V * sizeof *logit);
  bool finite = !r.fault;
  for (int64_t i = 0; i < V; i++) finite = finite && isfinite(logit[i]);
  return finite || err_set(e, ERR_NONFINITE, "the model's output is not finite: its weights are damaged, or its training diverged");
}

/* ---- choice ---------------------------------------------------------------------------------------------------------------------- */
static int32_t likeliest(const double *logit, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logit[i] > logit[best]) best = i;
  return (int32_t)best;
}

/* u in [0, 1) picks from the softmax of logit / temperature. */
static int32_t draw(double *logit, int64_t n, double temperature, double u) {
  double top = logit[likeliest(logit, n)], sum = 0;
  for (int64_t i = 0; i < n; i++) sum += logit[i] = exp((logit[i] - top) / temperature);
  double left = u * sum;
  for (int64_t i = 0; i < n; i++)
    if ((left -= logit[i]) < 0) return (int32_t)i;
  return likeliest(logit, n); /* what rounding left over */
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------ */
static bool generate(Sampling *g, const SampleArgs *args, TextOut *out, Err *e) {
  Arena *a = g->s->arena;
  int64_t S = g->s->job.eval.deal.seq_length, n = (int64_t)strlen(args->prompt) + 1, V = g->s->c->model.vocab_size;
  int32_t *token = ARENA_NEW(a, int32_t, n + args->n_token);
  double *logit = ARENA_NEW(a, double, V);
  RngKey key = {.seed = args->seed, .purpose = RNG_SAMPLE};
  token[0] = BYTE_EOD;
  for (int64_t i = 1; i < n; i++) token[i] = (unsigned char)args->prompt[i - 1];
  text_put(out, args->prompt, (size_t)n - 1);
  for (int64_t k = 0; k < args->n_token; k++, n++) {
    int64_t skip = n > S ? n - S : 0;
    TRY(forward(g, token + skip, n - skip, logit, e));
    token[n] = args->temperature > 0 ? draw(logit, V, args->temperature, rng_uniform(key, (uint64_t)k)) : likeliest(logit, V);
    if (token[n] == BYTE_EOD) break;
    text_put(out, &(uint8_t){(uint8_t)token[n]}, 1);
    if (out->f) fflush(out->f);
  }
  return true;
}

bool sample_run(Setup *s, const SampleArgs *args, const Log *log, Err *e) {
  ArenaMark mark = arena_mark(s->arena);
  Sampling g = {.s = s, .map = tap_map(&s->job, &s->job.eval), .bits = ARENA_NEW(s->arena, uint64_t, s->c->model.vocab_size)};
  TextOut out = {.f = log->speaks ? log->out : NULL, .escape = log->terminal};
  bool ok = generate(&g, args, &out, e);
  if (out.f) text_end(&out), fputc('\n', out.f), fflush(out.f);
  arena_release(s->arena, mark);
  return ok;
}

/* ---- setups -------------------------------------------------------------------------------------------------------------------- */
Config sample_config(const Config *c) {
  Config small = *c;
  small.train.global_batch_size = small.train.micro_batch_size = 1;
  return small;
}

/* Both setups cut the same parameters in the same way, so their pieces are the same, one by one. */
static size_t piece_bytes(const StatePiece *p) { return (size_t)(p->n_row * p->n_col) * dtype_size(p->type); }
static char *take_weights(Setup *s, size_t *bytes) {
  StatePiece *piece;
  size_t at = 0, total = 0;
  int n = state_pieces(s->x, &s->job, s->arena, TENSOR_WEIGHT, PIECES_LOCAL, &piece);
  for (int k = 0; k < n; k++) total += piece_bytes(&piece[k]);
  char *copy = arena_alloc(s->arena, total, 1);
  for (int k = 0; k < n; k++) {
    size_t size = piece_bytes(&piece[k]);
    memcpy(copy + at, piece[k].data, size);
    at += size;
  }
  return *bytes = total, copy;
}
static void give_weights(Setup *s, const char *copy, size_t bytes) {
  StatePiece *piece;
  size_t at = 0;
  int n = state_pieces(s->x, &s->job, s->arena, TENSOR_WEIGHT, PIECES_LOCAL, &piece);
  for (int k = 0; k < n; k++) {
    size_t size = piece_bytes(&piece[k]);
    memcpy(piece[k].data, copy + at, size);
    at += size;
  }
  CHECK(at == bytes, "%zu bytes of weights where %zu were", at, bytes);
}

bool sample_trained(Setup *trained, Log *log, Err *e) {
  Arena *a = trained->arena;
  const Config *c = trained->c;
  size_t bytes;
  ArenaMark mark = arena_mark(a);
  char *copy = take_weights(trained, &bytes);
  setup_close(trained);
  Config *small = ARENA_NEW(a, Config, 1);
  Setup *s = ARENA_NEW(a, Setup, 1);
  *small = sample_config(c);
  bool ok = setup_open(s, trained->world, a, small, 1, e);
  if (ok) {
    give_weights(s, copy, bytes);
    SampleArgs args = {
        .prompt = c->train.sample_prompt, .n_token = c->train.sample_tokens, .temperature = 0.8, .seed = (uint64_t)c->train.seed};
    log_line(log, "the model continues train.sample_prompt:");
    ok = sample_run(s, &args, log, e);
  }
  setup_close(s);
  arena_release(a, mark);
  return ok;
}

bool sample_verb(World *w, Arena *a, const Config *c, const char *resume, const SampleArgs *args, FILE *out, Err *e) {
  Log log;
  WeightsFrom from;
  Setup *s = ARENA_NEW(a, Setup, 1);
  Config *small = ARENA_NEW(a, Config, 1);
  *small = sample_config(c);
  log_open(&log, out, world_rank(w) == 0);
  TRY(sample_possible(c, e));
  bool ok = setup_open(s, w, a, small, 1, e) && weights_load(s->x, &s->job, w, resume, &from, &log, e) && sample_run(s, args, &log, e);
  setup_close(s);
  return ok;
}
