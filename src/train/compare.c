#include "train/compare.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ckpt/diff.h"
#include "train/jsonl.h"

/* Of two fields of one step and path. */
typedef struct Pair {
  const JsonlField *a, *b;
} Pair;

/* Fields that come in families: how many differ, and which is the first in the order of a run. */
typedef struct Family {
  const char *head, *what, *first;
  bool backward; /* the first is the last in the file: a backward pass goes from the top down */
} Family;
static const Family families[] = {
    {"value_hash/", "values of the forward pass", "first in the forward pass", false},
    {"sequence_hash/", "sequences of the batch", "first", false},
    {"tensor_hash/gradients/", "gradients", "first in the backward pass", true},
    {"tensor_hash/weights/", "weights after the step", "first", false},
    {"router/", "router statistics", "first", false},
};
enum { N_FAMILY = sizeof families / sizeof *families, MAX_LINES = 24 };

typedef struct Found {
  const JsonlField *first;
  int64_t n_differ, n;
} Found;

static bool starts(const char *text, const char *head) { return !strncmp(text, head, strlen(head)); }

/* What depends on the machine and the moment. */
static bool is_compared(const JsonlField *f, double tolerance) {
  static const char *const skipped[] = {"throughput/",           "memory/", "tflops", "mfu", "iteration-time",
                                        "forward-backward-time", "time",    "event"};
  for (size_t i = 0; i < sizeof skipped / sizeof *skipped; i++)
    if (starts(f->path, skipped[i])) return false;
  return tolerance <= 0 || !f->text;
}

static double relative(double a, double b) {
  double size = fmax(fabs(a), fabs(b));
  return a == b ? 0 : size > 0 ? fabs(a - b) / size : 0;
}
static bool equal(Pair p, double tolerance) {
  if (p.a->text || p.b->text) return p.a->text && p.b->text && !strcmp(p.a->text, p.b->text);
  if (isnan(p.a->number) || isnan(p.b->number)) return isnan(p.a->number) && isnan(p.b->number);
  return relative(p.a->number, p.b->number) <= tolerance;
}

static int order_of(const JsonlField *x, const JsonlField *y) {
  if (x->iteration != y->iteration) return x->iteration < y->iteration ? -1 : 1;
  return strcmp(x->path, y->path);
}

/* Fields that both files have, in order. Returns [*n] pairs; *steps: how many steps they are of. */
static Pair *pairs_of(Arena *a, const Jsonl *x, const Jsonl *y, double tolerance, int64_t *n, int64_t *steps) {
  Pair *p = ARENA_NEW(a, Pair, x->n + 1);
  int64_t step = -1;
  *n = *steps = 0;
  for (int64_t i = 0, k = 0; i < x->n && k < y->n;) {
    int c = order_of(&x->field[i], &y->field[k]);
    if (c < 0) {
      i++;
    } else if (c > 0) {
      k++;
    } else {
      if (is_compared(&x->field[i], tolerance)) {
        p[(*n)++] = (Pair){&x->field[i], &y->field[k]};
        *steps += x->field[i].iteration != step;
        step = x->field[i].iteration;
      }
      i++, k++;
    }
  }
  return p;
}

/* ---- reporting ------------------------------------------------------------------------------------------------------------------- */
static int family_of(const JsonlField *f) {
  for (int i = 0; i < N_FAMILY; i++)
    if (starts(f->path, families[i].head)) return i;
  return -1;
}

/* Numbers that say that the runs were told otherwise: they come before what follows from them. */
static bool is_cause(const Pair *p) {
  static const char *const cause[] = {"consumed_samples", "tokens", "learning-rate"};
  for (size_t i = 0; i < sizeof cause / sizeof *cause; i++)
    if (!strcmp(cause[i], p->a->path)) return true;
  return false;
}
/* Pairs [first, end) of one step: causes, then the others, each in their order. */
static Pair *causes_first(Arena *a, const Pair *p, int64_t first, int64_t end) {
  Pair *out = ARENA_NEW(a, Pair, end - first);
  int64_t n = 0;
  for (int others = 0; others < 2; others++)
    for (int64_t i = first; i < end; i++)
      if (is_cause(&p[i]) != (others == 1)) out[n++] = p[i];
  return out;
}

static void note(Found *f, const Family *k, const JsonlField *x) {
  f->n_differ++;
  if (!f->first || (x->order < f->first->order) != k->backward) f->first = x;
}

static void print_number(Pair p, FILE *out) {
  if (p.a->text)
    fprintf(out, "  %-28s %s, %s\n", p.a->path, p.a->text, p.b->text ? p.b->text : "no text");
  else
    fprintf(out, "  %-28s %.9g, %.9g: relative difference %.3g\n", p.a->path, p.a->number, p.b->number, relative(p.a->number, p.b->number));
}

/* All pairs of one step; the error names the most telling one. */
static bool report_step(const Pair *p, int64_t n, double tolerance, const char *files, FILE *out, Err *e) {
  Found found[N_FAMILY] = {0};
  int64_t step = p[0].a->iteration, last = 0;
  int lines = 0;
  const Pair *number = NULL;
  fprintf(out, "first difference at step %" PRId64 ":\n", step);
  for (int64_t i = 0; i < n; i++) {
    int k = family_of(p[i].a);
    if (k >= 0) found[k].n++;
    if (equal(p[i], tolerance)) continue;
    last = i;
    if (k >= 0) {
      note(&found[k], &families[k], p[i].a);
      continue;
    }
    bool loss = !strcmp(p[i].a->path, "lm loss") && !p[i].a->text;
    if (!number || (loss && !is_cause(number))) number = &p[i];
    if (lines++ < MAX_LINES) print_number(p[i], out);
  }
  const char *where = number ? number->a->path : p[last].a->path, *what = "";
  for (int k = N_FAMILY - 1; k >= 0; k--)
    if (found[k].first) what = families[k].first, where = found[k].first->path + strlen(families[k].head);
  for (int k = 0; k < N_FAMILY; k++)
    if (found[k].first)
      fprintf(out, "  %" PRId64 " of %" PRId64 " %s; %s: %s\n", found[k].n_differ, found[k].n, families[k].what, families[k].first,
              found[k].first->path + strlen(families[k].head));
  if (number && !number->a->text && !number->b->text)
    return err_set(e, ERR_MISMATCH, "%s differ at step %" PRId64 ": %s by %.3g%s%s%s%s", files, step, number->a->path,
                   relative(number->a->number, number->b->number), *what ? "; " : "", what, *what ? ": " : "", *what ? where : "");
  return err_set(e, ERR_MISMATCH, "%s differ at step %" PRId64 ": %s%s%s", files, step, what, *what ? ": " : "", where);
}

/* Of the step that pair `at` is of. */
static bool report_pair(Arena *a, const Pair *p, int64_t at, int64_t n, double tolerance, const char *files, FILE *out, Err *e) {
  int64_t first = at, end = at;
  while (first > 0 && p[first - 1].a->iteration == p[at].a->iteration) first--;
  while (end < n && p[end].a->iteration == p[at].a->iteration) end++;
  return report_step(causes_first(a, p, first, end), end - first, tolerance, files, out, e);
}

static bool compare_metrics(Arena *a, const char *path_a, const char *path_b, double tolerance, FILE *out, Err *e) {
  Jsonl x, y;
  int64_t n, steps;
  TRY(jsonl_read(&x, a, path_a, e) && jsonl_read(&y, a, path_b, e));
  jsonl_say_left(&x, out), jsonl_say_left(&y, out);
  Pair *p = pairs_of(a, &x, &y, tolerance, &n, &steps);
  fprintf(out,
          "%s: steps %" PRId64 " to %" PRId64 "\n%s: steps %" PRId64 " to %" PRId64 "\n%" PRId64 " steps and %" PRId64
          " numbers in common\n",
          path_a, x.first, x.last, path_b, y.first, y.last, steps, n);
  if (!n) return err_set(e, ERR_DATA, "%.300s and %.300s have no step in common", path_a, path_b);
  for (int64_t i = 0; i < n; i++)
    if (!equal(p[i], tolerance)) return report_pair(a, p, i, n, tolerance, arena_printf(a, "%.300s and %.300s", path_a, path_b), out, e);
  fprintf(out, "%s\n", tolerance > 0 ? "all within the tolerance" : "all equal");
  return true;
}

bool compare_run(Arena *a, const char *path_a, const char *path_b, double tolerance, FILE *out, Err *e) {
  static const char *const name[] = {
      [FILE_CHECKPOINT] = "a checkpoint", [FILE_GOLDEN] = "a golden file", [FILE_OTHER] = "neither checkpoint nor golden file"};
  FileKind kind[2];
  TRY(diff_file_kind(path_a, &kind[0], e) && diff_file_kind(path_b, &kind[1], e));
  if (kind[0] != kind[1]) return err_set(e, ERR_CKPT, "%.300s is %s, but %.300s is %s", path_a, name[kind[0]], path_b, name[kind[1]]);
  if (kind[0] == FILE_OTHER) return compare_metrics(a, path_a, path_b, tolerance, out, e);
  return diff_run(a, kind[0], path_a, path_b, tolerance, out, e);
}
