#include "ckpt/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CPU_SECONDS = 5 };

/* For a crash that is expected, MPI's handlers would print a stack, a C library its complaint, the kernel a core file. */
static void die_quietly(void) {
  static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGXCPU};
  for (unsigned i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) signal(SIGNALS[i], SIG_DFL);
  int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO), dup2(nowhere, STDERR_FILENO);
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  probe_progress();
}

void probe_progress(void) {
  struct rusage used;
  struct rlimit limit;
  getrusage(RUSAGE_SELF, &used), getrlimit(RLIMIT_CPU, &limit);
  limit.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec + CPU_SECONDS + 1);
  if (limit.rlim_cur <= limit.rlim_max) setrlimit(RLIMIT_CPU, &limit);
}

bool probe_survives(void (*touch)(void *ctx), void *ctx, Err *e) {
  pid_t child = fork();
  if (child < 0) return err_set(e, ERR_CKPT, "no process for a trial read: %s", strerror(errno));
  if (child == 0) {
    die_quietly();
    touch(ctx);
    _exit(0); /* no atexit handlers: they belong to the parent */
  }
  int status = 0;
  pid_t got;
  do got = waitpid(child, &status, 0);
  while (got < 0 && errno == EINTR);
  if (got == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  return err_set(e, ERR_CKPT, "damaged: the library that reads it crashed or hung in a trial");
}
