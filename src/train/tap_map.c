#include "train/tap_map.h"

TapMap tap_map(const Job *j, const JobStep *s) {
  (void)j;
  return (TapMap){.mb = s->mb};
}

int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row) {
  const TokenView *t = value_view(s->chunk[i->chunk], v, &m->mb[i->mb]);
  int lo = 0, hi = t->n_window - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (t->window_start[mid] <= row) lo = mid;
    else hi = mid - 1;
  }
  return t->window_number[lo] + row - t->window_start[lo];
}
