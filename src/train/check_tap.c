#include "train/check_tap.h"

#include <string.h>

/* value: name in the program, inside a layer where `layered`. stored: name in the file, inside step1/ or step1/layers/I/. */
static const struct {
  const char *value, *stored, *title;
  bool layered;
  Judge judge;
} tapped[CHECK_TAPS] = {
    {"head", "logits", "step1/logits", false, JUDGE_EACH},
    {"attn.o", "attn_out", "step1/attn_out", true, JUDGE_EACH},
    {"hidden", "hidden", "step1/hidden", true, JUDGE_EACH},
    {"moe.router", "router_logits", "step1/router_logits", true, JUDGE_EACH},
    {"moe.route.idx", "topk_idx", "step1/topk_idx", true, JUDGE_EQUAL},
    {"moe.route.weight", "topk_weight", "step1/topk_weight", true, JUDGE_EACH},
    {"moe.out", "moe_out", "step1/moe_out", true, JUDGE_EACH},
};

static bool value_is(const Program *p, ValId v, int row) {
  const Value *val = &p->val[v];
  if ((val->kind != VAL_ACT && val->kind != VAL_INDEX) || tapped[row].layered != (val->layer >= 0)) return false;
  const char *name = val->name;
  if (tapped[row].layered) name = strchr(name, '.') ? strchr(name, '.') + 1 : name; /* "L03.moe.out" */
  return !strcmp(name, tapped[row].value);
}

static int64_t full_width(const Value *v) { return shard_begin(&v->cut, v->cut.n); }

static bool read_golden(Golden *g, Arena *a, const char *path, const Value *v, int64_t n, double **out, Err *e) {
  *out = ARENA_NEW(a, double, n);
  if (v->kind != VAL_INDEX) return golden_read_f64(g, path, *out, n, e);
  ArenaMark mark = arena_mark(a);
  int64_t *x = ARENA_NEW(a, int64_t, n);
  bool ok = golden_read_i64(g, path, x, n, e);
  for (int64_t i = 0; i < n && ok; i++) (*out)[i] = (double)x[i];
  arena_release(a, mark);
  return ok;
}

static bool open_row(CheckTaps *t, const Program *p, Arena *a, Golden *g, int row, double tolerance, Err *e) {
  int n = 0;
  for (ValId v = 0; v < p->n_val; v++) n += value_is(p, v, row);
  if (!n) return true;
  bool equal = tapped[row].judge == JUDGE_EQUAL;
  CheckQuantity *q = &t->quantity[t->n++];
  *q = quantity_new(a, tapped[row].title, n, tapped[row].judge, equal ? 0 : tolerance);
  int item = 0;
  for (ValId v = 0; v < p->n_val; v++) {
    if (!value_is(p, v, row)) continue;
    const Value *val = &p->val[v];
    int64_t size = t->deal.n_seq * t->deal.seq_length * full_width(val);
    const char *path = val->layer < 0 ? arena_printf(a, "step1/%s", tapped[row].stored)
                                      : arena_printf(a, "step1/layers/%d/%s", val->layer, tapped[row].stored);
    double *golden;
    TRY(read_golden(g, a, path, val, size, &golden, e));
    q->item[item] = (CheckItem){.name = val->layer < 0 ? tapped[row].stored : arena_printf(a, "layer %d", val->layer), .size = size};
    t->place[v] = (TapPlace){q, item++, golden};
  }
  return true;
}

bool taps_open(CheckTaps *t, const Job *j, Arena *a, Golden *g, double tolerance, Err *e) {
  const Program *p = &j->train.program;
  *t = (CheckTaps){.deal = j->train.deal, .dp = j->dp, .place = ARENA_NEW(a, TapPlace, p->n_val)};
  for (int row = 0; row < CHECK_TAPS; row++) TRY(open_row(t, p, a, g, row, tolerance, e));
  return true;
}

static double element(const void *data, DType type, int64_t i) {
  if (type == DT_I32) return (double)((const int32_t *)data)[i];
  return type == DT_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

void taps_compare(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  CheckTaps *t = ctx;
  const TapPlace *at = &t->place[v];
  if (!at->quantity) return;
  const Value *val = &s->p->val[v];
  const Shards *cut = &val->cut;
  int64_t first = deal_share(&t->deal, t->dp, i->mb).first * t->deal.seq_length, width = full_width(val);
  for (int b = cut->first; b < cut->first + cut->count; b++)
    for (int64_t r = 0; r < n_row; r++)
      for (int64_t c = 0; c < shard_width(cut, b); c++) {
        double here = element(data, val->dtype, shard_local(cut, b) * n_row + r * shard_width(cut, b) + c);
        quantity_add(at->quantity, at->item, here, at->golden[(first + r) * width + shard_begin(cut, b) + c]);
      }
}
