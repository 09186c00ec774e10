#include "train/check_compare.h"

#include <math.h>
#include <string.h>

CheckQuantity quantity_new(Arena *a, const char *name, int n, Judge judge, double tolerance) {
  return (CheckQuantity){.name = name, .judge = judge, .tolerance = tolerance, .n = n, .item = ARENA_NEW(a, CheckItem, n)};
}

void quantity_add(CheckQuantity *q, int i, double here, double golden) {
  CheckItem *t = &q->item[i];
  double d = here - golden;
  t->seen++;
  t->diff += q->judge == JUDGE_EQUAL ? (here == golden ? 0 : 1) : d * d;
  t->ref += golden * golden;
}

/* Doubles travel as bit patterns in a slot of their own: the others add the integer zero. */
typedef struct Slot {
  uint64_t seen, diff, ref;
} Slot;
static uint64_t bits(double x) {
  uint64_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
static double real(uint64_t b) {
  double x;
  memcpy(&x, &b, sizeof x);
  return x;
}

void quantity_combine(CheckQuantity *q, World *w, Arena *a) {
  ArenaMark mark = arena_mark(a);
  int n_rank = q->shared ? 1 : world_size(w), self = q->shared ? 0 : world_rank(w);
  Slot *slot = ARENA_NEW(a, Slot, (int64_t)n_rank * q->n);
  for (int i = 0; i < q->n; i++)
    slot[(int64_t)self * q->n + i] = (Slot){(uint64_t)q->item[i].seen, bits(q->item[i].diff), bits(q->item[i].ref)};
  if (!q->shared) comm_allreduce_u64(w, AXES_WORLD, (uint64_t *)slot, (int64_t)n_rank * q->n * (int64_t)(sizeof *slot / sizeof(uint64_t)));
  for (int i = 0; i < q->n; i++) {
    CheckItem *t = &q->item[i];
    t->seen = 0, t->diff = t->ref = 0;
    for (int r = 0; r < n_rank; r++) {
      const Slot *s = &slot[(int64_t)r * q->n + i];
      t->seen += (int64_t)s->seen, t->diff += real(s->diff), t->ref += real(s->ref);
    }
    CHECK(t->seen == t->size, "%s %s: %lld elements were compared, it has %lld", q->name, t->name, (long long)t->seen, (long long)t->size);
  }
  arena_release(a, mark);
}

static double relative(double diff, double ref) {
  return diff == 0 ? 0 : ref > 0 ? sqrt(diff) / sqrt(ref) : diff > 0 ? (double)INFINITY : diff;
}

static double floor_of(const CheckQuantity *q, const CheckItem *t) {
  double ref = 0, size = 0;
  for (int i = 0; i < q->n && q->floor > 0; i++) ref += q->item[i].ref, size += (double)q->item[i].size;
  return size > 0 ? q->floor * q->floor * ref / size * (double)t->size : 0;
}

double quantity_error(const CheckQuantity *q, int i) {
  const CheckItem *t = &q->item[i];
  return q->judge == JUDGE_EQUAL ? t->diff : relative(t->diff, fmax(t->ref, floor_of(q, t)));
}

static int worst_item(const CheckQuantity *q) {
  int worst = 0;
  for (int i = 1; i < q->n; i++) {
    double x = quantity_error(q, i), y = quantity_error(q, worst);
    if (x > y || (isnan(x) && !isnan(y))) worst = i;
  }
  return worst;
}

static double judged_error(const CheckQuantity *q) {
  if (q->judge != JUDGE_TOGETHER) return quantity_error(q, worst_item(q));
  double diff = 0, ref = 0;
  for (int i = 0; i < q->n; i++) diff += q->item[i].diff, ref += q->item[i].ref;
  return relative(diff, ref);
}

bool quantity_passes(const CheckQuantity *q) { return judged_error(q) <= q->tolerance; }

enum { NAME_COLUMN = 24, ITEM_COLUMN = 58 };

void quantity_print_header(Log *log) {
  log_line(log, "%-*s %4s  %-*s %9s  %9s", NAME_COLUMN, "quantity", "n", ITEM_COLUMN, "worst", "error", "tolerance");
}

void quantity_print(const CheckQuantity *q, Log *log) {
  if (q->lists)
    for (int i = 0; i < q->n; i++)
      log_line(log, "%-*s       %-*s %9.2e", NAME_COLUMN, q->name, ITEM_COLUMN, q->item[i].name, quantity_error(q, i));
  int worst = worst_item(q);
  const char *verdict = quantity_passes(q) ? "ok" : "FAIL";
  if (q->judge == JUDGE_EQUAL)
    log_line(log, "%-*s %4d  %-*s %9.0f  %9s  %s", NAME_COLUMN, q->name, q->n, ITEM_COLUMN, q->item[worst].name, quantity_error(q, worst),
             isinf(q->tolerance) ? "told" : "equal", verdict);
  else if (q->judge == JUDGE_TOGETHER)
    log_line(log, "%-*s %4d  %-*s %9.2e  %9.0e  %s (worst %.2e: %s)", NAME_COLUMN, q->name, q->n, ITEM_COLUMN, "all tensors together",
             judged_error(q), q->tolerance, verdict, quantity_error(q, worst), q->item[worst].name);
  else
    log_line(log, "%-*s %4d  %-*s %9.2e  %9.0e  %s", NAME_COLUMN, q->name, q->n, ITEM_COLUMN, q->item[worst].name, judged_error(q),
             q->tolerance, verdict);
}

bool quantity_judge(CheckQuantity *const *q, int n, const char *file, Err *e) {
  const CheckQuantity *first = NULL;
  int failed = 0;
  for (int k = 0; k < n; k++)
    if (!quantity_passes(q[k])) first = first ? first : q[k], failed++;
  if (!first) return true;
  const char *item = first->judge == JUDGE_TOGETHER ? "all tensors together" : first->item[worst_item(first)].name;
  char others[64] = "";
  if (failed > 1) snprintf(others, sizeof others, "; %d more quantities are beyond theirs", failed - 1);
  if (first->judge == JUDGE_EQUAL)
    return err_set(e, ERR_MISMATCH, "%s: %s %s: %.0f values differ, none may%s", file, first->name, item, judged_error(first), others);
  return err_set(e, ERR_MISMATCH, "%s: %s %s: relative L2 error %.3g, tolerance %.3g%s", file, first->name, item, judged_error(first),
                 first->tolerance, others);
}
