/* Private to this folder: what a World is and how one pair of messages goes. The only header that includes mpi.h. */
#ifndef ETALON_COMM_MPI_H
#define ETALON_COMM_MPI_H
#include <mpi.h>
#include "base/fault.h"
#include "comm/comm.h"
#include "comm/pulse.h"

enum {
  COMM_WAVE = 64,            /* messages in flight in each direction */
  COMM_MAX_GROUP = 32,       /* two views of 2^4 sets each */
  COMM_PARTS = 8,            /* messages that one pipeline send may be cut into */
  COMM_LIBRARY_TEXT = 80
};

/* Distinct groups of ranks that this rank is in. n 1: comm is MPI_COMM_NULL. */
typedef struct WorldGroup { MPI_Comm comm; int n, self; } WorldGroup;

struct World {
  MPI_Comm all;
  MPI_Errhandler handler;
  int rank, size, local_size;
  size_t max_message;                                  /* bytes */
  WorldGroup group[COMM_MAX_GROUP];                    /* [0] this rank alone, [1] all ranks */
  int n_group;
  int8_t group_of[N_AXIS_SET];                         /* index of `group`, -1: unknown set */
  CommTraffic traffic[COMM_MAX_GROUP];
  int n_traffic;
  int8_t traffic_of[N_AXIS_SET];                       /* index of `traffic`, -1: not used yet */
  MPI_Request request[2 * COMM_WAVE];
  MPI_Status status[2 * COMM_WAVE];
  size_t expect[COMM_WAVE];                            /* bytes of each receive in flight */
  int n_send, n_recv;                                  /* in flight */
  int64_t *bound;                                      /* [size + 1] shares of an allreduce */
  const char **part;                                   /* [size] where each member's addend lies */
  MPI_Request *slot; int n_slot;                       /* [n_slot][COMM_PARTS] sends under way */
  int *slot_rank;                                      /* [n_slot] world rank that each send goes to */
  char *stage;                                         /* for reductions */
  size_t stage_bytes;
  char library[COMM_LIBRARY_TEXT];
  Fault fault;
  Mesh mesh;                                           /* of world_set_mesh */
  int recv_from, send_to;                              /* members of the wave in flight; -1: none */
  Pulse *pulse, no_pulse;                              /* shared with the watchdogs of this host, or not */
};

/* Around every wait, for the watchdog: the axis set, and the world rank that is waited for (-1: all). */
static inline void wait_begin(World *w, AxisSet axes, int peer) {
  atomic_store_explicit(&w->pulse->peer, peer, memory_order_relaxed);
  atomic_store_explicit(&w->pulse->waits, axes, memory_order_relaxed);
  pulse_beat(w->pulse);
}
static inline void wait_end(World *w) { atomic_store_explicit(&w->pulse->waits, 0, memory_order_relaxed); }

/* A group in use: where to send and where to count. */
typedef struct Channel { World *w; const WorldGroup *g; CommTraffic *traffic; } Channel;
Channel channel_open(World *w, AxisSet axes);
int channel_rank(const Channel *c, int member);        /* the member's world rank */

/* A wave: post at most COMM_WAVE of each, then wait for all. At most max_message bytes each; 0 bytes are not sent. */
void wave_recv(Channel *c, void *p, size_t bytes, int from);
void wave_send(Channel *c, const void *p, size_t bytes, int to);
void wave_wait(Channel *c);

/* One step of a pairwise exchange: `send_bytes` to member `to` while `recv_bytes` come from member `from`, cut into messages. */
void channel_swap(Channel *c, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from);

/* Members `round` places ahead (whom to send to) and behind (whom to receive from). */
static inline int channel_to(const Channel *c, int round) { return (c->g->self + round) % c->g->n; }
static inline int channel_from(const Channel *c, int round) { return (c->g->self - round + c->g->n) % c->g->n; }
#endif
