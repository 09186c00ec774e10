#include "plan/simulate.h"

#include <string.h>

#include "base/err.h"

/* Members that have entered the call in hand. */
typedef struct SimGroup {
  int n, n_here, first; /* rank that came first */
  double start, seconds;
  uint64_t sent, received;
} SimGroup;
/* All groups over one axis set: a group's members lie together. */
typedef struct SimAxes {
  int n_member, n_group, *group_of /* [world] */, *member /* [n_group][n_member] */;
  SimGroup *group;
} SimAxes;
typedef struct Message {
  int from, tag, next;
  double arrival;
  const SimEvent *event;
} Message;

typedef struct Sim {
  const SimWorld *w;
  SimReport *r;
  Arena *a;
  Err *e;
  SimAxes axes[N_AXIS_SET];
  int *at;
  double *clock;
  bool *waits; /* [world] next event; time; stands in a group's call */
  int *queue, head, n_queue;
  bool *queued; /* ranks that may go on */
  Message *message;
  int n_message, free, *mailbox; /* [world] first message on its way to a rank, -1 */
} Sim;

static const SimList *list_of(const Sim *s, int rank) { return &s->w->list[s->w->list_of[rank]]; }
static const SimEvent *event_of(const Sim *s, int rank) { return &list_of(s, rank)->event[s->at[rank]]; }

static void wake(Sim *s, int rank) {
  if (s->queued[rank]) return;
  s->queued[rank] = true;
  s->queue[(s->head + s->n_queue++) % s->w->mesh->world] = rank;
}

/* ---- groups ---------------------------------------------------------------------------------------------------------------------------------------- */
static SimAxes *open_axes(Sim *s, AxisSet axes) {
  SimAxes *x = &s->axes[axes];
  const Mesh *m = s->w->mesh;
  if (x->group) return x;
  x->n_member = mesh_group_size(m, axes);
  x->n_group = m->world / x->n_member;
  x->group_of = ARENA_NEW(s->a, int, m->world);
  x->member = ARENA_NEW(s->a, int, m->world);
  x->group = ARENA_NEW(s->a, SimGroup, x->n_group);
  for (int rank = 0, n = 0; rank < m->world; rank++) {
    if (mesh_group_self(m, rank, axes) != 0) continue;
    for (int i = 0; i < x->n_member; i++) {
      int member = mesh_group_rank(m, rank, axes, i);
      x->member[n * x->n_member + i] = member;
      x->group_of[member] = n;
    }
    x->group[n++].n = x->n_member;
  }
  return x;
}

static bool disagree(Sim *s, int a, int b, const char *what, uint64_t x, uint64_t y) {
  const SimEvent *p = event_of(s, a), *q = event_of(s, b);
  return err_set(s->e, ERR_BUG, "rank %d in %s (%s) and rank %d in %s (%s): %s: %llu and %llu", a, p->name, call_name(p->call), b, q->name,
                 call_name(q->call), what, (unsigned long long)x, (unsigned long long)y);
}

/* Every member's bytes to every other, where lists keep them; else their sums. */
static bool sizes_agree(Sim *s, const SimAxes *x, const SimGroup *g, const int *member) {
  const SimEvent *first = event_of(s, member[0]);
  if (g->sent != g->received && (first->to || !first->shares))
    return disagree(s, member[0], member[g->n - 1], "bytes that all members send and receive", g->sent, g->received);
  for (int i = 0; i < x->n_member; i++) {
    const SimEvent *p = event_of(s, member[i]);
    if (!p->to) {
      s->r->pairs = false;
      return true;
    }
    for (int k = 0; k < x->n_member; k++) {
      const SimEvent *q = event_of(s, member[k]);
      if (q->from && p->to[k] != q->from[i])
        return disagree(s, member[i], member[k], "bytes sent and bytes received", p->to[k], q->from[i]);
    }
  }
  return true;
}

static bool finish_call(Sim *s, AxisSet axes, SimAxes *x, SimGroup *g, int number) {
  const int *member = x->member + (int64_t)number * x->n_member;
  if (!sizes_agree(s, x, g, member)) return false;
  for (int i = 0; i < x->n_member; i++) {
    int rank = member[i];
    SimTime *t = &s->r->rank[rank];
    *(axes & AXIS_BIT(AXIS_PP) ? &t->wait_stages : &t->wait_calls) += g->start - s->clock[rank];
    t->transfer += g->seconds;
    s->r->axes_seconds[axes] += g->seconds;
    s->clock[rank] = g->start + g->seconds;
    s->waits[rank] = false;
    s->at[rank]++;
    wake(s, rank);
  }
  s->r->n_call++;
  *g = (SimGroup){.n = x->n_member};
  return true;
}

/* False: an error. */
static bool enter_call(Sim *s, int rank, const SimEvent *v) {
  SimAxes *x = open_axes(s, v->axes);
  int number = x->group_of[rank];
  SimGroup *g = &x->group[number];
  if (g->n_here == 0) g->first = rank;
  const SimEvent *other = event_of(s, g->first);
  if (g->n_here && (other->call != v->call || (other->name != v->name && strcmp(other->name, v->name))))
    return disagree(s, g->first, rank, "members of a group in different calls; bytes", other->sent, v->sent);
  s->waits[rank] = true;
  g->n_here++;
  g->sent += v->sent, g->received += v->received;
  if (s->clock[rank] > g->start) g->start = s->clock[rank];
  if (v->seconds > g->seconds) g->seconds = v->seconds;
  return g->n_here < x->n_member || finish_call(s, v->axes, x, g, number);
}

/* ---- pipeline messages ----------------------------------------------------------------------------------------------------------------------------------- */
static int peer_rank(const Sim *s, int rank, const SimEvent *v) { return mesh_group_rank(s->w->mesh, rank, AXIS_BIT(AXIS_PP), v->peer); }

static void send(Sim *s, int rank, const SimEvent *v) {
  int to = peer_rank(s, rank, v), k = s->free;
  if (k >= 0)
    s->free = s->message[k].next;
  else
    k = s->n_message++;
  s->message[k] = (Message){.from = rank, .tag = v->tag, .next = s->mailbox[to], .arrival = s->clock[rank] + v->seconds, .event = v};
  s->mailbox[to] = k;
  s->r->axes_seconds[AXIS_BIT(AXIS_PP)] += v->seconds;
  wake(s, to);
}

/* The message's place in the list, NULL: not sent yet. */
static int *find_message(Sim *s, int rank, const SimEvent *v) {
  int from = peer_rank(s, rank, v);
  for (int *k = &s->mailbox[rank]; *k >= 0; k = &s->message[*k].next)
    if (s->message[*k].from == from && s->message[*k].tag == v->tag) return k;
  return NULL;
}
static bool receive(Sim *s, int rank, const SimEvent *v, int *place) {
  int k = *place;
  Message *m = &s->message[k];
  if (m->event->sent != v->received)
    return err_set(s->e, ERR_BUG, "rank %d sends %llu bytes in %s, rank %d receives %llu in %s", m->from,
                   (unsigned long long)m->event->sent, m->event->name, rank, (unsigned long long)v->received, v->name);
  if (m->arrival > s->clock[rank]) s->r->rank[rank].wait_stages += m->arrival - s->clock[rank], s->clock[rank] = m->arrival;
  *place = m->next;
  m->next = s->free, s->free = k;
  s->r->n_message++;
  return true;
}

/* ---- running --------------------------------------------------------------------------------------------------------------------------------------------- */
static void compute(Sim *s, int rank, double seconds) {
  s->clock[rank] += seconds;
  s->r->rank[rank].compute += seconds;
}

/* A rank goes on until it waits for somebody. `begun`: the compute before its next event is done. */
static bool run_rank(Sim *s, int rank, bool *begun) {
  const SimList *l = list_of(s, rank);
  while (s->at[rank] < l->n && !s->waits[rank]) {
    const SimEvent *v = event_of(s, rank);
    if (!*begun) compute(s, rank, v->before);
    *begun = true;
    if (v->kind == SIM_CALL) {
      *begun = false;
      return enter_call(s, rank, v);
    }
    if (v->kind == SIM_SEND) send(s, rank, v);
    int *place = v->kind == SIM_RECV ? find_message(s, rank, v) : NULL;
    if (v->kind == SIM_RECV && !place) return true;
    if (place && !receive(s, rank, v, place)) return false;
    s->at[rank]++;
    *begun = false;
  }
  if (s->at[rank] == l->n && !*begun) compute(s, rank, l->after), *begun = true, s->r->rank[rank].end = s->clock[rank];
  return true;
}

enum { NAMED = 8 };
/* Nobody can go on. */
static bool all_done(Sim *s) {
  char text[ERR_TEXT] = "";
  size_t n = 0;
  int stuck = 0;
  for (int rank = 0; rank < s->w->mesh->world; rank++) {
    if (s->at[rank] == list_of(s, rank)->n) continue;
    const SimEvent *v = event_of(s, rank);
    if (stuck++ < NAMED && n < sizeof text / 2)
      n += (size_t)snprintf(text + n, sizeof text - n, "%s rank %d in %s%s", stuck > 1 ? "," : "", rank, v->name,
                            v->kind == SIM_RECV ? ", which nobody has sent" : "");
  }
  if (stuck) return err_set(s->e, ERR_BUG, "%d ranks wait for ever:%s%s", stuck, text, stuck > NAMED ? " ..." : "");
  for (int rank = 0; rank < s->w->mesh->world; rank++)
    if (s->mailbox[rank] >= 0) {
      const Message *m = &s->message[s->mailbox[rank]];
      return err_set(s->e, ERR_BUG, "rank %d sends in %s to rank %d, which never receives it", m->from, m->event->name, rank);
    }
  return true;
}

static void open_sim(Sim *s) {
  int n = s->w->mesh->world;
  int64_t sends = 1;
  for (int rank = 0; rank < n; rank++)
    for (int i = 0; i < list_of(s, rank)->n; i++) sends += list_of(s, rank)->event[i].kind == SIM_SEND;
  s->at = ARENA_NEW(s->a, int, n), s->clock = ARENA_NEW(s->a, double, n), s->waits = ARENA_NEW(s->a, bool, n);
  s->queue = ARENA_NEW(s->a, int, n), s->queued = ARENA_NEW(s->a, bool, n), s->mailbox = ARENA_NEW(s->a, int, n);
  s->message = ARENA_NEW(s->a, Message, sends);
  s->free = -1;
  for (int rank = 0; rank < n; rank++) s->mailbox[rank] = -1, wake(s, rank);
}

bool simulate(SimReport *r, Arena *a, const SimWorld *w, Err *e) {
  int n = w->mesh->world;
  *r = (SimReport){.rank = ARENA_NEW(a, SimTime, n), .pairs = true};
  Sim *s = ARENA_NEW(a, Sim, 1);
  *s = (Sim){.w = w, .r = r, .a = a, .e = e};
  open_sim(s);
  bool *begun = ARENA_NEW(a, bool, n);
  while (s->n_queue) {
    int rank = s->queue[s->head];
    s->head = (s->head + 1) % n, s->n_queue--;
    s->queued[rank] = false;
    TRY(run_rank(s, rank, &begun[rank]));
  }
  TRY(all_done(s));
  for (int rank = 0; rank < n; rank++) r->seconds = r->rank[rank].end > r->seconds ? r->rank[rank].end : r->seconds;
  for (int k = 0; k < N_AXIS_SET; k++) r->axes_seconds[k] /= n;
  return true;
}
