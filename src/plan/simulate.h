/* The third reader of the list: all ranks of a world run against each other in time, without data. Proves that every send meets its receive, that members enter
 * their collectives in the same order with sizes that agree, and that nobody waits for ever; says how long a step takes and where the time goes. */
#ifndef ETALON_SIMULATE_H
#define ETALON_SIMULATE_H
#include "plan/plan.h"

/* flop/s and bytes/s of a rank; per axis bytes/s in each direction and seconds a message. A group over several axes has the worst of them. */
typedef struct SimCost { double flops, memory, bandwidth[N_AXIS], latency[N_AXIS]; } SimCost;

typedef enum { SIM_CALL /* of all members of a group */, SIM_SEND, SIM_RECV } SimKind;
typedef struct SimEvent {
  SimKind kind; AxisSet axes;
  const char *name;                 /* of the instruction; members of a call must agree */
  CallKind call;
  double before, seconds;           /* compute since the event before; transfer */
  int peer, tag;                    /* SEND, RECV: pipeline coordinate, message */
  uint64_t sent, received;          /* bytes */
  bool shares;                      /* its bytes follow from shares of parameters that differ from rank to rank of a class */
  const uint64_t *to, *from;        /* CALL: [members] bytes; NULL: sums alone are checked, and none where `shares` */
} SimEvent;
/* What a rank does between two messages is one number: its list is short. */
typedef struct SimList { int n; SimEvent *event; double after; /* compute after the last event */ double flops; } SimList;
/* pairs: keep bytes to and from each member, so that they can be checked one by one. Lives in `a`; `scratch`, another arena, is given back. */
SimList sim_compile(Arena *a, Arena *scratch, const TrafficArgs *t, const SimCost *cost, bool pairs);

typedef struct SimWorld { const Mesh *mesh; const SimList *list; const int *list_of; /* [world] */ } SimWorld;
typedef struct SimTime { double compute, transfer, wait_calls /* for members */, wait_stages, end; } SimTime;
typedef struct SimReport {
  double seconds;                   /* of the step: the last rank's end */
  SimTime *rank;                    /* [world] */
  double axes_seconds[N_AXIS_SET];  /* transfer, mean over all ranks */
  int64_t n_call, n_message;        /* group calls that all members entered; pipeline messages */
  bool pairs;                       /* bytes were checked member by member */
} SimReport;
/* ERR_BUG: which ranks stand at which instructions, what they disagree about. */
bool simulate(SimReport *r, Arena *a, const SimWorld *w, Err *e);
#endif
