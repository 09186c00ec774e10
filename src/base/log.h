/* Text for people: one stream, only one rank speaks. Messages of every rank go through errors (err.h), not through here. */
#ifndef ETALON_LOG_H
#define ETALON_LOG_H
#include <stdbool.h>
#include <stdio.h>
typedef struct Log { FILE *out; bool speaks, terminal, bar_shown; } Log;
void log_open(Log *l, FILE *out, bool speaks);
void log_line(Log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));  /* adds the newline; wipes a progress bar first */
void log_bar(Log *l, double share, const char *text);   /* progress bar, only on a terminal; overwritten by the next line */
#endif
