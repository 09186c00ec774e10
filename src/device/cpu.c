#include "device/cpu.h"
#include "base/arena.h"
#include "base/rng.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Each copy stream is a thread and a bounded queue. Work of a stream is numbered from 1; an event is (stream, number), so a record costs
 * nothing and a wait is for "that stream has done so many". One thread calls the device, so waits are for earlier work only: no cycle. */
enum { QUEUE = 256, N_COPY_STREAM = N_STREAM - 1, STACK_BYTES = 256 * 1024 };

typedef enum { WORK_COPY, WORK_WAIT, WORK_STOP } WorkKind;
typedef struct Mark {
  StreamId stream;
  uint64_t number;
} Mark; /* number 0: done (compute runs on the caller) */
typedef struct Work {
  WorkKind kind;
  void *dst;
  const void *src;
  size_t bytes;
  Mark until;
} Work;

typedef struct CpuDevice CpuDevice;
typedef struct CopyStream {
  CpuDevice *cpu;
  StreamId id;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t issued_more, done_more;
  uint64_t issued, done; /* numbers of work; under lock */
  Work queue[QUEUE];     /* work n is at n % QUEUE */
} CopyStream;

struct CpuDevice {
  Arena arena;
  CpuCopyDelay delay;
  uint64_t seed;
  CopyStream copy[N_COPY_STREAM];
  Mark event[DEVICE_MAX_EVENT];
  bool recorded[DEVICE_MAX_EVENT];
};

static CopyStream *copy_stream(CpuDevice *c, StreamId s) { return &c->copy[s - STREAM_IN]; }

/* ---- slabs ---- */

static void *cpu_alloc(Device *d, Space s, size_t bytes) {
  (void)d, (void)s;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static void cpu_release(Device *d, Space s, void *p, size_t bytes) {
  (void)s;
  CHECK(munmap(p, bytes) == 0, "device %s: %zu bytes at %p are not a slab", d->name, bytes, p);
}

/* ---- copy streams ---- */

static void stream_push(CopyStream *s, Work w) {
  pthread_mutex_lock(&s->lock);
  while (s->issued - s->done == QUEUE) pthread_cond_wait(&s->done_more, &s->lock);
  s->queue[++s->issued % QUEUE] = w;
  pthread_cond_signal(&s->issued_more);
  pthread_mutex_unlock(&s->lock);
}

static void stream_reach(CopyStream *s, uint64_t number) {
  pthread_mutex_lock(&s->lock);
  while (s->done < number) pthread_cond_wait(&s->done_more, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

static void mark_reach(CpuDevice *c, Mark m) {
  if (m.number > 0) stream_reach(copy_stream(c, m.stream), m.number);
}

/* The slot of the work in hand stays the thread's own until `done` counts it, so it is read without the lock. */
static const Work *stream_next(CopyStream *s) {
  pthread_mutex_lock(&s->lock);
  while (s->issued == s->done) pthread_cond_wait(&s->issued_more, &s->lock);
  const Work *w = &s->queue[(s->done + 1) % QUEUE];
  pthread_mutex_unlock(&s->lock);
  return w;
}

static void stream_finish(CopyStream *s) {
  pthread_mutex_lock(&s->lock);
  s->done++;
  pthread_cond_broadcast(&s->done_more);
  pthread_mutex_unlock(&s->lock);
}

static void *stream_main(void *arg) {
  CopyStream *s = arg;
  CpuDevice *c = s->cpu;
  for (uint64_t number = 1;; number++) {
    const Work *w = stream_next(s);
    if (w->kind == WORK_STOP) return NULL;
    if (w->kind == WORK_WAIT) mark_reach(c, w->until);
    if (w->kind == WORK_COPY) {
      if (c->delay) c->delay(c->seed, s->id, number, w->dst, w->bytes);
      memcpy(w->dst, w->src, w->bytes);
    }
    stream_finish(s);
  }
}

/* Signals are for the thread that trains: a copy thread is started with all of them blocked. */
static void stream_start(CpuDevice *c, StreamId id) {
  CopyStream *s = copy_stream(c, id);
  s->cpu = c;
  s->id = id;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->issued_more, NULL);
  pthread_cond_init(&s->done_more, NULL);

  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, STACK_BYTES);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&s->thread, &attr, stream_main, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  CHECK(rc == 0, "cannot start a copy thread: %s", strerror(rc));
}

static void stream_stop(CopyStream *s) {
  stream_push(s, (Work){.kind = WORK_STOP});
  pthread_join(s->thread, NULL);
  pthread_cond_destroy(&s->done_more);
  pthread_cond_destroy(&s->issued_more);
  pthread_mutex_destroy(&s->lock);
}

/* ---- the device's operations ---- */

static void cpu_copy(Device *d, StreamId s, void *dst, const void *src, size_t bytes) {
  if (s == STREAM_COMPUTE)
    memcpy(dst, src, bytes);
  else
    stream_push(copy_stream(d->impl, s), (Work){.kind = WORK_COPY, .dst = dst, .src = src, .bytes = bytes});
}

static void check_event(const Device *d, int event) {
  CHECK(event >= 0 && event < DEVICE_MAX_EVENT, "device %s: event %d; there are 0 to %d", d->name, event, DEVICE_MAX_EVENT - 1);
}

static void cpu_record(Device *d, StreamId s, int event) {
  CpuDevice *c = d->impl;
  check_event(d, event);
  /* `issued` is written by this thread alone, so it is read here without the lock. */
  c->event[event] = (Mark){s, s == STREAM_COMPUTE ? 0 : copy_stream(c, s)->issued};
  c->recorded[event] = true;
}

static void cpu_wait(Device *d, StreamId s, int event) {
  CpuDevice *c = d->impl;
  check_event(d, event);
  CHECK(c->recorded[event], "device %s: stream %d waits for event %d, which was never recorded", d->name, (int)s, event);
  Mark m = c->event[event];
  if (s == STREAM_COMPUTE)
    mark_reach(c, m);
  else
    stream_push(copy_stream(c, s), (Work){.kind = WORK_WAIT, .until = m});
}

static void cpu_sync(Device *d) {
  CpuDevice *c = d->impl;
  for (int i = 0; i < N_COPY_STREAM; i++) stream_reach(&c->copy[i], c->copy[i].issued);
}

static void cpu_close(Device *d) {
  CpuDevice *c = d->impl;
  cpu_sync(d);
  for (int i = 0; i < N_COPY_STREAM; i++) stream_stop(&c->copy[i]);
  Arena arena = c->arena;
  arena_close(&arena);
}

static const DeviceOps cpu_ops = {cpu_alloc, cpu_release, cpu_copy, cpu_record, cpu_wait, cpu_sync, cpu_close};

/* ---- instruction set ---- */

/* What the bits of a product can depend on: two machines with equal strings take the same code paths. */
#if defined(__x86_64__)
#define ISA_NAME            "x86_64"
#define ISA_BIT(name, text) ((__builtin_cpu_supports(name) ? 1 : 0) ? text : "")
static void isa_text(char *out, size_t size) {
  __builtin_cpu_init();
  snprintf(out, size, ISA_NAME "%s%s%s%s%s%s%s%s%s", ISA_BIT("avx2", " avx2"), ISA_BIT("fma", " fma"), ISA_BIT("avx512f", " avx512f"),
           ISA_BIT("avx512dq", ",dq"), ISA_BIT("avx512bw", ",bw"), ISA_BIT("avx512vl", ",vl"), ISA_BIT("avx512vnni", ",vnni"),
           ISA_BIT("avx512bf16", ",bf16"), ISA_BIT("amx-bf16", " amx"));
}
#elif defined(__aarch64__)
static void isa_text(char *out, size_t size) { snprintf(out, size, "aarch64"); }
#else
static void isa_text(char *out, size_t size) { snprintf(out, size, "other"); }
#endif

/* ---- opening ---- */

void cpu_delay_lag(uint64_t seed, StreamId s, uint64_t index, void *dst, size_t bytes) {
  memset(dst, 0xFF, bytes);
  RngKey key = {.seed = seed, .stream = (uint64_t)s, .purpose = RNG_LAG};
  struct timespec t = {0, (long)rng_below(key, index, 2000001)};
  nanosleep(&t, NULL);
}

void cpu_open(Device *d, CpuCopyDelay delay, uint64_t seed) {
  Arena arena;
  arena_open(&arena, "device", sizeof(CpuDevice) + 4096);
  CpuDevice *c = ARENA_NEW(&arena, CpuDevice, 1);
  c->arena = arena;
  c->delay = delay;
  c->seed = seed;
  d->impl = c;
  d->ops = &cpu_ops;
  d->f32 = &kernels_cpu_f32;
  d->f64 = &kernels_cpu_f64;
  d->bf16 = &kernels_cpu_bf16;
  isa_text(d->isa, sizeof d->isa);
  size_t n = strlen(d->isa);
  snprintf(d->isa + n, sizeof d->isa - n, ", built for %s", d->f32->built_for);
  for (int s = STREAM_IN; s < N_STREAM; s++) stream_start(c, (StreamId)s);
}
