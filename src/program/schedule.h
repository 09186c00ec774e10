/* A schedule: the order in which one rank runs forwards and backwards of its micro-batches. Built by src/schedule, lowered by step.h. */
#ifndef ETALON_PROGRAM_SCHEDULE_H
#define ETALON_PROGRAM_SCHEDULE_H
typedef enum { ACT_FWD, ACT_BWD, ACT_BWD_X, ACT_BWD_W } ActKind;   /* BWD: both; BWD_X: towards the inputs; BWD_W: weight gradients */
typedef struct Action { ActKind kind; int mb, chunk; } Action;
enum { SCHEDULE_GRAD_SENDS = 4 };   /* gradients on their way to the previous stage before the oldest must have arrived */
typedef struct Schedule { const char *name; Action *act; int n_act, n_mb, n_chunk; } Schedule;
#endif
