/* Schedules proved offline, 1 to 64 stages: nobody waits for ever, memory and idle time are what the papers say, and errors are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/schedule.h"

static int least(int a, int b) { return a < b ? a : b; }

/* What is alive at most on a stage. */
typedef int LiveFn(int p, int s, int m, int v);
static int live_1f1b(int p, int s, int m, int v) { return (void)v, least(m, p - s); }
static int live_all(int p, int s, int m, int v) { return (void)p, (void)s, m * v; }
/* Narayanan et al. 2021: 2 (p - s - 1) passes and a group for every further chunk, and the one at work. The last group has the rest, too. */
static int live_interleaved(int p, int s, int m, int v) {
  if (v == 1) return live_1f1b(p, s, m, v);
  int group = m > p ? p + m % p : p;
  return least(m * v, 2 * (p - s - 1) + (v - 1) * group + 1);
}
/* ZB-H1 (Qi et al. 2023): what 1F1B has on the first stage, nowhere more. */
static int live_zero_bubble(int p, int s, int m, int v) { return (void)v, (void)s, least(m, p); }

/* Idle time of a stage, in forward passes: backward 2, its halves 1. */
typedef double IdleFn(int p, int m, int v);
static double idle_1f1b(int p, int m, int v) { return (void)m, (void)v, 3.0 * (p - 1); }
static double idle_forward(int p, int m, int v) { return v == 1 || m >= p ? p - 1.0 : -1; }
static double idle_any(int p, int m, int v) { return (void)p, (void)m, (void)v, -1; }
static double idle_interleaved(int p, int m, int v) { return v > 1 && m % p ? -1 : 3.0 * (p - 1); }
/* (p - 1)(F + B - W) when there are enough micro-batches to fill the gaps */
static double idle_zero_bubble(int p, int m, int v) { return (void)v, m >= 2 * p - 1 ? p - 1.0 : -1; }

typedef struct Row {
  const char *name;
  bool chunks, exact; /* several chunks on a stage; live is a number, not a bound */
  double work;        /* of a micro-batch chunk */
  LiveFn *live;
  IdleFn *idle;
} Row;
static const Row row[] = {{"1f1b", false, true, 3, live_1f1b, idle_1f1b},
                          {"all_forward", true, true, 3, live_all, idle_any},
                          {"interleaved", true, true, 3, live_interleaved, idle_interleaved},
                          {"zero_bubble", false, false, 3, live_zero_bubble, idle_zero_bubble},
                          {"forward", true, true, 1, live_all, idle_forward}};
enum { N_ROW = sizeof row / sizeof *row };

static void prove(Arena *a, const Row *r, int p, int m, int v) {
  ArenaMark mark = arena_mark(a);
  ScheduleProof proof;
  if (!schedule_prove(&proof, a, r->name, p, m, v)) fail_msg("%s, %d stages, %d micro-batches, %d chunks: %s", r->name, p, m, v, proof.why);
  for (int s = 0; s < p; s++) {
    int live = r->live(p, s, m, v), found = proof.peak_live[s];
    if (r->exact ? found != live : found > live)
      fail_msg("%s, stage %d of %d, %d micro-batches, %d chunks: %d alive, %d expected", r->name, s, p, m, v, found, live);
  }
  double idle = r->idle(p, m, v), span = r->work * m * v + idle;
  if (idle >= 0 && proof.span != span)
    fail_msg("%s, %d stages, %d micro-batches, %d chunks: %g long, %g expected", r->name, p, m, v, proof.span, span);
  if (idle >= 0) assert_true(proof.bubble > idle / span - 1e-9 && proof.bubble < idle / span + 1e-9);
  arena_release(a, mark);
}

static void every_schedule_ends(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "schedules", (size_t)1 << 30);
  static const int few[] = {1, 2, 3, 4, 5, 7, 8}, many[] = {12, 13, 31, 64};
  for (int k = 0; k < N_ROW; k++)
    for (int v = 1; v <= (row[k].chunks ? 4 : 1); v++) {
      /* one stage has one chunk */
      for (size_t i = v > 1; i < sizeof few / sizeof *few; i++)
        for (int m = 1; m <= 3 * few[i] + 2; m++) prove(&a, &row[k], few[i], m, v);
      for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        const int m[] = {1, many[i] / 2, many[i] - 1, many[i], many[i] + 1, 2 * many[i] - 1, 2 * many[i]};
        for (size_t j = 0; j < sizeof m / sizeof *m; j++)
          if (v <= 2) prove(&a, &row[k], many[i], m[j], v);
      }
    }
  arena_close(&a);
}

/* A schedule without a row above would be proved nowhere. */
static void every_schedule_has_a_row(void **state) {
  (void)state;
  for (int i = 0; schedule_nth(i); i++) {
    int k = 0;
    while (k < N_ROW && strcmp(row[k].name, schedule_nth(i)) != 0) k++;
    if (k == N_ROW) fail_msg("no row for %s", schedule_nth(i));
  }
}

/* 1F1B by hand: a share of (p - 1) / (m + p - 1) is idle, whatever a pass costs. */
static void bubble_by_hand(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "schedules", (size_t)1 << 20);
  ScheduleProof proof;
  assert_true(schedule_prove(&proof, &a, "1f1b", 4, 8, 1));
  assert_true(proof.span == 33 && proof.bubble == 1 - 24.0 / 33);
  assert_true(schedule_prove(&proof, &a, "interleaved", 4, 8, 2));
  assert_true(proof.span == 57 && proof.bubble == 1 - 48.0 / 57); /* chunks of half the size: 28.5 instead of 33 */
  assert_true(schedule_prove(&proof, &a, "zero_bubble", 4, 8, 1));
  assert_true(proof.span == 27 && proof.bubble == 1 - 24.0 / 27);
  assert_false(schedule_prove(&proof, &a, "two_backward", 4, 8, 1));
  assert_non_null(strstr(proof.why, "two_backward"));
  arena_close(&a);
}

/* ---- planted errors ------------------------------------------------------------------------------------------------------------------ */
static Schedule *build(Arena *a, const char *name, int p, int m, int v) {
  Schedule *s = ARENA_NEW(a, Schedule, p);
  Err e = {0};
  for (int i = 0; i < p; i++) assert_true(schedule_build(&s[i], a, name, p, i, m, v, &e));
  ScheduleProof proof;
  assert_true(schedule_prove_actions(&proof, a, s, p, false));
  return s;
}
static void refused(Arena *a, const Schedule *s, int p, const char *why) {
  ScheduleProof proof;
  assert_false(schedule_prove_actions(&proof, a, s, p, false));
  if (!strstr(proof.why, why)) fail_msg("\"%s\" does not say \"%s\"", proof.why, why);
}
static int find(const Schedule *s, ActKind kind, int mb, int chunk) {
  for (int i = 0; i < s->n_act; i++)
    if (s->act[i].kind == kind && s->act[i].mb == mb && s->act[i].chunk == chunk) return i;
  fail_msg("no such action");
  return -1;
}
static void swap(Schedule *s, int i, int j) {
  Action x = s->act[i];
  s->act[i] = s->act[j];
  s->act[j] = x;
}
static void drop(Schedule *s, int i) {
  memmove(&s->act[i], &s->act[i + 1], (size_t)(s->n_act - i - 1) * sizeof *s->act);
  s->n_act--;
}

static void planted_errors_are_found(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "schedules", (size_t)16 << 20);
  Schedule *s = build(&a, "1f1b", 3, 4, 1);
  swap(&s[2], find(&s[2], ACT_FWD, 1, 0), find(&s[2], ACT_BWD, 1, 0));
  refused(&a, s, 3, "stage 2, B of micro-batch 1, chunk 0: before its forward");
  s = build(&a, "1f1b", 3, 4, 1); /* the first stage asks for the second gradient before it sends the forward that it hangs on */
  swap(&s[0], find(&s[0], ACT_FWD, 2, 0), find(&s[0], ACT_BWD, 1, 0));
  swap(&s[1], find(&s[1], ACT_FWD, 2, 0), find(&s[1], ACT_BWD, 0, 0));
  swap(&s[1], find(&s[1], ACT_BWD, 0, 0), find(&s[1], ACT_BWD, 1, 0));
  refused(&a, s, 3, "waits for ever");
  s = build(&a, "1f1b", 3, 4, 1);
  s[1].act[find(&s[1], ACT_FWD, 3, 0)].mb = 0;
  refused(&a, s, 3, "stage 1, F of micro-batch 0, chunk 0: a second time");
  s = build(&a, "1f1b", 3, 4, 1);
  s[1].act[find(&s[1], ACT_BWD, 3, 0)].mb = 4;
  refused(&a, s, 3, "there is none");
  s = build(&a, "zero_bubble", 3, 4, 1);
  drop(&s[1], find(&s[1], ACT_BWD_W, 2, 0));
  refused(&a, s, 3, "stage 1, Bw of micro-batch 2, chunk 0: is missing");
  s = build(&a, "zero_bubble", 3, 4, 1);
  swap(&s[1], find(&s[1], ACT_BWD_X, 2, 0), find(&s[1], ACT_BWD_W, 2, 0));
  refused(&a, s, 3, "before its other half");
  s = build(&a, "zero_bubble", 3, 4, 1);
  s[0].act[find(&s[0], ACT_BWD_W, 3, 0)].mb = 2;
  refused(&a, s, 3, "a second time");
  s = build(&a, "1f1b", 3, 4, 1);
  for (int i = 0; i < 3; i++) drop(&s[i], find(&s[i], ACT_BWD, 3, 0)), drop(&s[i], find(&s[i], ACT_FWD, 3, 0));
  refused(&a, s, 3, "F of micro-batch 3, chunk 0: is missing"); /* all stages agree, and are wrong */
  s = build(&a, "interleaved", 2, 4, 2);
  swap(&s[0], find(&s[0], ACT_FWD, 0, 0), find(&s[0], ACT_FWD, 0, 1));
  refused(&a, s, 2, "waits for ever");
  arena_close(&a);
}

/* The second stage may have four gradients under way: the first may take the fourth before any other, and not the fifth. */
static void gradients_under_way(void **state) {
  (void)state;
  Arena a;
  arena_open(&a, "schedules", (size_t)16 << 20);
  Schedule *s = build(&a, "all_forward", 2, 6, 1);
  ScheduleProof proof;
  swap(&s[0], find(&s[0], ACT_BWD, 0, 0), find(&s[0], ACT_BWD, SCHEDULE_GRAD_SENDS - 1, 0));
  assert_true(schedule_prove_actions(&proof, &a, s, 2, false));
  swap(&s[0], find(&s[0], ACT_BWD, SCHEDULE_GRAD_SENDS - 1, 0), find(&s[0], ACT_BWD, SCHEDULE_GRAD_SENDS, 0));
  refused(&a, s, 2, "waits for ever");
  arena_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_ends),      cmocka_unit_test(every_schedule_has_a_row), cmocka_unit_test(bubble_by_hand),
      cmocka_unit_test(planted_errors_are_found), cmocka_unit_test(gradients_under_way),
  };
  return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
