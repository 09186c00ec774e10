#include "base/timer.h"

#include <time.h>

static double timer_read(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double timer_now(void) { return timer_read(CLOCK_MONOTONIC); }

double timer_unix(void) { return timer_read(CLOCK_REALTIME); }
