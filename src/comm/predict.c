/* The calls of comm.c, reduce.c and pipeline.c without data: plan asks for worlds that are not there. */
#include "base/err.h"
#include "comm/bytes.h"

enum { STAGE_PART_BYTES = 4096, PART_ALIGN = 8 /* elements */ };

size_t reduce_stage_min(int group_size) { return (size_t)(group_size - 1) * STAGE_PART_BYTES; }

int64_t reduce_chunk_elements(int group_size, size_t elem, size_t stage_bytes, size_t max_message) {
  size_t part = stage_bytes / (size_t)(group_size - 1);
  if (part > max_message) part = max_message;
  int64_t n = (int64_t)(part / elem);
  return n > PART_ALIGN ? n - n % PART_ALIGN : n;
}

size_t comm_stage_bytes(int world) {
  size_t least = reduce_stage_min(world);
  return least > COMM_STAGE ? least : COMM_STAGE;
}

const char *call_name(CallKind k) {
  static const char *const name[N_CALL] = {"allreduce",      "alltoall",    "allgather", "exchange_rows", "ring",
                                           "reduce_scatter", "reduce_pair", "send",      "recv"};
  return name[k];
}

Sketch sketch_open(Arena *a, const Mesh *m, int rank, CallFn *tell, void *ctx) {
  return (Sketch){.mesh = m,
                  .rank = rank,
                  .tell = tell,
                  .ctx = ctx,
                  .to = ARENA_NEW(a, uint64_t, m->world),
                  .from = ARENA_NEW(a, uint64_t, m->world),
                  .load = ARENA_NEW(a, CommLoad, m->world)};
}

static CommCall call_open(const Sketch *s, CallKind kind, AxisSet axes) {
  CommCall c = {.kind = kind, .axes = axes, .n = mesh_group_size(s->mesh, axes), .to = s->to, .from = s->from};
  c.self = mesh_group_self(s->mesh, s->rank, axes);
  for (int i = 0; i < c.n; i++) c.to[i] = c.from[i] = 0;
  return c;
}
static void call_tell(const Sketch *s, CommCall *c) {
  for (int i = 0; i < c->n; i++) c->bytes += c->to[i];
  if (c->n > 1) s->tell(s->ctx, c);
}
static uint64_t pieces(uint64_t bytes, uint64_t most) { return (bytes + most - 1) / most; }
static void send_cut(CommCall *c, int to, uint64_t bytes) {
  if (to == c->self) return;
  c->to[to] += bytes;
  c->messages += pieces(bytes, COMM_MESSAGE);
}
static void receive(CommCall *c, int from, uint64_t bytes) {
  if (from != c->self) c->from[from] += bytes;
}

/* ---- pieces of collectives ---------------------------------------------------------------------------------------------------------------------- */
static void add_direct(CommCall *c, int64_t n) {
  for (int i = 0; i < c->n; i++) {
    if (i == c->self) continue;
    c->to[i] += (uint64_t)n * sizeof(uint64_t);
    c->messages += pieces((uint64_t)n * sizeof(uint64_t), COMM_SMALL_BYTES);
    receive(c, i, (uint64_t)n * sizeof(uint64_t));
  }
}
/* bound of a share: given, or n things dealt evenly. */
static int64_t bound_at(const int64_t *bound, int64_t n, int members, int i) { return bound ? bound[i] : share_begin(n, members, i); }
static int64_t share_at(const CommCall *c, const int64_t *bound, int64_t n, int i) {
  return bound_at(bound, n, c->n, i + 1) - bound_at(bound, n, c->n, i);
}
/* A call whose sizes are shares: the loads of all members. */
static CommCall shares_open(const Sketch *s, CallKind kind, AxisSet axes) {
  CommCall c = call_open(s, kind, axes);
  c.load = s->load;
  for (int i = 0; i < c.n; i++) c.load[i] = (CommLoad){0};
  return c;
}
/* Everybody's share goes to its owner, in pieces of `chunk` elements. */
static void add_scatter(CommCall *c, const int64_t *bound, int64_t n, size_t elem, size_t stage_bytes) {
  int64_t all = bound_at(bound, n, c->n, c->n) - bound_at(bound, n, c->n, 0), own = share_at(c, bound, n, c->self);
  uint64_t chunk = (uint64_t)reduce_chunk_elements(c->n, elem, stage_bytes, COMM_MESSAGE), messages = 0;
  for (int i = 0; i < c->n; i++) messages += pieces((uint64_t)share_at(c, bound, n, i), chunk);
  for (int i = 0; i < c->n; i++) {
    int64_t share = share_at(c, bound, n, i);
    c->load[i].sent += (uint64_t)(all - share) * elem;
    c->load[i].received += (uint64_t)(share * (c->n - 1)) * elem;
    c->load[i].messages += messages - pieces((uint64_t)share, chunk);
    if (i == c->self) continue;
    c->to[i] += (uint64_t)share * elem;
    receive(c, i, (uint64_t)own * elem);
  }
  c->messages += messages - pieces((uint64_t)own, chunk);
}
/* Everybody's share goes to all others. */
static void add_gather(CommCall *c, const int64_t *bound, int64_t n, size_t elem) {
  int64_t all = bound_at(bound, n, c->n, c->n) - bound_at(bound, n, c->n, 0), own = share_at(c, bound, n, c->self);
  for (int i = 0; i < c->n; i++) {
    int64_t share = share_at(c, bound, n, i);
    c->load[i].sent += (uint64_t)(share * (c->n - 1)) * elem;
    c->load[i].received += (uint64_t)(all - share) * elem;
    c->load[i].messages += (uint64_t)(c->n - 1) * pieces((uint64_t)share * elem, COMM_MESSAGE);
    send_cut(c, i, (uint64_t)own * elem);
    receive(c, i, (uint64_t)share * elem);
  }
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------------------- */
void sketch_allreduce_u64(Sketch *s, AxisSet axes, int64_t n) {
  bool small = n <= COMM_SMALL_BYTES / (int64_t)sizeof(uint64_t);
  CommCall c = small ? call_open(s, CALL_ALLREDUCE, axes) : shares_open(s, CALL_ALLREDUCE, axes);
  if (c.n == 1) return;
  if (small)
    add_direct(&c, n);
  else {
    add_scatter(&c, NULL, n, sizeof(uint64_t), comm_stage_bytes(s->mesh->world));
    add_gather(&c, NULL, n, sizeof(uint64_t));
  }
  call_tell(s, &c);
}

void sketch_allreduce_max_u64(Sketch *s, AxisSet axes, int64_t n) {
  CommCall c = call_open(s, CALL_ALLREDUCE, axes);
  add_direct(&c, n);
  call_tell(s, &c);
}

void sketch_alltoall(Sketch *s, AxisSet axes, size_t block) {
  CommCall c = call_open(s, CALL_ALLTOALL, axes);
  for (int i = 0; i < c.n; i++) send_cut(&c, i, block), receive(&c, i, block);
  call_tell(s, &c);
}

void sketch_allgather(Sketch *s, AxisSet axes, const int64_t *bound, size_t elem) {
  CommCall c = shares_open(s, CALL_ALLGATHER, axes);
  add_gather(&c, bound, 0, elem);
  call_tell(s, &c);
}

void sketch_exchange_rows(Sketch *s, AxisSet axes, const RowSeg *send, int n_send, const RowSeg *recv, int n_recv, size_t row_bytes) {
  CommCall c = call_open(s, CALL_EXCHANGE_ROWS, axes);
  for (int i = 0; i < n_send; i++) send_cut(&c, send[i].peer, (uint64_t)send[i].n_row * row_bytes);
  for (int i = 0; i < n_recv; i++) receive(&c, recv[i].peer, (uint64_t)recv[i].n_row * row_bytes);
  call_tell(s, &c);
}

void sketch_ring(Sketch *s, AxisSet axes, const Hop *hop, int n) {
  CommCall c = call_open(s, CALL_RING, axes);
  for (int i = 0; i < n; i++) {
    send_cut(&c, (c.self + 1) % c.n, hop[i].send_bytes);
    receive(&c, (c.self + c.n - 1) % c.n, hop[i].recv_bytes);
  }
  call_tell(s, &c);
}

void sketch_reduce_scatter(Sketch *s, AxisSet axes, size_t elem, const int64_t *bound, size_t stage_bytes) {
  CommCall c = shares_open(s, CALL_REDUCE_SCATTER, axes);
  if (c.n > 1) add_scatter(&c, bound, 0, elem, stage_bytes);
  call_tell(s, &c);
}

void sketch_reduce_pair(Sketch *s, AxisSet axes, int from, int to, size_t elem, int64_t n, size_t stage_bytes) {
  CommCall c = call_open(s, CALL_REDUCE_PAIR, axes);
  uint64_t step = (stage_bytes < COMM_MESSAGE ? stage_bytes : COMM_MESSAGE) / elem;
  if (from == to || (c.self != from && c.self != to)) return;
  CHECK(step > 0, "stage of %zu bytes", stage_bytes);
  if (c.self == from)
    c.to[to] = (uint64_t)n * elem, c.messages = pieces((uint64_t)n, step);
  else
    c.from[from] = (uint64_t)n * elem;
  call_tell(s, &c);
}

void sketch_send(Sketch *s, AxisSet axes, int peer, size_t bytes) {
  CommCall c = call_open(s, CALL_SEND, axes);
  send_cut(&c, peer, bytes);
  call_tell(s, &c);
}
void sketch_recv(Sketch *s, AxisSet axes, int peer, size_t bytes) {
  CommCall c = call_open(s, CALL_RECV, axes);
  receive(&c, peer, bytes);
  call_tell(s, &c);
}
