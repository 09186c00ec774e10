/* Point-to-point messages of a pipeline: sends that do not wait, receives that do. */
#include "comm/comm_mpi.h"

enum { PIPELINE_TAG = 2 }; /* above COMM_TAG: a pipeline's messages never meet those of a collective */

void world_set_sends(World *w, Arena *a, int n_slot, int n_tag) {
  int *most = NULL, there = 0;
  MPI_Comm_get_attr(w->all, MPI_TAG_UB, &most, &there);
  CHECK(there && (int64_t)PIPELINE_TAG + n_tag <= *most, "%d different messages of a pipeline, the MPI library tells %d apart", n_tag,
        there ? *most : 0);
  w->n_slot = n_slot;
  w->slot = ARENA_NEW(a, MPI_Request, n_slot * COMM_PARTS + 1);
  w->slot_rank = ARENA_NEW(a, int, n_slot + 1);
  for (int i = 0; i < n_slot * COMM_PARTS; i++) w->slot[i] = MPI_REQUEST_NULL;
}

void comm_send(World *w, AxisSet axes, int peer, int tag, const void *p, size_t bytes, int slot) {
  Channel c = channel_open(w, axes);
  CHECK(slot >= 0 && slot < w->n_slot && bytes <= COMM_PARTS * w->max_message, "send %d of %d, %zu bytes", slot, w->n_slot, bytes);
  w->slot_rank[slot] = channel_rank(&c, peer);
  for (size_t at = 0, i = 0; at < bytes; at += w->max_message, i++) {
    size_t n = bytes - at < w->max_message ? bytes - at : w->max_message;
    MPI_Isend((const char *)p + at, (int)n, MPI_BYTE, peer, PIPELINE_TAG + tag, c.g->comm, &w->slot[(size_t)slot * COMM_PARTS + i]);
    c.traffic->bytes += n;
    c.traffic->messages++;
  }
}

void comm_sent(World *w, int slot) {
  wait_begin(w, AXIS_BIT(AXIS_PP), w->slot_rank[slot]);
  MPI_Waitall(COMM_PARTS, w->slot + (size_t)slot * COMM_PARTS, MPI_STATUSES_IGNORE);
  wait_end(w);
}

void comm_recv(World *w, AxisSet axes, int peer, int tag, void *p, size_t bytes) {
  Channel c = channel_open(w, axes);
  for (size_t at = 0; at < bytes; at += w->max_message) {
    size_t n = bytes - at < w->max_message ? bytes - at : w->max_message;
    MPI_Status status;
    int got = 0;
    wait_begin(w, axes, channel_rank(&c, peer));
    MPI_Recv((char *)p + at, (int)n, MPI_BYTE, peer, PIPELINE_TAG + tag, c.g->comm, &status);
    wait_end(w);
    MPI_Get_count(&status, MPI_BYTE, &got);
    CHECK((size_t)got == n, "stage %d sent %d bytes where %zu were due", peer, got, n);
  }
}
