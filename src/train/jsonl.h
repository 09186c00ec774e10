/* Reads a run's metrics (log.metrics: one JSON object a line) as a flat list of fields. The only file of src/train that knows JSON is its
 * source. Called by compare and report. */
#ifndef ETALON_JSONL_H
#define ETALON_JSONL_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"

typedef struct JsonlField {
  int64_t iteration;
  const char *path;          /* "lm loss", "hash/weights", "router/3/entropy": one pointer per path of a file */
  const char *text;          /* of a string, else NULL */
  double number;             /* NAN for null (a number that was not finite) and for text */
  int64_t order;             /* place in the file */
} JsonlField;
typedef struct Jsonl {
  const char *file; JsonlField *field; int64_t n, first, last /* iterations */;
  int64_t n_run, left_from, left_to;   /* runs that say where they begin; iterations that others before them had and the list has not; left_to 0: none */
} Jsonl;

/* Lines without an iteration are left out, and a line that was cut short: the last, or the last of a run before another. A file is one history: where a
 * run begins (metrics_begin), whatever stood there of its first iteration and later ones is dropped. Fields are sorted by iteration, then path; of two
 * with the same iteration and path the later in the file is kept. ERR_DATA: file, line, what is wrong. */
bool jsonl_read(Jsonl *j, Arena *a, const char *file, Err *e);
/* "FILE: iterations 3 to 5 of a run that ...", a line, if any were dropped. */
void jsonl_say_left(const Jsonl *j, FILE *out);
/* All numbers of one path by iteration, those that are not finite left out. Returns how many. */
typedef struct JsonlPoint { int64_t iteration; double v; } JsonlPoint;
int64_t jsonl_series(const Jsonl *j, Arena *a, const char *path, JsonlPoint **out);
#endif
