#include "train/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/timer.h"
#include "train/ins_class.h"

/* Most bytes of one event. */
enum { EVENT_TEXT = 640, COUNTER_TEXT = 256 };

/* ---- collecting ------------------------------------------------------------------------------------------------------------------ */
/* A buffer is live from its first to its last instruction; states and host memory all the time. */
static void find_live(Trace *t, const Setup *s) {
  const Step *step = &s->job.train.step;
  t->live = (size_t(*)[N_REGION])arena_alloc(s->arena, (size_t)step->n_ins + 1, sizeof *t->live);
  for (int b = 0; b < step->n_buf; b++) {
    const Buf *x = &step->buf[b];
    if (x->first < 0) continue;
    t->live[x->first][x->region] += x->bytes;
    t->live[x->last + 1 < step->n_ins ? x->last + 1 : step->n_ins][x->region] -= x->bytes;
  }
  for (int i = 1; i <= step->n_ins; i++)
    for (int r = 0; r < N_REGION; r++) t->live[i][r] += t->live[i - 1][r];
}

bool trace_open(Trace *t, const Setup *s, const Log *log, int64_t n_step, const char *path, Err *e) {
  *t = (Trace){.room = n_step * s->job.train.step.n_ins};
  t->event = ARENA_NEW(s->arena, TraceEvent, t->room);
  find_live(t, s);
  if (log->speaks) t->f = fopen(path, "ab");
  return !log->speaks || t->f || err_set(e, ERR_CONFIG, "train.trace: cannot write \"%s\": %s", path, strerror(errno));
}

void trace_close(Trace *t) {
  if (t->f) fclose(t->f);
  t->f = NULL;
}

void trace_clock(Trace *t, Setup *s, int which) {
  comm_barrier(s->world);
  double mine = timer_now(), first = mine;
  comm_bcast(s->world, &first, sizeof first, 0);
  t->offset[which] = mine - first;
}

void trace_add(Trace *t, int64_t step, int ins, double begin, double end) {
  if (t->n < t->room) t->event[t->n++] = (TraceEvent){begin, end, ins, step};
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------ */
typedef struct Text {
  char *at;
  size_t n, room;
} Text;
__attribute__((format(printf, 2, 3))) static void put(Text *t, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(t->at + t->n, t->room - t->n, fmt, ap);
  va_end(ap);
  CHECK(n >= 0 && (size_t)n < t->room - t->n, "trace text: no room for %d bytes", n);
  t->n += (size_t)n;
}

static void put_names(Text *t, const Trace *tr, const Setup *s, int rank) {
  const Mesh *m = &s->job.mesh;
  put(t, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d (pp %d dp %d cp %d tp %d)\"}},\n", rank, rank,
      mesh_coord(m, rank, AXIS_PP), mesh_coord(m, rank, AXIS_DP), mesh_coord(m, rank, AXIS_CP), mesh_coord(m, rank, AXIS_TP));
  put(t, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n", rank, rank);
  put(t, "{\"name\":\"clock\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"offset_begin_us\":%.3f,\"offset_end_us\":%.3f}},\n", rank,
      tr->offset[0] * 1e6, tr->offset[1] * 1e6);
  for (int k = 0; k < N_WORK; k++)
    put(t, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", rank, k, work_name(k));
}

/* The arrow of a message between pipeline stages: both ends make the same name for it. */
static void put_arrow(Text *t, const Setup *s, const Ins *i, int64_t step, double us, int rank) {
  int peer = mesh_group_rank(&s->job.mesh, rank, AXIS_BIT(AXIS_PP), i->peer);
  bool sends = i->kind == INS_SEND;
  put(t, "{\"name\":\"message\",\"cat\":\"pipeline\",\"ph\":\"%s\",\"id\":\"%lld.%d.%d.%d\",\"ts\":%.3f,\"pid\":%d,\"tid\":%d},\n",
      sends ? "s" : "f\",\"bp\":\"e", (long long)step, sends ? rank : peer, sends ? peer : rank, i->tag, us, rank, WORK_COMM);
}

static void put_memory(Text *t, const Trace *tr, const TraceEvent *e, double us, int rank) {
  const size_t *live = tr->live[e->ins];
  put(t, "{\"name\":\"memory\",\"ph\":\"C\",\"ts\":%.3f,\"pid\":%d,\"args\":{\"P\":%zu,\"F\":%zu,\"W\":%zu,\"S\":%zu,\"host\":%zu}},\n", us,
      rank, live[REGION_P], live[REGION_F], live[REGION_W], live[REGION_S], live[REGION_HOST]);
}

static void put_event(Text *t, const Trace *tr, const Setup *s, const TraceEvent *e, double zero, int rank) {
  const Step *step = &s->job.train.step;
  const Ins *i = &step->ins[e->ins];
  char name[128], class[128];
  double us = (e->begin - zero) * 1e6, length = (e->end - e->begin) * 1e6;
  double flops = ins_flops(step, i, s->job.train.mb, exec_rows(s->x, EXEC_TRAIN));
  put(t, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{\"step\":%lld,\"ins\":%d",
      ins_name(step, i, name, sizeof name), ins_class(step, i, class, sizeof class), us, length, rank, ins_work(step, i),
      (long long)e->step, e->ins);
  if (flops > 0) put(t, ",\"gflop\":%.6g", flops * 1e-9);
  put(t, "}},\n");
  if (i->kind == INS_SEND || i->kind == INS_RECV) put_arrow(t, s, i, e->step, i->kind == INS_SEND ? us : us + length, rank);
  if (e->ins == 0 || memcmp(tr->live[e->ins], tr->live[e->ins - 1], sizeof *tr->live)) put_memory(t, tr, e, us, rank);
}

static Text format(const Trace *t, Setup *s, double zero) {
  int rank = world_rank(s->world);
  Text text = {.room = (size_t)(t->n + 16) * (EVENT_TEXT + COUNTER_TEXT)};
  text.at = arena_alloc(s->arena, text.room, 1);
  put_names(&text, t, s, rank);
  for (int64_t k = 0; k < t->n; k++) put_event(&text, t, s, &t->event[k], zero, rank);
  return text;
}

/* ---- file ------------------------------------------------------------------------------------------------------------------------ */
/* Each rank's text in turn; only where there is a file is it written. */
static void write_all(FILE *f, const Text *mine, Setup *s) {
  for (int rank = 0; rank < world_size(s->world); rank++) {
    size_t n = mine->n;
    comm_bcast(s->world, &n, sizeof n, rank);
    ArenaMark mark = arena_mark(s->arena);
    char *text = rank == world_rank(s->world) ? mine->at : arena_alloc(s->arena, n + 1, 1);
    comm_bcast(s->world, text, n, rank);
    if (f) fwrite(text, 1, n, f);
    arena_release(s->arena, mark);
  }
}

bool trace_write(Trace *t, Setup *s, Log *log, const char *path) {
  ArenaMark mark = arena_mark(s->arena);
  bool one_host = world_local_size(s->world) == world_size(s->world);
  double zero = t->n ? t->event[0].begin : 0;
  comm_bcast(s->world, &zero, sizeof zero, 0);
  /* On one host the clock is the same, and the measured offset only noise. */
  Text mine = format(t, s, zero + (one_host ? 0 : t->offset[0]));
  bool regular = t->f && ftruncate(fileno(t->f), 0) == 0; /* a pipe holds nothing */
  (void)regular;
  if (t->f) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", t->f);
  write_all(t->f, &mine, s);
  if (t->f) fputs("{\"name\":\"end\",\"ph\":\"M\",\"pid\":0,\"args\":{}}\n]}\n", t->f);
  bool fails = t->f && (fflush(t->f) != 0 || ferror(t->f));
  if (fails) log_line(log, "warning: train.trace: %s cannot be written: %s; the run goes on without it", path, strerror(errno));
  trace_close(t);
  arena_release(s->arena, mark);
  return !fails;
}
