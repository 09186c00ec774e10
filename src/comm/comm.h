/* Ranks of a running world and the messages between them. The only folder that includes mpi.h. Groups of one do nothing by themselves: callers
 * never ask for sizes. Every function is collective over its group unless it says otherwise; messages above 1 GiB are cut.  */
#ifndef ETALON_COMM_H
#define ETALON_COMM_H
#include <stddef.h>
#include "base/err.h"
#include "comm/mesh.h"

typedef struct World World;

/* Starts MPI (MPI_THREAD_SERIALIZED), installs the hook of `die` (MPI_Abort). The World lives in `a`. */
bool world_open(World **w, Arena *a, int *argc, char ***argv, Err *e);
/* Makes a communicator for each axis set that groups are asked for later, so that nothing is created inside a step. */
bool world_set_mesh(World *w, Arena *a, const Mesh *m, Err *e);
int  world_rank(const World *w);
int  world_size(const World *w);
int  world_local_size(const World *w);               /* ranks on this host */
/* The lowest failing rank's error becomes everybody's. Returns e->code == ERR_NONE. */
bool world_agree(World *w, Err *e);
/* Prints the agreed error once (rank 0), finalises, returns the exit code. */
int  world_close(World *w, const Err *e);
void *world_mpi_comm(World *w);                      /* MPI_Comm * of all ranks; for ckpt's parallel HDF5 only */

void comm_barrier(World *w);
void comm_bcast(World *w, void *p, size_t bytes, int root);                               /* over the world */
void comm_allreduce_u64(World *w, AxisSet axes, uint64_t *x, int64_t n);                  /* in place, sum modulo 2^64 */
void comm_allreduce_max_u64(World *w, AxisSet axes, uint64_t *x, int64_t n);              /* in place */
/* Everybody's block j goes to member j; block i of recv comes from member i. block: bytes. */
void comm_alltoall(World *w, AxisSet axes, const void *send, void *recv, size_t block);
/* In place: member i owns elements [bound[i], bound[i+1]) of data and afterwards has all. elem: bytes. */
void comm_allgather(World *w, AxisSet axes, void *data, const int64_t *bound, size_t elem);

/* Rows of uneven counts. The i-th segment that a sends to b is the i-th that b receives from a; both know its length. Empty segments are legal and send nothing. */
typedef struct RowSeg { int peer; int64_t row, n_row; } RowSeg;
void comm_exchange_rows(World *w, AxisSet axes, const void *send, const RowSeg *send_seg, int n_send, void *recv, const RowSeg *recv_seg, int n_recv, size_t row_bytes);

/* Bytes this rank has sent to others so far, per axis set in the order first used: what `plan` predicts. */
typedef struct CommTraffic { AxisSet axes; uint64_t bytes, messages; } CommTraffic;
int comm_traffic(const World *w, CommTraffic *out, int max);
#endif
