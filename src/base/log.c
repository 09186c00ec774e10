#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR_CELLS = 30 };

void log_open(Log *l, FILE *out, bool speaks) {
  int fd = fileno(out);
  const char *term = getenv("TERM"); /* mpirun gives every rank a terminal; whoever redirects it says so here */
  *l = (Log){.out = out, .speaks = speaks, .terminal = fd >= 0 && isatty(fd) && !(term && !strcmp(term, "dumb")), .bar_shown = false};
}

void log_line(Log *l, const char *fmt, ...) {
  if (!l->speaks) return;
  if (l->bar_shown) fputs("\r\033[K", l->out);
  l->bar_shown = false;
  va_list ap;
  va_start(ap, fmt);
  vfprintf(l->out, fmt, ap);
  va_end(ap);
  fputc('\n', l->out);
  fflush(l->out);
}

void log_bar(Log *l, double share, const char *text) {
  if (!l->speaks || !l->terminal) return;
  share = share > 0.0 ? share < 1.0 ? share : 1.0 : 0.0;
  int full = (int)(share * BAR_CELLS);
  char cells[BAR_CELLS + 1];
  for (int i = 0; i < BAR_CELLS; i++) cells[i] = i < full ? '#' : '.';
  cells[BAR_CELLS] = '\0';
  fprintf(l->out, "\r\033[K[%s] %3d%% %s", cells, (int)(share * 100.0), text);
  fflush(l->out);
  l->bar_shown = true;
}
