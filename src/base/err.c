#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool err_set(Err *e, ErrCode code, const char *fmt, ...) {
  if (e->code != ERR_NONE) return false;
  e->code = code;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(e->text, sizeof e->text, fmt, ap);
  va_end(ap);
  return false;
}

bool err_wrap(Err *e, const char *fmt, ...) {
  char old[ERR_TEXT], front[ERR_TEXT / 2];
  memcpy(old, e->text, sizeof old);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(front, sizeof front, fmt, ap);
  va_end(ap);
  size_t n = strlen(front), room = sizeof e->text - n - 3; /* ": " and the terminator */
  size_t m = strlen(old);
  if (m > room) m = room;
  memcpy(e->text, front, n);
  memcpy(e->text + n, ": ", 2);
  memcpy(e->text + n + 2, old, m);
  e->text[n + 2 + m] = '\0';
  return false;
}

static struct {
  void (*stop)(void *ctx, int code);
  void *ctx;
} die_hook;

void die_set_hook(void (*stop)(void *ctx, int code), void *ctx) {
  die_hook.stop = stop;
  die_hook.ctx = ctx;
}

static size_t clip(int wanted, size_t room) { return wanted < 0 ? 0 : (size_t)wanted < room ? (size_t)wanted : room - 1; }

void die(const char *file, int line, const char *fmt, ...) {
  /* One write, so that lines of ranks that share a terminal do not mix. */
  char text[ERR_TEXT + 512];
  size_t n = clip(snprintf(text, 512, "fatal: %s:%d: ", file, line), 512);
  va_list ap;
  va_start(ap, fmt);
  n += clip(vsnprintf(text + n, sizeof text - n - 1, fmt, ap), sizeof text - n - 1);
  va_end(ap);
  text[n++] = '\n';
  ssize_t wrote = write(STDERR_FILENO, text, n);
  (void)wrote;
  void (*stop)(void *, int) = die_hook.stop;
  die_hook.stop = NULL; /* a bug inside the hook must still end the process */
  if (stop) stop(die_hook.ctx, ERR_BUG);
  _exit(ERR_BUG);
}
