#include "train/tap_map.h"

TapMap tap_map(const Job *j, const JobStep *s) { return (TapMap){.deal = s->deal, .dp = j->dp}; }

int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row) {
  (void)s, (void)v;
  return deal_share(&m->deal, m->dp, i->mb).first * m->deal.seq_length + row;
}

bool tap_is_whole(const Step *s, ValId v) { return s->p->val[v].rows == ROWS_TOKEN; }

double tap_real(const void *data, DType t, int64_t i) {
  if (t == DT_I32) return (double)((const int32_t *)data)[i];
  return t == DT_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
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
