#include "train/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/timer.h"

static volatile sig_atomic_t stop_signal; /* written by the handler alone: a signal has no other way in */

static void on_signal(int sig) { stop_signal = sig; }

void stop_open(Stop *s, const char *file, double max_minutes) {
  *s = (Stop){.file = file && *file ? file : NULL, .deadline = max_minutes > 0 ? timer_now() + 60 * max_minutes : 0};
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &a, NULL);
  sigaction(SIGTERM, &a, NULL);
}

const char *stop_requested(const Stop *s, World *w) {
  static const char *const why[] = {NULL, "train.max_minutes is over", "the stop file is there", "a signal asked for it"};
  uint64_t mine = 0;
  if (s->deadline && timer_now() >= s->deadline) mine = 1;
  if (s->file && access(s->file, F_OK) == 0) mine = 2;
  if (stop_signal) mine = 3;
  comm_allreduce_max_u64(w, AXES_WORLD, &mine, 1);
  return why[mine];
}
