#include "train/tap_map.h"

#include <string.h>

TapMap tap_map(const Job *j, const JobStep *s) {
  (void)j;
  return (TapMap){.mb = s->mb};
}

int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row) {
  const TokenView *t = value_view(s->chunk[i->chunk], v, &m->mb[i->mb]);
  int lo = 0, hi = t->n_window - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (t->window_start[mid] <= row)
      lo = mid;
    else
      hi = mid - 1;
  }
  return t->window_number[lo] + row - t->window_start[lo];
}

void tap_mux_add(TapMux *m, ExecTap *fn, void *ctx) {
  CHECK(m->n < TAP_MOST, "more than %d taps", TAP_MOST);
  m->fn[m->n] = fn, m->ctx[m->n++] = ctx;
}

static void call_all(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  const TapMux *m = ctx;
  for (int k = 0; k < m->n; k++) m->fn[k](m->ctx[k], s, i, v, data, n_row);
}

void tap_mux_set(TapMux *m, Exec *x) { exec_set_tap(x, m->n ? call_all : NULL, m); }

/* value: its name on this layout; name: on one rank. */
static const struct {
  const char *value, *name;
} layout_free[] = {{"embed", "embed"},
                   {"embed.out", "embed"},
                   {"norm", "norm"},
                   {"head", "head"},
                   {"norm1", "norm1"},
                   {"attn.q.rope", "attn.q.rope"},
                   {"attn.k.rope", "attn.k.rope"},
                   {"attn.v", "attn.v"},
                   {"attn.core", "attn.core"},
                   {"attn.o", "attn.o"},
                   {"attn.out", "attn.o"},
                   {"mid", "mid"},
                   {"norm2", "norm2"},
                   {"mlp.act", "mlp.act"},
                   {"mlp.down", "mlp.down"},
                   {"mlp.out", "mlp.down"},
                   {"moe.router", "moe.router"},
                   {"moe.route.idx", "moe.route.idx"},
                   {"moe.route.weight", "moe.route.weight"},
                   {"moe.out", "moe.out"},
                   {"hidden", "hidden"}};

const char *tap_name(Arena *a, const Program *p, ValId v) {
  const Value *x = &p->val[v];
  if ((x->kind != VAL_ACT && x->kind != VAL_INDEX) || x->layout.partial) return NULL;
  const char *name = x->layer >= 0 && strchr(x->name, '.') ? strchr(x->name, '.') + 1 : x->name;
  for (size_t i = 0; i < sizeof layout_free / sizeof *layout_free; i++)
    if (!strcmp(layout_free[i].value, name))
      return x->layer < 0 ? layout_free[i].name : arena_printf(a, "L%02d.%s", x->layer, layout_free[i].name);
  return NULL;
}
