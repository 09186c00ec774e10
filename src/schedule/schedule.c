#include "schedule/schedule.h"

#include <string.h>


static void act(Schedule *s, ActKind kind, int mb) { s->act[s->n_act++] = (Action){kind, mb, 0}; }

static void build_1f1b(Schedule *s, int n_stage, int stage) {
  int warmup = n_stage - stage - 1 < s->n_mb ? n_stage - stage - 1 : s->n_mb;
  for (int i = 0; i < warmup; i++) act(s, ACT_FWD, i);
  for (int i = 0; i < s->n_mb; i++) {
    if (warmup + i < s->n_mb) act(s, ACT_FWD, warmup + i);
    act(s, ACT_BWD, i);
  }
}
static void build_all_forward(Schedule *s, int n_stage, int stage) {
  (void)n_stage, (void)stage;
  for (int i = 0; i < s->n_mb; i++) act(s, ACT_FWD, i);
  for (int i = 0; i < s->n_mb; i++) act(s, ACT_BWD, i);
}
static void build_forward(Schedule *s, int n_stage, int stage) {
  (void)n_stage, (void)stage;
  for (int i = 0; i < s->n_mb; i++) act(s, ACT_FWD, i);
}

static const struct { const char *name; void (*build)(Schedule *, int, int); } schedule_table[] = {
    {"1f1b", build_1f1b}, {"all_forward", build_all_forward}, {"forward", build_forward}};

bool schedule_build(Schedule *s, Arena *a, const char *name, int n_stage, int stage, int n_mb, Err *e) {
  for (size_t i = 0; i < sizeof schedule_table / sizeof *schedule_table; i++)
    if (!strcmp(schedule_table[i].name, name)) {
      *s = (Schedule){.name = schedule_table[i].name, .act = ARENA_NEW(a, Action, 2 * n_mb), .n_mb = n_mb, .n_chunk = 1};
      schedule_table[i].build(s, n_stage, stage);
      return true;
    }
  return err_set(e, ERR_CONFIG, "schedule.name: \"%s\" is not a schedule; there are: 1f1b, all_forward", name);
}
