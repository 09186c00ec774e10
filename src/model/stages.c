/* Which layers a pipeline stage has. */
#include "base/err.h"
#include "model/model.h"

/* Weights that a token meets in a layer. */
static double layer_cost(const Config *c, int layer) {
  const ModelConfig *m = &c->model;
  double H = (double)m->hidden_size, heads = (double)(m->num_attention_heads + m->num_key_value_heads) * (double)m->head_dim;
  bool moe = config_layer_is_moe(m, layer);
  double ffn = moe ? (double)(config_ffn_expert(m) * m->num_experts_per_tok) : (double)m->intermediate_size;
  return 2 * H * heads + 3 * H * ffn + 4 * heads * (double)c->data.seq_length / 2;
}
static double head_cost(const Config *c) { return (double)c->model.hidden_size * (double)c->model.vocab_size; }

/* How many layers from `first` fit under a cost; the last stage also has the head. */
static int fit(const Config *c, int first, double most, bool last) {
  double sum = last ? head_cost(c) : 0;
  int n = 0;
  while (first + n < c->model.num_hidden_layers && sum + layer_cost(c, first + n) <= most) sum += layer_cost(c, first + n++);
  return n;
}
static bool covers(const Config *c, int n_virtual, double most, StageSpan *out) {
  int first = 0;
  for (int v = 0; v < n_virtual; v++) {
    int n = fit(c, first, most, v == n_virtual - 1);
    if (out) out[v].first_layer = first, out[v].n_layer = n;
    first += n;
  }
  return first == c->model.num_hidden_layers;
}
static void balance(const Config *c, int n_virtual, StageSpan *out) {
  double lo = 0, hi = head_cost(c);
  for (int i = 0; i < c->model.num_hidden_layers; i++) hi += layer_cost(c, i);
  hi *= 1.000001;
  for (int i = 0; i < 60; i++) {
    double mid = (lo + hi) / 2;
    if (covers(c, n_virtual, mid, NULL))
      hi = mid;
    else
      lo = mid;
  }
  covers(c, n_virtual, hi, out);
}

void model_stages(const Config *c, int n_virtual, StageSpan *out) {
  int64_t layers[n_virtual], sum;
  int n = config_pp_layers(c, layers, n_virtual, &sum);
  CHECK(n == 0 || n == n_virtual, "layout.pp_layers has %d numbers for %d stages", n, n_virtual); /* a rule of config_resolve */
  if (n == 0) balance(c, n_virtual, out);
  for (int v = 0, first = 0; v < n; first += (int)layers[v++]) out[v].first_layer = first, out[v].n_layer = (int)layers[v];
  for (int v = 0; v < n_virtual; v++) out[v].embeds = v == 0, out[v].heads = v == n_virtual - 1;
}
