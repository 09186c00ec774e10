#include "train/named.h"

#include <stdio.h>
#include <string.h>

NamedList named_open(Arena *a, int room) { return (NamedList){.row = ARENA_NEW(a, NamedRow, room), .room = room}; }

/* Looks from `from` on: names come in much the same order from every rank. */
static int find(const NamedList *l, const char *name, int from) {
  for (int k = 0; k < l->n; k++)
    if (!strncmp(l->row[(from + k) % l->n].name, name, NAMED_TEXT - 1)) return (from + k) % l->n;
  return -1;
}

static NamedRow *add(NamedList *l, const char *name) {
  CHECK(l->n < l->room, "more than %d names", l->room);
  NamedRow *r = &l->row[l->n++];
  *r = (NamedRow){0};
  snprintf(r->name, sizeof r->name, "%s", name);
  return r;
}

NamedRow *named_at(NamedList *l, const char *name) {
  int at = find(l, name, 0);
  return at < 0 ? add(l, name) : &l->row[at];
}

NamedList named_sum(World *w, Arena *a, const NamedList *mine) {
  uint64_t room = (uint64_t)mine->n;
  comm_allreduce_u64(w, AXES_WORLD, &room, 1);
  NamedList all = named_open(a, (int)room + 1);
  for (int rank = 0; rank < world_size(w); rank++) {
    int n = mine->n, at = 0;
    comm_bcast(w, &n, sizeof n, rank);
    ArenaMark mark = arena_mark(a);
    NamedRow *part = ARENA_NEW(a, NamedRow, n + 1);
    if (rank == world_rank(w)) memcpy(part, mine->row, (size_t)n * sizeof *part);
    comm_bcast(w, part, (size_t)n * sizeof *part, rank);
    for (int i = 0; i < n; i++) {
      int k = find(&all, part[i].name, at);
      NamedRow *r = k < 0 ? add(&all, part[i].name) : &all.row[k];
      for (int v = 0; v < NAMED_VALUES; v++) r->v[v] += part[i].v[v];
      at = (int)(r - all.row) + 1;
    }
    arena_release(a, mark);
  }
  return all;
}
