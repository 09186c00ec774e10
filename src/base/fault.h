/* Fault points: places where a test makes the program die, hang or fail, to see what is left. Armed by the environment variable
 *   ETALON_FAULT = name[(detail)][@rank][:count][=action]
 * name: see fault_points in fault.c (a name that is not there is refused with the list); detail: text that the place's own detail must hold;
 * rank: that rank only; count: the count-th time the place is reached (default 1); action: kill (default; SIGKILL to oneself), exit (status 1
 * without a word), hang (sleep for ever), fail (the place acts as if its operation had failed), nan (the place spoils what it wrote, this time
 * and every later one). Not armed, a place costs one comparison. The Fault lives in the World; nobody else sets one, tests apart. */
#ifndef ETALON_FAULT_H
#define ETALON_FAULT_H
#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"

typedef enum {
  FAULT_NONE,
  FAULT_CKPT_RESERVE,    /* space for a checkpoint is taken next */
  FAULT_CKPT_STRUCTURE,  /* its groups and data sets are written next */
  FAULT_CKPT_PIECE,      /* a piece of a tensor is written next; detail: group/tensor */
  FAULT_CKPT_SYNC,       /* the data is synced to disk next */
  FAULT_CKPT_RENAME,     /* the file gets its name next */
  FAULT_CKPT_LATEST,     /* `latest` is written beside next */
  FAULT_CKPT_COUNT,      /* `latest` gets its name next: from then on the checkpoint counts */
  FAULT_CKPT_DELETE,     /* an older checkpoint or a leftover is deleted next; detail: its path */
  FAULT_CKPT_COPY,       /* the state is copied next, for a save in the background */
  FAULT_EXEC_INS,        /* an instruction; detail: its name. nan: spoils its output */
  FAULT_TRAIN_STEP,      /* a training step begins next */
  FAULT_EVAL_CHUNK,      /* a piece of an evaluation begins next */
  FAULT_LOG_WRITE,       /* a line of the metrics file is written next */
  N_FAULT_POINT
} FaultPoint;
typedef enum { FAULT_ACT_NONE, FAULT_ACT_KILL, FAULT_ACT_EXIT, FAULT_ACT_HANG, FAULT_ACT_FAIL, FAULT_ACT_NAN, N_FAULT_ACTION } FaultAction;

enum { FAULT_DETAIL = 96 };
typedef struct Fault {
  FaultPoint point;                 /* FAULT_NONE: not armed */
  FaultAction action;
  int rank;                         /* -1: all */
  int count;
  atomic_int seen;                  /* times that the place was reached; a save's thread counts too */
  char detail[FAULT_DETAIL];
} Fault;

/* spec NULL or empty: not armed. ERR_CONFIG: what is wrong, every name and action there is. */
bool fault_arm(Fault *f, const char *spec, int rank, Err *e);
/* Places ask, then act on FAULT_ACT_FAIL or FAULT_ACT_NAN (others do not return). detail NULL: none. */
FaultAction fault_strike(Fault *f, FaultPoint p, const char *detail);
static inline FaultAction fault_at(Fault *f, FaultPoint p, const char *detail) {
  return f->point == p ? fault_strike(f, p, detail) : FAULT_ACT_NONE;
}
static inline bool fault_fails(Fault *f, FaultPoint p, const char *detail) { return fault_at(f, p, detail) == FAULT_ACT_FAIL; }
#endif
