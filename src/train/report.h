/* `etalon report`: a run's metrics as one HTML page that needs nothing else. One process. */
#ifndef ETALON_REPORT_H
#define ETALON_REPORT_H
#include <stdio.h>
#include "base/arena.h"
#include "base/err.h"
/* metrics: a file of log.metrics. Loss, validation, learning rate, gradient norm, speed, load, router layers, memory: whatever is in it.
 * ERR_DATA: not such a file; ERR_CONFIG: the page cannot be written. */
bool report_run(Arena *a, const char *metrics, const char *html, FILE *out, Err *e);
#endif
