/* Being asked to stop: USR1, TERM, a stop file, a time limit. Any rank may notice; all act together at the next step's end. */
#ifndef ETALON_STOP_H
#define ETALON_STOP_H
#include "comm/comm.h"
typedef struct Stop { const char *file; double deadline /* timer_now(); 0: none */; } Stop;
/* Installs the signal handlers. max_minutes 0: no limit; file NULL or empty: no stop file. */
void stop_open(Stop *s, const char *file, double max_minutes);
/* Collective: NULL, or why to stop ("signal", "stop file", "train.max_minutes"). */
const char *stop_requested(const Stop *s, World *w);
#endif
