/* Signs of life. Every rank says where it is in a slot of memory that all ranks of its host share (comm_pulse_* below, a store or two each); a thread of
 * each rank looks on, never calls MPI, and ends the run with ERR_HANG and one message when no rank of the host has begun anything for too long: who
 * waits for whom, in which instruction of which step. Opened by train. Not a profiler, and no judge of slow ranks. */
#ifndef ETALON_WATCHDOG_H
#define ETALON_WATCHDOG_H
#include "comm/comm.h"

typedef struct Watchdog Watchdog;
/* Collective. seconds 0: no thread, only slots. ERR_CONFIG: no memory can be shared. */
bool watchdog_open(Watchdog **d, World *w, Arena *a, double seconds, Err *e);
void watchdog_close(Watchdog *d);      /* NULL: nothing */
#endif
