/* What taps (exec.h, ExecTap) need to know of how tokens are dealt, in one place; and several taps on one exec. */
#ifndef ETALON_TAP_MAP_H
#define ETALON_TAP_MAP_H
#include "train/job.h"

typedef struct TapMap { const DealMb *mb; } TapMap;
TapMap  tap_map(const Job *j, const JobStep *s);
/* Row `row` of value v as instruction i wrote it; v's rows are tokens. Sequence * seq_length + position. */
int64_t tap_token(const TapMap *m, const Step *s, const Ins *i, ValId v, int64_t row);

enum { TAP_MOST = 4 };
typedef struct TapMux { ExecTap *fn[TAP_MOST]; void *ctx[TAP_MOST]; int n; } TapMux;
void tap_mux_add(TapMux *m, ExecTap *fn, void *ctx);
/* Sets the exec's tap to all of them, or to none. The TapMux must stay where it is. */
void tap_mux_set(TapMux *m, Exec *x);
/* The values that a forward pass has on every layout, each element on exactly one rank: their name without it ("L03.attn.o" also where the sum over TP ranks is
 * another value), in `a`; NULL for any other value. */
const char *tap_name(Arena *a, const Program *p, ValId v);
#endif
