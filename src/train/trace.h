/* A trace of a few training steps for Perfetto (ui.perfetto.dev) or chrome://tracing: every instruction of every rank with the name it has
 * elsewhere (ins_name), pipeline messages as arrows, and memory from the plan's lifetimes. JSON, the Trace Event Format. Called by watch. */
#ifndef ETALON_TRACE_H
#define ETALON_TRACE_H
#include "base/log.h"
#include "train/setup.h"

typedef struct TraceEvent { double begin, end; int ins; int64_t step; } TraceEvent;
typedef struct Trace {
  TraceEvent *event; int64_t n, room;
  size_t (*live)[N_REGION];  /* [n_ins + 1] bytes of buffers that hold something during an instruction */
  FILE *f;                   /* of the rank that writes, until then */
  double offset[2];          /* this host's clock minus that of rank 0's, before the first and after the last step; seconds */
} Trace;

/* Room for n_step steps. The rank whose log speaks opens `path`; what it holds stays until there is a trace. ERR_CONFIG. Not collective. */
bool trace_open(Trace *t, const Setup *s, const Log *log, int64_t n_step, const char *path, Err *e);
/* Collective: before the first traced step, and after the last (which: 0, 1). Between two barriers, so good to some 10 microseconds. */
void trace_clock(Trace *t, Setup *s, int which);
void trace_add(Trace *t, int64_t step, int ins, double begin, double end);
/* Collective: the rank whose log speaks writes the events of all ranks, or warns that it cannot: the run goes on. There: whether it has. */
bool trace_write(Trace *t, Setup *s, Log *log, const char *path);
void trace_close(Trace *t);
#endif
