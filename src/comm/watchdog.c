#include "comm/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/timer.h"
#include "comm/comm_mpi.h"

enum { SHOWN = 16, MESSAGE = 4096, NAME = 64 };
static const double tell_seconds = 2, speak_seconds = 5, other_host_seconds = 5, poll_most = 0.5;

/* What the ranks of a host share. */
typedef struct Shared {
  atomic_bool alarm, spoken;
  atomic_int speaker; /* local rank + 1 of the one that writes the message */
  Pulse pulse[];      /* [local ranks] */
} Shared;

struct Watchdog {
  World *w;
  double seconds;
  Shared *shared;
  size_t bytes;
  int *rank, n, self; /* world ranks of this host; this rank's place */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool runs, closing;
};

/* ---- the message ------------------------------------------------------------------------------------------------------------------ */

static void tell(Watchdog *d) {
  Pulse *p = &d->shared->pulse[d->self];
  char name[NAME] = "";
  PulseName *name_of = atomic_load(&p->name);
  const void *list = atomic_load(&p->list);
  const char *doing = atomic_load(&p->doing);
  if (name_of && list)
    name_of(list, atomic_load(&p->place), name, sizeof name);
  else
    snprintf(name, sizeof name, "%s", doing ? doing : "starting");
  snprintf(p->text, sizeof p->text, "step %lld, %s", (long long)atomic_load(&p->step), name);
  atomic_store(&p->told, true);
}

/* The axes that make a group what it is. */
static void axes_text(const Mesh *m, AxisSet axes, char *out, size_t size) {
  size_t n = 0;
  snprintf(out, size, "all");
  for (Axis a = 0; a < N_AXIS; a++)
    if (axes & AXIS_BIT(a) && m->size[a] > 1 && n < size) n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "." : "", axis_name(a));
}

static size_t describe(const Watchdog *d, int i, char *out, size_t size) {
  const Pulse *p = &d->shared->pulse[i];
  if (!atomic_load(&p->told)) return (size_t)snprintf(out, size, "rank %d: does not answer (dead or stopped)", d->rank[i]);
  AxisSet axes = atomic_load(&p->waits);
  int peer = atomic_load(&p->peer);
  char group[64];
  axes_text(&d->w->mesh, axes, group, sizeof group);
  if (!axes) return (size_t)snprintf(out, size, "rank %d: %s, waits for nobody", d->rank[i], p->text);
  if (peer < 0) return (size_t)snprintf(out, size, "rank %d: %s, waits for all ranks", d->rank[i], p->text);
  return (size_t)snprintf(out, size, "rank %d: %s, waits for rank %d (group %s)", d->rank[i], p->text, peer, group);
}

/* A rank that does not answer or waits for nobody holds up the others. */
static bool is_to_blame(const Pulse *p) { return !atomic_load(&p->told) || atomic_load(&p->waits) == 0; }

static void speak(Watchdog *d) {
  char text[MESSAGE];
  size_t n = (size_t)snprintf(text, sizeof text, "error: no rank has done anything for %g s (train.hang_seconds)", d->seconds);
  int shown = 0;
  for (int blame = 1; blame >= 0; blame--)
    for (int i = 0; i < d->n; i++) {
      if (is_to_blame(&d->shared->pulse[i]) != blame || n + 2 * PULSE_TEXT >= sizeof text || shown >= SHOWN) continue;
      n += (size_t)snprintf(text + n, sizeof text - n, "%s", shown++ ? "\n  " : ". ");
      n += describe(d, i, text + n, sizeof text - n);
    }
  if (shown < d->n) n += (size_t)snprintf(text + n, sizeof text - n, "\n  and %d more ranks on this host", d->n - shown);
  text[n++] = '\n';
  ssize_t wrote = write(STDERR_FILENO, text, n);
  (void)wrote;
}

static void nap(double seconds) {
  nanosleep(&(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
}

static bool all_told(const Watchdog *d) {
  for (int i = 0; i < d->n; i++)
    if (!atomic_load(&d->shared->pulse[i].told)) return false;
  return true;
}

static void await_told(const Watchdog *d) {
  for (double end = timer_now() + tell_seconds; timer_now() < end && !all_told(d);) nap(0.02);
}

/* The first rank to come writes for its host; the host of rank 0 comes first, and ends the others before they would write too. */
static void end_run(Watchdog *d) {
  Shared *s = d->shared;
  atomic_store(&s->alarm, true);
  tell(d);
  if (d->rank[0] != 0) nap(other_host_seconds);
  int nobody = 0;
  if (atomic_compare_exchange_strong(&s->speaker, &nobody, d->self + 1)) {
    await_told(d);
    speak(d);
    atomic_store(&s->spoken, true);
  }
  for (double end = timer_now() + tell_seconds + speak_seconds; timer_now() < end && !atomic_load(&s->spoken);) nap(0.02);
  _exit(ERR_HANG);
}

/* ---- the thread -------------------------------------------------------------------------------------------------------------------- */

static uint64_t beats(const Watchdog *d) {
  uint64_t sum = 0;
  for (int i = 0; i < d->n; i++) sum += atomic_load_explicit(&d->shared->pulse[i].beat, memory_order_relaxed);
  return sum;
}

/* Sleeps; returns false when the watchdog is to close. */
static bool sleep_awake(Watchdog *d, double seconds) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  double at = (double)t.tv_nsec * 1e-9 + seconds;
  t.tv_sec += (time_t)at;
  t.tv_nsec = (long)((at - (double)(time_t)at) * 1e9);
  pthread_mutex_lock(&d->lock);
  while (!d->closing)
    if (pthread_cond_timedwait(&d->wake, &d->lock, &t)) break;
  bool go_on = !d->closing;
  pthread_mutex_unlock(&d->lock);
  return go_on;
}

/* Idle time is counted in polls: while the whole job is suspended, no time passes. */
static void *look_on(void *watchdog) {
  Watchdog *d = watchdog;
  double poll = d->seconds / 16 < poll_most ? d->seconds / 16 : poll_most, idle = 0, last = timer_now();
  uint64_t seen = beats(d);
  while (sleep_awake(d, poll)) {
    uint64_t now = beats(d);
    double t = timer_now(), passed = t - last < 2 * poll ? t - last : 2 * poll;
    idle = now == seen ? idle + passed : 0;
    seen = now, last = t;
    if (idle >= d->seconds || atomic_load(&d->shared->alarm)) end_run(d);
  }
  return NULL;
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------------ */

/* A segment that has no name once all have it: nothing is left behind, however the run ends. */
static bool share_memory(Watchdog *d, MPI_Comm host, Err *e) {
  char name[NAME];
  snprintf(name, sizeof name, "/etalon-%ld-%llx", (long)getpid(), (unsigned long long)(timer_now() * 1e9));
  MPI_Bcast(name, sizeof name, MPI_BYTE, 0, host);
  int fd = -1;
  void *p = MAP_FAILED;
  if (d->self == 0) fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (d->self == 0 && fd >= 0 && ftruncate(fd, (off_t)d->bytes) != 0) close(fd), fd = -1;
  MPI_Barrier(host);
  if (d->self != 0) fd = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) p = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int code = errno;
  if (fd >= 0) close(fd);
  MPI_Barrier(host);
  if (d->self == 0) shm_unlink(name);
  if (p != MAP_FAILED) return d->shared = p, true;
  return err_set(e, ERR_CONFIG, "train.hang_seconds: the ranks of a host cannot share memory: %s; set train.hang_seconds: 0",
                 strerror(code));
}

static void list_ranks(Watchdog *d, Arena *a, MPI_Comm host) {
  MPI_Comm_size(host, &d->n);
  MPI_Comm_rank(host, &d->self);
  d->rank = ARENA_NEW(a, int, d->n);
  MPI_Allgather(&d->w->rank, 1, MPI_INT, d->rank, 1, MPI_INT, host);
}

bool watchdog_open(Watchdog **out, World *w, Arena *a, double seconds, Err *e) {
  *out = NULL;
  if (seconds <= 0) return true;
  Watchdog *d = ARENA_NEW(a, Watchdog, 1);
  MPI_Comm host;
  d->w = w;
  d->seconds = seconds;
  MPI_Comm_split_type(w->all, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &host);
  list_ranks(d, a, host);
  d->bytes = sizeof(Shared) + (size_t)d->n * sizeof(Pulse);
  share_memory(d, host, e);
  MPI_Comm_free(&host);
  if (!world_agree(w, e)) return false;
  pthread_mutex_init(&d->lock, NULL);
  pthread_cond_init(&d->wake, NULL);
  w->pulse = &d->shared->pulse[d->self];
  int code = pthread_create(&d->thread, NULL, look_on, d);
  CHECK(code == 0, "no thread for the watchdog: %s", strerror(code));
  *out = d;
  return true;
}

void watchdog_close(Watchdog *d) {
  if (!d) return;
  pthread_mutex_lock(&d->lock);
  d->closing = true;
  pthread_cond_signal(&d->wake);
  pthread_mutex_unlock(&d->lock);
  pthread_join(d->thread, NULL);
  d->w->pulse = &d->w->no_pulse;
  munmap(d->shared, d->bytes);
}
