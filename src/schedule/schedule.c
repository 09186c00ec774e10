#include "schedule/schedule.h"

#include <stdio.h>
#include <string.h>

static void act(Schedule *s, ActKind kind, int mb, int chunk) { s->act[s->n_act++] = (Action){kind, mb, chunk}; }
static int at_most(int a, int b) { return a < b ? a : b; }

static void build_1f1b(Schedule *s, int n_stage, int stage) {
  int warmup = at_most(n_stage - stage - 1, s->n_mb);
  for (int i = 0; i < warmup; i++) act(s, ACT_FWD, i, 0);
  for (int i = 0; i < s->n_mb; i++) {
    if (warmup + i < s->n_mb) act(s, ACT_FWD, warmup + i, 0);
    act(s, ACT_BWD, i, 0);
  }
}

/* 1F1B whose weight gradients wait while more than `stage` of them would be pending: they fill the gaps at the end, and no stage holds more than the first does. */
static void build_zero_bubble(Schedule *s, int n_stage, int stage) {
  int warmup = at_most(n_stage - stage - 1, s->n_mb), done = 0;
  for (int i = 0; i < warmup; i++) act(s, ACT_FWD, i, 0);
  for (int i = 0; i < s->n_mb; i++) {
    bool forward = warmup + i < s->n_mb;
    if (forward) act(s, ACT_FWD, warmup + i, 0);
    act(s, ACT_BWD_X, i, 0);
    if (i - done >= stage || !forward) act(s, ACT_BWD_W, done++, 0);
  }
  while (done < s->n_mb) act(s, ACT_BWD_W, done++, 0);
}

static void build_all_forward(Schedule *s, int n_stage, int stage) {
  (void)n_stage, (void)stage;
  for (int c = 0; c < s->n_chunk; c++)
    for (int i = 0; i < s->n_mb; i++) act(s, ACT_FWD, i, c);
  for (int c = s->n_chunk - 1; c >= 0; c--)
    for (int i = 0; i < s->n_mb; i++) act(s, ACT_BWD, i, c);
}

/* Micro-batches in groups of n_stage, the last group taking the rest too: a group of fewer would wait for itself between two chunks. */
static int last_group(const Schedule *s, int n_stage) { return s->n_mb <= n_stage ? s->n_mb : n_stage + s->n_mb % n_stage; }
/* The k-th pass: a group goes through all chunks before the next one. */
static Action pass_of(const Schedule *s, int n_stage, int k, bool forward) {
  int first_of_last = s->n_mb - last_group(s, n_stage), group = k / (n_stage * s->n_chunk), first = at_most(group * n_stage, first_of_last);
  int size = first < first_of_last ? n_stage : last_group(s, n_stage), within = k - first * s->n_chunk, chunk = within / size;
  return (Action){forward ? ACT_FWD : ACT_BWD, first + within % size, forward ? chunk : s->n_chunk - 1 - chunk};
}
static void build_interleaved(Schedule *s, int n_stage, int stage) {
  int total = s->n_mb * s->n_chunk, group = last_group(s, n_stage), ahead = (s->n_chunk - 1) * (group > n_stage ? group : n_stage);
  int warmup = at_most(s->n_chunk == 1 ? n_stage - stage - 1 : 2 * (n_stage - stage - 1) + ahead, total);
  for (int k = 0; k < warmup; k++) s->act[s->n_act++] = pass_of(s, n_stage, k, true);
  for (int k = 0; k < total; k++) {
    if (warmup + k < total) s->act[s->n_act++] = pass_of(s, n_stage, warmup + k, true);
    s->act[s->n_act++] = pass_of(s, n_stage, k, false);
  }
}

static void build_forward(Schedule *s, int n_stage, int stage) {
  (void)stage;
  for (int k = 0; k < s->n_mb * s->n_chunk; k++) s->act[s->n_act++] = pass_of(s, n_stage, k, true);
}

static const struct {
  const char *name;
  void (*build)(Schedule *, int n_stage, int stage);
} schedule_table[] = {{"1f1b", build_1f1b},
                      {"all_forward", build_all_forward},
                      {"interleaved", build_interleaved},
                      {"zero_bubble", build_zero_bubble},
                      {"forward", build_forward}};

enum { N_SCHEDULE = sizeof schedule_table / sizeof *schedule_table };
const char *schedule_nth(int i) { return i < N_SCHEDULE ? schedule_table[i].name : NULL; }

static bool unknown(const char *name, Err *e) {
  char list[256] = "";
  size_t n = 0;
  for (int i = 0; i < N_SCHEDULE; i++) n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", schedule_table[i].name);
  return err_set(e, ERR_CONFIG, "schedule.name: \"%s\" is not a schedule; there are: %s", name, list);
}

bool schedule_build(Schedule *s, Arena *a, const char *name, int n_stage, int stage, int n_mb, int n_chunk, Err *e) {
  for (int i = 0; i < N_SCHEDULE; i++)
    if (!strcmp(schedule_table[i].name, name)) {
      *s = (Schedule){.name = schedule_table[i].name, .act = ARENA_NEW(a, Action, 3 * n_mb * n_chunk), .n_mb = n_mb, .n_chunk = n_chunk};
      schedule_table[i].build(s, n_stage, stage);
      return true;
    }
  return unknown(name, e);
}
