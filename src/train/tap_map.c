#include "train/tap_map.h"

TapMap tap_map(const Job *j, const JobStep *s) { return (TapMap){.deal = s->deal, .dp = j->dp}; }

int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row) {
  (void)s, (void)v;
  return deal_share(&m->deal, m->dp, i->mb).first * m->deal.seq_length + row;
}
