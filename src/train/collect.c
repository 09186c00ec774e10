#include "train/collect.h"

#include <string.h>

static int64_t full_width(const Value *v) { return shard_begin(&v->cut, v->cut.n); }

/* Is there such a value anywhere? Names come from the configuration, since a rank may hold only some of the layers. */
static bool exists(const Config *c, const CheckTap *row, int layer) {
  bool moe = !strncmp(row->value, "moe.", 4);
  return !moe || config_layer_is_moe(&c->model, layer);
}

static void add(Collect *c, const Step *s, Arena *a, const CheckTap *row, int layer) {
  Collected *x = &c->item[c->n];
  *x = (Collected){.value = layer < 0 ? row->value : arena_printf(a, "L%02d.%s", layer, row->value), .row = row, .layer = layer};
  for (int k = 0; k < s->n_chunk; k++)
    for (ValId v = 0; v < s->chunk[k]->n_val; v++) {
      const char *name = tap_name(a, s->chunk[k], v);
      if (!name || strcmp(name, x->value)) continue;
      x->width = full_width(&s->chunk[k]->val[v]);
      c->of[k][v] = c->n;
    }
  x->integer = row->judge == JUDGE_EQUAL;
  c->n++;
}

void collect_open(Collect *c, const Job *j, World *w, Arena *a) {
  const Step *s = &j->train.step;
  int n_layer = (int)j->c->model.num_hidden_layers;
  *c = (Collect){.map = tap_map(j, &j->train),
                 .item = ARENA_NEW(a, Collected, CHECK_TAPS * (n_layer + 1)),
                 .n_token = j->train.deal.n_seq * j->train.deal.seq_length};
  for (int k = 0; k < s->n_chunk; k++) {
    c->of[k] = ARENA_NEW(a, int, s->chunk[k]->n_val);
    for (ValId v = 0; v < s->chunk[k]->n_val; v++) c->of[k][v] = -1;
  }
  for (int k = 0; k < CHECK_TAPS; k++)
    for (int layer = check_tap[k].layered ? 0 : -1; layer < (check_tap[k].layered ? n_layer : 0); layer++)
      if (exists(j->c, &check_tap[k], layer)) add(c, s, a, &check_tap[k], layer);
  uint64_t *width = ARENA_NEW(a, uint64_t, c->n);
  for (int i = 0; i < c->n; i++) width[i] = (uint64_t)c->item[i].width;
  comm_allreduce_max_u64(w, AXES_WORLD, width, c->n);
  for (int i = 0; i < c->n; i++) {
    c->item[i].width = (int64_t)width[i];
    c->item[i].bits = ARENA_NEW(a, uint64_t, c->n_token * c->item[i].width);
  }
}

static uint64_t bits_of(const void *data, DType t, int64_t i) {
  uint64_t bits;
  if (t == DT_I32) return (uint64_t)(int64_t)((const int32_t *)data)[i];
  double x = dtype_get(data, t, i);
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

void collect_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  Collect *c = ctx;
  int item = c->of[i->chunk][v];
  if (item < 0) return;
  const Collected *x = &c->item[item];
  const Value *val = &s->chunk[i->chunk]->val[v];
  const Shards *cut = &val->cut;
  for (int64_t r = 0; r < n_row; r++) {
    uint64_t *to = x->bits + tap_token(&c->map, s, i, v, r) * x->width;
    for (int b = cut->first; b < cut->first + cut->count; b++)
      for (int64_t k = 0; k < shard_width(cut, b); k++, c->n_written++)
        to[shard_begin(cut, b) + k] = bits_of(data, val->dtype, shard_local(cut, b) * n_row + r * shard_width(cut, b) + k);
  }
}

/* Elsewhere an element is zero bits, so a sum of integers brings all together. */
void collect_gather(Collect *c, World *w) {
  uint64_t written = (uint64_t)c->n_written, wanted = 0;
  comm_allreduce_u64(w, AXES_WORLD, &written, 1);
  for (int i = 0; i < c->n; i++) {
    wanted += (uint64_t)(c->n_token * c->item[i].width);
    comm_allreduce_u64(w, AXES_WORLD, c->item[i].bits, c->n_token * c->item[i].width);
  }
  CHECK(written == wanted, "%llu elements of values were tapped where there are %llu", (unsigned long long)written,
        (unsigned long long)wanted);
}
