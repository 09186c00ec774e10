/* Reads a run's metrics (log.metrics: one JSON object a line) as a flat list of fields. The only file of src/train that knows JSON is its
 * source. Called by compare and report. */
#ifndef ETALON_JSONL_H
#define ETALON_JSONL_H
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

typedef struct JsonlField {
  int64_t iteration;
  const char *path;          /* "lm loss", "hash/weights", "router/3/entropy": one pointer per path of a file */
  const char *text;          /* of a string, else NULL */
  double number;             /* NAN for null (a number that was not finite) and for text */
  int64_t order;             /* place in the file */
} JsonlField;
typedef struct Jsonl { const char *file; JsonlField *field; int64_t n, first, last /* iterations */; } Jsonl;

/* Lines without an iteration are left out, and a last line that was cut short. Fields are sorted by iteration, then path; of two with the
 * same iteration and path (a run that was resumed from before its end) the later in the file is kept. ERR_DATA: file, line, what is wrong. */
bool jsonl_read(Jsonl *j, Arena *a, const char *file, Err *e);
/* All numbers of one path by iteration, those that are not finite left out. Returns how many. */
typedef struct JsonlPoint { int64_t iteration; double v; } JsonlPoint;
int64_t jsonl_series(const Jsonl *j, Arena *a, const char *path, JsonlPoint **out);
#endif
