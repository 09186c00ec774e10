#include "base/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const fault_points[N_FAULT_POINT] = {
    [FAULT_CKPT_RESERVE] = "ckpt.reserve", [FAULT_CKPT_STRUCTURE] = "ckpt.structure", [FAULT_CKPT_PIECE] = "ckpt.piece",
    [FAULT_CKPT_SYNC] = "ckpt.sync",       [FAULT_CKPT_RENAME] = "ckpt.rename",       [FAULT_CKPT_LATEST] = "ckpt.latest",
    [FAULT_CKPT_COUNT] = "ckpt.count",     [FAULT_CKPT_DELETE] = "ckpt.delete",       [FAULT_CKPT_COPY] = "ckpt.copy",
    [FAULT_EXEC_INS] = "exec.ins",         [FAULT_TRAIN_STEP] = "train.step",         [FAULT_EVAL_CHUNK] = "eval.chunk",
    [FAULT_LOG_WRITE] = "log.write"};
static const char *const fault_actions[N_FAULT_ACTION] = {
    [FAULT_ACT_KILL] = "kill", [FAULT_ACT_EXIT] = "exit", [FAULT_ACT_HANG] = "hang", [FAULT_ACT_FAIL] = "fail", [FAULT_ACT_NAN] = "nan"};

static int find_word(const char *const *words, int n, const char *text, size_t length) {
  for (int i = 1; i < n; i++)
    if (strlen(words[i]) == length && memcmp(words[i], text, length) == 0) return i;
  return 0;
}

static void list_words(const char *const *words, int n, char *out, size_t size) {
  size_t used = 0;
  for (int i = 1; i < n && used < size; i++) used += (size_t)snprintf(out + used, size - used, "%s%s", i > 1 ? " " : "", words[i]);
}

static bool refuse(const char *spec, Err *e) {
  char points[512], actions[128];
  list_words(fault_points, N_FAULT_POINT, points, sizeof points);
  list_words(fault_actions, N_FAULT_ACTION, actions, sizeof actions);
  return err_set(e, ERR_CONFIG, "ETALON_FAULT: \"%s\" is not name[(detail)][@rank][:count][=action]; names: %s; actions: %s", spec, points,
                 actions);
}

/* A number of at least `least` behind `mark`; *p moves behind it. Absent: *out stays. */
static bool take_number(const char **p, char mark, int least, int *out) {
  if (**p != mark) return true;
  char *end;
  long v = strtol(*p + 1, &end, 10);
  bool ok = end != *p + 1 && v >= least && v < 1 << 30;
  *out = (int)v;
  *p = end;
  return ok;
}

static bool take_detail(const char **p, Fault *f) {
  if (**p != '(') return true;
  size_t n = strcspn(*p + 1, ")");
  if ((*p)[1 + n] != ')' || n >= sizeof f->detail) return false;
  memcpy(f->detail, *p + 1, n);
  *p += n + 2;
  return true;
}

bool fault_arm(Fault *f, const char *spec, int rank, Err *e) {
  *f = (Fault){.rank = -1, .count = 1, .action = FAULT_ACT_KILL};
  if (!spec || !*spec) return true;
  size_t n = strcspn(spec, "(@:=");
  const char *p = spec + n;
  FaultPoint point = (FaultPoint)find_word(fault_points, N_FAULT_POINT, spec, n);
  if (!point || !take_detail(&p, f) || !take_number(&p, '@', 0, &f->rank) || !take_number(&p, ':', 1, &f->count)) return refuse(spec, e);
  if (*p == '=') {
    f->action = (FaultAction)find_word(fault_actions, N_FAULT_ACTION, p + 1, strlen(p + 1));
    p += strlen(p);
  }
  if (*p || !f->action) return refuse(spec, e);
  if (f->rank < 0 || f->rank == rank) f->point = point;
  return true;
}

FaultAction fault_strike(Fault *f, FaultPoint p, const char *detail) {
  if (f->point != p || (f->detail[0] && !(detail && strstr(detail, f->detail)))) return FAULT_ACT_NONE;
  int now = atomic_fetch_add(&f->seen, 1) + 1;
  if (now < f->count || (now > f->count && f->action != FAULT_ACT_NAN)) return FAULT_ACT_NONE;
  if (f->action == FAULT_ACT_KILL) kill(getpid(), SIGKILL);
  if (f->action == FAULT_ACT_EXIT) _exit(1);
  while (f->action == FAULT_ACT_HANG) pause();
  return f->action;
}
