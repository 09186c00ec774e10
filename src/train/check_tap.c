#include "train/check_tap.h"

#include <string.h>

const CheckTap check_tap[CHECK_TAPS] = {
    {"head", "logits", "step1/logits", false, JUDGE_EACH},
    {"attn.o", "attn_out", "step1/attn_out", true, JUDGE_EACH},
    {"hidden", "hidden", "step1/hidden", true, JUDGE_EACH},
    {"moe.router", "router_logits", "step1/router_logits", true, JUDGE_EACH},
    {"moe.route.idx", "topk_idx", "step1/topk_idx", true, JUDGE_EQUAL},
    {"moe.route.weight", "topk_weight", "step1/topk_weight", true, JUDGE_EACH},
    {"moe.out", "moe_out", "step1/moe_out", true, JUDGE_EACH},
};

/* Is this value what row `row` stores? Where TP cuts the attention's output projection, its sum is: attn.out instead of attn.o. */
static bool value_is(const Program *p, ValId v, int row) {
  const Value *val = &p->val[v];
  if ((val->kind != VAL_ACT && val->kind != VAL_INDEX) || check_tap[row].layered != (val->layer >= 0) || val->layout.partial) return false;
  const char *name = val->name;
  if (check_tap[row].layered) name = strchr(name, '.') ? strchr(name, '.') + 1 : name; /* "L03.moe.out" */
  if (!strcmp(name, "attn.out")) name = "attn.o";
  return !strcmp(name, check_tap[row].value);
}

/* Layers that a row has, whatever stage they are on; -1: not in layers. */
static bool row_has_layer(const ModelConfig *m, int row, int layer) {
  return !strncmp(check_tap[row].value, "moe.", 4) ? config_layer_is_moe(m, layer) : true;
}

static int64_t full_width(const Value *v) { return shard_begin(&v->cut, v->cut.n); }

static bool read_golden(Golden *g, Arena *a, const char *path, bool integer, int64_t n, double **out, Err *e) {
  *out = ARENA_NEW(a, double, n);
  if (!integer) return golden_read_f64(g, path, *out, n, e);
  ArenaMark mark = arena_mark(a);
  int64_t *x = ARENA_NEW(a, int64_t, n);
  bool ok = golden_read_i64(g, path, x, n, e);
  for (int64_t i = 0; i < n && ok; i++) (*out)[i] = (double)x[i];
  arena_release(a, mark);
  return ok;
}

static int64_t row_width(const Config *c, int row) {
  const ModelConfig *m = &c->model;
  const struct {
    const char *value;
    int64_t width;
  } widths[] = {{"head", m->vocab_size},
                {"attn.o", m->hidden_size},
                {"hidden", m->hidden_size},
                {"moe.out", m->hidden_size},
                {"moe.router", m->num_local_experts},
                {"moe.route.idx", m->num_experts_per_tok},
                {"moe.route.weight", m->num_experts_per_tok}};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (!strcmp(widths[i].value, check_tap[row].value)) return widths[i].width;
  CHECK(false, "row %d has no width", row);
}

/* Marks the value that holds an item, where one of this rank's programs has it. */
static void place_item(CheckTaps *t, const Job *j, int row, int layer, TapPlace place) {
  for (int c = 0; c < j->train.step.n_chunk; c++) {
    const Program *p = j->train.step.chunk[c];
    for (ValId v = 0; v < p->n_val; v++)
      if (p->val[v].layer == layer && value_is(p, v, row)) t->place[c][v] = place;
  }
}

static bool open_item(CheckTaps *t, const Job *j, Arena *a, Golden *g, int row, int layer, CheckQuantity *q, int item, Err *e) {
  bool equal = check_tap[row].judge == JUDGE_EQUAL;
  int64_t size = j->train.deal.n_seq * j->train.deal.seq_length * row_width(j->c, row);
  const char *path =
      layer < 0 ? arena_printf(a, "step1/%s", check_tap[row].stored) : arena_printf(a, "step1/layers/%d/%s", layer, check_tap[row].stored);
  double *golden;
  TRY(read_golden(g, a, path, equal, size, &golden, e));
  q->item[item] = (CheckItem){.name = layer < 0 ? check_tap[row].stored : arena_printf(a, "layer %d", layer), .size = size};
  place_item(t, j, row, layer, (TapPlace){q, item, golden});
  return true;
}

static bool open_row(CheckTaps *t, const Job *j, Arena *a, Golden *g, int row, const CheckLimits *limit, Err *e) {
  const ModelConfig *m = &j->c->model;
  int n = check_tap[row].layered ? 0 : 1;
  for (int l = 0; l < m->num_hidden_layers && check_tap[row].layered; l++) n += row_has_layer(m, row, l);
  if (!n) return true;
  CheckQuantity *q = &t->quantity[t->n++];
  *q = quantity_new(a, check_tap[row].title, n, check_tap[row].judge, check_tap[row].judge == JUDGE_EQUAL ? limit->choice : limit->value);
  if (!check_tap[row].layered) return open_item(t, j, a, g, row, -1, q, 0, e);
  int item = 0;
  for (int l = 0; l < m->num_hidden_layers; l++)
    if (row_has_layer(m, row, l)) TRY(open_item(t, j, a, g, row, l, q, item++, e));
  return true;
}

bool taps_open(CheckTaps *t, const Job *j, Arena *a, Golden *g, const CheckLimits *limit, Err *e) {
  *t = (CheckTaps){.mb = j->train.mb};
  for (int c = 0; c < j->train.step.n_chunk; c++) t->place[c] = ARENA_NEW(a, TapPlace, j->train.step.chunk[c]->n_val);
  for (int row = 0; row < CHECK_TAPS; row++) TRY(open_row(t, j, a, g, row, limit, e));
  return true;
}

void taps_compare(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  CheckTaps *t = ctx;
  const TapPlace *at = &t->place[i->chunk][v];
  if (!at->quantity) return;
  const Program *p = s->chunk[i->chunk];
  const Value *val = &p->val[v];
  const Shards *cut = &val->cut;
  const TokenView *view = value_view(p, v, &t->mb[i->mb]);
  int64_t width = full_width(val);
  for (int b = cut->first; b < cut->first + cut->count; b++)
    for (int w = 0; w < view->n_window; w++)
      for (int64_t r = view->window_start[w]; r < view->window_start[w + 1]; r++)
        for (int64_t c = 0; c < shard_width(cut, b); c++) {
          int64_t token = view->window_number[w] + r - view->window_start[w];
          double here = dtype_get(data, val->dtype, shard_local(cut, b) * n_row + r * shard_width(cut, b) + c);
          quantity_add(at->quantity, at->item, here, at->golden[token * width + shard_begin(cut, b) + c]);
        }
}
