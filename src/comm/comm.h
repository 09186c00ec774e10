/* Ranks of a running world and the messages between them. The only folder that includes mpi.h. Groups of one do nothing by themselves: callers
 * never ask for sizes. Every function is collective over its group unless it says otherwise; messages above 1 GiB are cut.
 * Collectives are built here from pairwise messages, so that the bytes each member sends are known in advance (plan) and counted (traffic).
 * Not here: waiting for somebody who never comes (watchdog), sums of floats (reduce.h).                                        */
#ifndef ETALON_COMM_H
#define ETALON_COMM_H
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"
#include "base/fault.h"
#include "comm/bytes.h"
#include "comm/mesh.h"
#include "comm/pulse.h"

typedef struct World World;

/* Starts MPI (MPI_THREAD_SERIALIZED), installs the hook of `die` (MPI_Abort). The World lives in `a`. Knows AXES_WORLD only, until world_set_mesh.
 * ERR_CONFIG: an MPI without threads, an ETALON_FAULT that cannot be read. */
bool world_open(World **w, Arena *a, int *argc, char ***argv, Err *e);
/* Makes a communicator for each axis set of either view (equal groups share one), so that nothing is created inside a step. `a` is used for scratch
 * only. May be called again with another mesh; traffic goes on counting. CHECK: m->world is the world's size. */
bool world_set_mesh(World *w, Arena *a, const Mesh *m, Err *e);
int  world_rank(const World *w);
int  world_size(const World *w);
int  world_local_size(const World *w);               /* ranks on this host */
const char *world_library(const World *w);           /* name and version of the MPI library, one line */
Pulse *world_pulse(World *w);                        /* where this rank says what it does (pulse.h) */
Fault *world_fault(World *w);                        /* armed by world_open from the environment (base/fault.h) */
/* The lowest failing rank's error becomes everybody's. Returns e->code == ERR_NONE. */
bool world_agree(World *w, Err *e);
/* Prints the agreed error once (rank 0: `error: text`; ERR_RESUME: the text alone, to standard output), finalises, returns the exit code. w NULL: MPI never started. */
int  world_close(World *w, const Err *e);
/* Where messages are cut; 1 GiB unless a test lowers it. The same on all ranks. Not collective. */
void world_set_max_message(World *w, size_t bytes);

void comm_barrier(World *w);
void comm_bcast(World *w, void *p, size_t bytes, int root);                               /* over the world; not counted as traffic */
/* In place, sum modulo 2^64. At most COMM_SMALL_BYTES: everybody sends to everybody, one step. Above: reduce-scatter, then all-gather. */
void comm_allreduce_u64(World *w, AxisSet axes, uint64_t *x, int64_t n);
void comm_allreduce_max_u64(World *w, AxisSet axes, uint64_t *x, int64_t n);              /* in place; everybody to everybody, meant for short x */
/* Everybody's block j goes to member j; block i of recv comes from member i. block: bytes. send and recv do not overlap. */
void comm_alltoall(World *w, AxisSet axes, const void *send, void *recv, size_t block);
/* In place: member i owns elements [bound[i], bound[i+1]) of data and afterwards has all. elem: bytes. Shares may be empty. */
void comm_allgather(World *w, AxisSet axes, void *data, const int64_t *bound, size_t elem);

/* Rows of uneven counts. The i-th segment that a sends to b is the i-th that b receives from a; both know its length. Empty segments are legal and send
 * nothing. peer: place in the group, own place included (copied). Rows may be sent to several peers; send and recv do not overlap.
 * CHECK: the lengths agree. */
void comm_exchange_rows(World *w, AxisSet axes, const void *send, const RowSeg *send_seg, int n_send, void *recv, const RowSeg *recv_seg, int n_recv, size_t row_bytes);

/* A step of a ring: every hop goes to the next member while one comes from the previous. Between the two calls the rank may compute, but call no other function
 * of comm; what is sent must not be written, what is received not be read. Groups of one: nothing. CHECK: at most 64 messages each way. */
void comm_ring_begin(World *w, AxisSet axes, const Hop *hop, int n);
void comm_ring_end(World *w, AxisSet axes);

/* Pipeline messages: a send that does not wait, told by its tag; `slot` (0 .. n_slot-1 of world_set_sends) is free again after comm_sent. Not collective. */
void world_set_sends(World *w, Arena *a, int n_slot, int n_tag);      /* tags 0 .. n_tag-1; CHECK: the library has as many */
void comm_send(World *w, AxisSet axes, int peer, int tag, const void *p, size_t bytes, int slot);
void comm_sent(World *w, int slot);
void comm_recv(World *w, AxisSet axes, int peer, int tag, void *p, size_t bytes);

/* Bytes this rank has sent to others so far, per axis set in the order first used (sets of one never appear): what `plan` predicts (bytes.h).
 * Fills at most max entries; returns how many there are. */
typedef struct CommTraffic { AxisSet axes; uint64_t bytes, messages; } CommTraffic;
int comm_traffic(const World *w, CommTraffic *out, int max);
#endif
