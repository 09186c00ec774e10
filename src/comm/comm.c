/* Collectives from pairwise messages. In round r everybody sends r places ahead and receives from r places behind, so no rank is ever
 * waited for by two others in the same round (Thakur, Rabenseifner, Gropp 2005, pairwise exchange). */
#include <string.h>

#include "comm/comm_mpi.h"
#include "comm/reduce.h"

enum { COMM_TAG = 1 };

Channel channel_open(World *w, AxisSet axes) {
  int8_t at = axes < N_AXIS_SET ? w->group_of[axes] : -1;
  CHECK(at >= 0, "axis set 0x%x has no group (world_set_mesh not called, or it mixes two views)", axes);
  Channel c = {.w = w, .g = &w->group[at]};
  if (c.g->n == 1) return c;
  if (w->traffic_of[axes] < 0) {
    w->traffic[w->n_traffic] = (CommTraffic){.axes = axes};
    w->traffic_of[axes] = (int8_t)w->n_traffic++;
  }
  c.traffic = &w->traffic[w->traffic_of[axes]];
  return c;
}

int comm_traffic(const World *w, CommTraffic *out, int max) {
  for (int i = 0; i < w->n_traffic && i < max; i++) out[i] = w->traffic[i];
  return w->n_traffic;
}

void wave_recv(Channel *c, void *p, size_t bytes, int from) {
  World *w = c->w;
  if (!bytes) return;
  CHECK(w->n_recv < COMM_WAVE && bytes <= w->max_message, "wave: %d receives, %zu bytes", w->n_recv, bytes);
  w->expect[w->n_recv] = bytes;
  w->recv_from = from;
  MPI_Irecv(p, (int)bytes, MPI_BYTE, from, COMM_TAG, c->g->comm, &w->request[w->n_recv++]);
}

void wave_send(Channel *c, const void *p, size_t bytes, int to) {
  World *w = c->w;
  if (!bytes) return;
  CHECK(w->n_send < COMM_WAVE && bytes <= w->max_message, "wave: %d sends, %zu bytes", w->n_send, bytes);
  w->send_to = to;
  MPI_Isend(p, (int)bytes, MPI_BYTE, to, COMM_TAG, c->g->comm, &w->request[COMM_WAVE + w->n_send++]);
  c->traffic->bytes += bytes;
  c->traffic->messages++;
}

int channel_rank(const Channel *c, int member) {
  bool whole = c->traffic->axes == AXES_WORLD; /* known before there is a mesh */
  return whole ? member : mesh_group_rank(&c->w->mesh, c->w->rank, c->traffic->axes, member);
}

void wave_wait(Channel *c) {
  World *w = c->w;
  wait_begin(w, c->traffic->axes, channel_rank(c, w->n_recv ? w->recv_from : w->send_to));
  MPI_Waitall(w->n_recv, w->request, w->status);
  for (int i = 0; i < w->n_recv; i++) {
    int got = 0;
    MPI_Get_count(&w->status[i], MPI_BYTE, &got);
    CHECK((size_t)got == w->expect[i], "member %d sent %d bytes where %zu were due", w->status[i].MPI_SOURCE, got, w->expect[i]);
  }
  MPI_Waitall(w->n_send, w->request + COMM_WAVE, MPI_STATUSES_IGNORE);
  w->n_recv = w->n_send = 0;
  wait_end(w);
}

/* The pieces, at most `most` bytes each, of those segments that go to or come from one peer. */
typedef struct Pieces {
  char *base;
  const RowSeg *seg;
  int n, at, peer;
  size_t row_bytes, done, most;
} Pieces;

static bool pieces_next(Pieces *s, char **p, size_t *bytes) {
  for (; s->at < s->n; s->at++, s->done = 0) {
    const RowSeg *g = &s->seg[s->at];
    if (g->peer != s->peer) continue;
    size_t all = (size_t)g->n_row * s->row_bytes;
    if (s->done >= all) continue;
    *p = s->base + (size_t)g->row * s->row_bytes + s->done;
    *bytes = all - s->done < s->most ? all - s->done : s->most;
    s->done += *bytes;
    return true;
  }
  return false;
}

/* Wave k of the sender holds the same pieces as wave k of the receiver, so a wave always completes. */
static void pieces_swap(Channel *c, Pieces send, Pieces recv) {
  char *p;
  size_t bytes;
  for (;;) {
    while (c->w->n_recv < COMM_WAVE && pieces_next(&recv, &p, &bytes)) wave_recv(c, p, bytes, recv.peer);
    while (c->w->n_send < COMM_WAVE && pieces_next(&send, &p, &bytes)) wave_send(c, p, bytes, send.peer);
    if (!c->w->n_recv && !c->w->n_send) return;
    wave_wait(c);
  }
}

void channel_swap(Channel *c, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes, int from) {
  RowSeg out = {.peer = to, .n_row = (int64_t)send_bytes}, in = {.peer = from, .n_row = (int64_t)recv_bytes};
  size_t most = c->w->max_message;
  pieces_swap(c, (Pieces){.base = (char *)send, .seg = &out, .n = 1, .peer = to, .row_bytes = 1, .most = most},
              (Pieces){.base = recv, .seg = &in, .n = 1, .peer = from, .row_bytes = 1, .most = most});
}

void comm_barrier(World *w) {
  wait_begin(w, AXES_WORLD, -1);
  MPI_Barrier(w->all);
  wait_end(w);
}

void comm_bcast(World *w, void *p, size_t bytes, int root) {
  for (size_t at = 0; at < bytes; at += w->max_message) {
    size_t n = bytes - at < w->max_message ? bytes - at : w->max_message;
    wait_begin(w, AXES_WORLD, root);
    MPI_Bcast((char *)p + at, (int)n, MPI_BYTE, root, w->all);
    wait_end(w);
  }
}

void comm_alltoall(World *w, AxisSet axes, const void *send, void *recv, size_t block) {
  Channel c = channel_open(w, axes);
  const char *s = send;
  char *r = recv;
  if (block) memcpy(r + (size_t)c.g->self * block, s + (size_t)c.g->self * block, block);
  for (int round = 1; round < c.g->n; round++) {
    int to = channel_to(&c, round), from = channel_from(&c, round);
    channel_swap(&c, s + (size_t)to * block, block, to, r + (size_t)from * block, block, from);
  }
}

void comm_allgather(World *w, AxisSet axes, void *data, const int64_t *bound, size_t elem) {
  Channel c = channel_open(w, axes);
  char *d = data;
  int self = c.g->self;
  for (int round = 1; round < c.g->n; round++) {
    int to = channel_to(&c, round), from = channel_from(&c, round);
    channel_swap(&c, d + (size_t)bound[self] * elem, (size_t)(bound[self + 1] - bound[self]) * elem, to, d + (size_t)bound[from] * elem,
                 (size_t)(bound[from + 1] - bound[from]) * elem, from);
  }
}

/* The segments that a rank keeps: i-th sent to the i-th received. */
static void exchange_own(int self, const char *send, const RowSeg *out, int n_out, char *recv, const RowSeg *in, int n_in,
                         size_t row_bytes) {
  int j = 0;
  for (int i = 0; i < n_out; i++) {
    if (out[i].peer != self) continue;
    while (j < n_in && in[j].peer != self) j++;
    CHECK(j < n_in && in[j].n_row == out[i].n_row, "a segment of %lld rows to oneself is not received as such", (long long)out[i].n_row);
    if (out[i].n_row) memcpy(recv + (size_t)in[j].row * row_bytes, send + (size_t)out[i].row * row_bytes, (size_t)out[i].n_row * row_bytes);
    j++;
  }
  while (j < n_in && in[j].peer != self) j++;
  CHECK(j == n_in, "a segment of %lld rows from oneself is not sent", (long long)in[j].n_row);
}

void comm_exchange_rows(World *w, AxisSet axes, const void *send, const RowSeg *send_seg, int n_send, void *recv, const RowSeg *recv_seg,
                        int n_recv, size_t row_bytes) {
  Channel c = channel_open(w, axes);
  size_t most = w->max_message;
  exchange_own(c.g->self, send, send_seg, n_send, recv, recv_seg, n_recv, row_bytes);
  for (int round = 1; round < c.g->n; round++) {
    Pieces out = {.base = (char *)send, .seg = send_seg, .n = n_send, .peer = channel_to(&c, round), .row_bytes = row_bytes, .most = most};
    Pieces in = {.base = recv, .seg = recv_seg, .n = n_recv, .peer = channel_from(&c, round), .row_bytes = row_bytes, .most = most};
    pieces_swap(&c, out, in);
  }
}
