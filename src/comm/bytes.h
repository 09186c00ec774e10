/* What the calls of comm.h and reduce.h send, as arithmetic: a Sketch stands for the World of a rank that is not there. Each sketch_* function takes what the
 * function that it is named after takes, without the data, and tells what that call would send and receive. Groups of one tell nothing. Used by plan. */
#ifndef ETALON_COMM_BYTES_H
#define ETALON_COMM_BYTES_H
#include <stddef.h>
#include "comm/mesh.h"

/* Where messages are cut (counts of MPI-3 are int, and some libraries overflow below that); when an allreduce is one step; staging of a large one. */
enum { COMM_MESSAGE = 1 << 30, COMM_SMALL_BYTES = 4096, COMM_STAGE = 4 << 20 };
/* A segment of rows that goes to or comes from a member of the group. */
typedef struct RowSeg { int peer; int64_t row, n_row; } RowSeg;

/* Bytes that go one place round the ring of a group's members, and those that come. The sketch reads the sizes alone. */
typedef struct Hop { const void *send; size_t send_bytes; void *recv; size_t recv_bytes; } Hop;

typedef enum { CALL_ALLREDUCE, CALL_ALLTOALL, CALL_ALLGATHER, CALL_EXCHANGE_ROWS, CALL_RING, CALL_REDUCE_SCATTER, CALL_REDUCE_PAIR, CALL_SEND, CALL_RECV, N_CALL } CallKind;
typedef struct CommLoad { uint64_t sent, received /* bytes */, messages; } CommLoad;
typedef struct CommCall {
  CallKind kind; AxisSet axes; int n, self;
  uint64_t bytes, messages;         /* sent to others, as comm_traffic counts them */
  uint64_t *to, *from;              /* [n] bytes to and from each member; own place 0 */
  CommLoad *load;                   /* [n] what each member sends and receives, where that follows from the call's shares; NULL: known of this rank alone */
} CommCall;
typedef void CallFn(void *ctx, const CommCall *call);
typedef struct Sketch { const Mesh *mesh; int rank; CallFn *tell; void *ctx; uint64_t *to, *from; CommLoad *load; /* [world] each: scratch */ } Sketch;

Sketch sketch_open(Arena *a, const Mesh *m, int rank, CallFn *tell, void *ctx);
void sketch_allreduce_u64(Sketch *s, AxisSet axes, int64_t n);
void sketch_allreduce_max_u64(Sketch *s, AxisSet axes, int64_t n);
void sketch_alltoall(Sketch *s, AxisSet axes, size_t block);
void sketch_allgather(Sketch *s, AxisSet axes, const int64_t *bound, size_t elem);
void sketch_exchange_rows(Sketch *s, AxisSet axes, const RowSeg *send, int n_send, const RowSeg *recv, int n_recv, size_t row_bytes);
void sketch_ring(Sketch *s, AxisSet axes, const Hop *hop, int n);
void sketch_reduce_scatter(Sketch *s, AxisSet axes, size_t elem, const int64_t *bound, size_t stage_bytes);
void sketch_reduce_pair(Sketch *s, AxisSet axes, int from, int to, size_t elem, int64_t n, size_t stage_bytes);
void sketch_send(Sketch *s, AxisSet axes, int peer, size_t bytes);
void sketch_recv(Sketch *s, AxisSet axes, int peer, size_t bytes);

/* Pieces shared with what really sends. */
size_t  reduce_stage_min(int group_size);
int64_t reduce_chunk_elements(int group_size, size_t elem, size_t stage_bytes, size_t max_message);      /* of each member's share, exchanged at a time */
size_t  comm_stage_bytes(int world);                 /* staging that a World has for its allreduces */
const char *call_name(CallKind k);
#endif
