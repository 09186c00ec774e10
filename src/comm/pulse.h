/* Where a rank is, told while it runs: for the watchdog's message. Called by exec, train and ckpt; not collective; from any thread. */
#ifndef ETALON_PULSE_H
#define ETALON_PULSE_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Puts the name of place number `place` of `list` into buf. Called by another thread: reads constant data only. */
typedef void PulseName(const void *list, int place, char *buf, size_t size);

enum { PULSE_TEXT = 160 };
typedef struct Pulse {
  _Alignas(64) _Atomic uint64_t beat;     /* grows with whatever is begun */
  _Atomic int64_t step;
  _Atomic int place;                      /* in the list */
  _Atomic uint32_t waits;                 /* axis set in which messages are waited for; 0: none are */
  _Atomic int peer;                       /* world rank that they come from or go to; -1: all of them */
  _Atomic(const void *) list; _Atomic(PulseName *) name;   /* of this process; NULL: `doing` says it */
  _Atomic(const char *) doing;            /* of this process: "evaluation", "saving" ... */
  /* When the alarm is given each rank's thread writes here what it can say about its own rank. */
  atomic_bool told;
  char text[PULSE_TEXT];
} Pulse;

static inline void pulse_beat(Pulse *p) { atomic_fetch_add_explicit(&p->beat, 1, memory_order_relaxed); }
static inline void pulse_place(Pulse *p, int place) {
  atomic_store_explicit(&p->place, place, memory_order_relaxed);
  pulse_beat(p);
}
static inline void pulse_step(Pulse *p, int64_t step) { atomic_store_explicit(&p->step, step, memory_order_relaxed); }
static inline void pulse_doing(Pulse *p, const char *what) {
  atomic_store_explicit(&p->doing, what, memory_order_relaxed);
  pulse_beat(p);
}
static inline void pulse_list(Pulse *p, const void *list, PulseName *name) {
  atomic_store_explicit(&p->list, list, memory_order_release);
  atomic_store_explicit(&p->name, name, memory_order_release);
}
#endif
