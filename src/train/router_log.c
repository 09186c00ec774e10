#include "train/router_log.h"

#include <math.h>
#include <stddef.h>

/* Of n weights that need not add up to 1, relative to that of n equal ones. */
static double evenness(const double *w, int n) {
  double sum = 0, h = 0;
  for (int i = 0; i < n; i++) sum += w[i];
  if (n < 2 || sum <= 0) return 1;
  for (int i = 0; i < n; i++)
    if (w[i] > 0) h -= w[i] / sum * log(w[i] / sum);
  return h / log(n);
}

static RouterLayer describe(int layer, const double *count, const double *score, int n, double n_route) {
  RouterLayer l = {.layer = layer, .tokens_min = count[0], .entropy = evenness(count, n), .score_entropy = evenness(score, n)};
  double sum = 0, square = 0;
  for (int i = 0; i < n; i++) {
    sum += count[i];
    if (count[i] > l.tokens_max) l.tokens_max = count[i];
    if (count[i] < l.tokens_min) l.tokens_min = count[i];
  }
  l.tokens_mean = sum / n;
  for (int i = 0; i < n; i++) square += (count[i] - l.tokens_mean) * (count[i] - l.tokens_mean);
  if (sum > 0) l.cv = sqrt(square / n) / l.tokens_mean, l.max_violation = l.tokens_max / l.tokens_mean - 1;
  l.dropped = n_route > 0 ? 1 - sum / n_route : 0;
  return l;
}

int router_layers(const Job *j, const StepResult *r, RouterLayer *out) {
  const ModelConfig *m = &j->c->model;
  int E = (int)m->num_local_experts, n = 0;
  double grid = 1.0 / (double)(1ull << r->stat_shift), n_token = (double)(j->train.deal.n_seq * j->train.deal.seq_length);
  ArenaMark mark = arena_mark(j->arena);
  double *count = ARENA_NEW(j->arena, double, E + 1), *score = ARENA_NEW(j->arena, double, E + 1);
  for (int layer = 0; layer < m->num_hidden_layers; layer++) {
    if (!config_layer_is_moe(m, layer)) continue;
    const uint64_t *word = r->stat + model_stat(m, layer) + 2;
    for (int x = 0; x < E; x++) count[x] = (double)word[x], score[x] = (double)(int64_t)word[E + x] * grid;
    out[n++] = describe(layer, count, score, E, n_token * (double)m->num_experts_per_tok);
  }
  arena_release(j->arena, mark);
  return n;
}

void router_log_write(Metrics *m, const StepResult *r, int64_t it) {
  static const struct {
    const char *name;
    size_t at;
  } field[] = {{"tokens_min", offsetof(RouterLayer, tokens_min)},
               {"tokens_max", offsetof(RouterLayer, tokens_max)},
               {"tokens_mean", offsetof(RouterLayer, tokens_mean)},
               {"cv", offsetof(RouterLayer, cv)},
               {"entropy", offsetof(RouterLayer, entropy)},
               {"max_violation", offsetof(RouterLayer, max_violation)},
               {"score_entropy", offsetof(RouterLayer, score_entropy)},
               {"dropped", offsetof(RouterLayer, dropped)}};
  ArenaMark mark = arena_mark(m->job->arena);
  RouterLayer *l = ARENA_NEW(m->job->arena, RouterLayer, m->job->c->model.num_hidden_layers);
  int n = router_layers(m->job, r, l);
  if (n && m->json) fprintf(m->json, "{\"iteration\":%lld,\"router\":[", (long long)it);
  for (int i = 0; i < n; i++) {
    if (m->json) fprintf(m->json, "%s{\"layer\":%d", i ? "," : "", l[i].layer);
    for (size_t k = 0; k < sizeof field / sizeof *field; k++) {
      double v = *(const double *)(const void *)((const char *)&l[i] + field[k].at);
      char tag[64];
      if (m->json) fprintf(m->json, ",\"%s\":%.6g", field[k].name, v);
      snprintf(tag, sizeof tag, "router/L%02d/%s", l[i].layer, field[k].name);
      tensorboard_put(&m->tb, it, tag, v);
    }
    if (m->json) fputc('}', m->json);
  }
  if (n && m->json) fprintf(m->json, "]}\n"), metrics_line_end(m);
  tensorboard_flush(&m->tb);
  arena_release(m->job->arena, mark);
}
