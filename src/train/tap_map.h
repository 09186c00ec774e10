/* Which token of the global batch a row of a tapped value belongs to (exec.h, ExecTap): the one place where taps know how tokens are
 * dealt. */
#ifndef ETALON_TAP_MAP_H
#define ETALON_TAP_MAP_H
#include "train/job.h"

typedef struct TapMap { const DealMb *mb; } TapMap;
TapMap  tap_map(const Job *j, const JobStep *s);
/* Row `row` of value v as instruction i wrote it; v's rows are tokens. Sequence * seq_length + position. */
int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row);
#endif
