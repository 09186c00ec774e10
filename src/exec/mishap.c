/* What may go wrong in a step, and how it is seen: each instruction is a sign of life for the watchdog and a fault point for tests, and after a fault the step
 * can be repeated to find the value that was bad first. The repetition is exact: steps are deterministic and nothing was updated. */
#include <math.h>
#include <string.h>

#include "exec/exec_state.h"

enum { NAME = 128 };

static void name_of(const void *list, int place, char *buf, size_t size) {
  const Step *s = list;
  if (place >= 0 && place < s->n_ins) ins_name(s, &s->ins[place], buf, size);
}

void mishap_begin(Exec *x, StepRun *r) { pulse_list(world_pulse(x->o.world), r->s, name_of); }
void mishap_end(Exec *x) { pulse_list(world_pulse(x->o.world), NULL, NULL); }

/* ---- outputs ---------------------------------------------------------------------------------------------------------------------- */

/* A buffer of real numbers with the bytes that are really there. */
typedef struct Reals {
  char *p;
  size_t bytes;
  DType type;
} Reals;
static Reals reals_of(const Exec *x, const StepRun *r, BufId b) {
  const Step *s = r->s;
  if (b == NO_BUF || (s->buf[b].kind != BUF_VALUE && s->buf[b].kind != BUF_GRAD)) return (Reals){0};
  const Buf *f = &s->buf[b];
  const Value *v = &s->chunk[f->chunk]->val[f->val];
  DType t = f->kind == BUF_GRAD ? v->grad_dtype : v->dtype;
  if (t != DT_F32 && t != DT_F64 && t != DT_BF16) return (Reals){0};
  return (Reals){exec_ptr(x, s, b), buf_bytes(s, f, r->mb, r->n_row), t};
}

/* What an instruction writes: values forward, gradients backward. */
static const BufId *outputs(const Ins *i, int *n) {
  bool back = i->kind == INS_KERNEL && i->pass == PASS_BWD_X;
  bool kernel = i->kind == INS_KERNEL && i->pass != PASS_BWD_W;
  *n = back ? MAX_IN : kernel || i->kind == INS_SUM || i->kind == INS_RECV ? MAX_OUT : 0;
  return back ? i->d_in : i->out;
}

/* How likely the fault began here: not where it came with a message from another stage; rather not where ranks of one stage exchange values. */
static uint64_t suspicion(const StepRun *r, const Ins *i) {
  static const bool exchanges[N_OP] = {
      [OP_GATHER] = true, [OP_REDUCE] = true, [OP_DISPATCH] = true, [OP_RETURN] = true, [OP_XENT] = true, [OP_ATTENTION] = true};
  if (i->kind == INS_RECV) return 0;
  return i->kind == INS_KERNEL && exchanges[r->s->chunk[i->chunk]->op[i->op].kind] ? 1 : 2;
}

static bool all_finite(Reals a) {
  int64_t n = a.bytes ? (int64_t)(a.bytes / dtype_size(a.type)) : 0;
  bool ok = true;
  for (int64_t k = 0; k < n; k++) ok &= isfinite(dtype_get(a.p, a.type, k)) != 0;
  return ok;
}

static bool output_is_finite(const Exec *x, const StepRun *r, const Ins *i) {
  int n;
  const BufId *out = outputs(i, &n);
  bool ok = true;
  for (int k = 0; k < n; k++) ok = ok && all_finite(reals_of(x, r, out[k]));
  return ok;
}

/* One NaN in each output. */
static void output_spoil(const Exec *x, const StepRun *r, const Ins *i) {
  int n;
  const BufId *out = outputs(i, &n);
  for (int k = 0; k < n; k++) {
    Reals a = reals_of(x, r, out[k]);
    if (a.bytes) memset(a.p, 0xff, dtype_size(a.type));
  }
}

/* ---- around an instruction ---------------------------------------------------------------------------------------------------------- */

bool mishap_before(Exec *x, StepRun *r, int n) {
  InsKind kind = r->s->ins[n].kind;
  pulse_place(world_pulse(x->o.world), n);
  Fault *f = world_fault(x->o.world);
  if (f->point == FAULT_EXEC_INS && f->action != FAULT_ACT_NAN) {
    char name[NAME];
    fault_strike(f, FAULT_EXEC_INS, ins_name(r->s, &r->s->ins[n], name, sizeof name));
  }
  return !x->searching || (kind != INS_UPDATE && kind != INS_GATHER);
}

void mishap_after(Exec *x, StepRun *r, int n) {
  const Ins *i = &r->s->ins[n];
  Fault *f = world_fault(x->o.world);
  if (f->point == FAULT_EXEC_INS && f->action == FAULT_ACT_NAN) {
    char name[NAME];
    if (fault_strike(f, FAULT_EXEC_INS, ins_name(r->s, i, name, sizeof name)) == FAULT_ACT_NAN) output_spoil(x, r, i);
  }
  if (x->searching && x->first_bad < 0 && !output_is_finite(x, r, i)) x->first_bad = n;
}

uint64_t exec_find_nonfinite(Exec *x, const UpdateArgs *u, char *text, size_t size) {
  const StepRun *run = &x->run[EXEC_TRAIN];
  StepResult r, was = x->result;
  x->searching = true;
  x->first_bad = -1;
  exec_run(x, EXEC_TRAIN, u, &r);
  x->searching = false;
  x->result = was;
  text[0] = 0;
  if (x->first_bad < 0) return 0;
  const Ins *i = &run->s->ins[x->first_bad];
  ins_name(run->s, i, text, size);
  return suspicion(run, i) << 32 | (uint64_t)(run->s->n_ins - x->first_bad);
}
