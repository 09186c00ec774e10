/* Start and end of a world, its communicators, and errors that all ranks agree on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_mpi.h"
#include "comm/reduce.h"

static void stop_all(void *ctx, int code) {
  (void)ctx;
  fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_failed(MPI_Comm *comm, int *code, ...) {
  (void)comm;
  char text[MPI_MAX_ERROR_STRING] = "";
  int n = 0;
  MPI_Error_string(*code, text, &n);
  die(__FILE__, __LINE__, "MPI: %s", text);
}

static void world_describe_library(World *w) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int n = 0;
  MPI_Get_library_version(text, &n);
  text[strcspn(text, ",\n")] = 0;
  snprintf(w->library, sizeof w->library, "%.*s", COMM_LIBRARY_TEXT - 1, text);
}

static int world_count_local(World *w) {
  MPI_Comm host;
  int n = 1;
  MPI_Comm_split_type(w->all, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &n);
  MPI_Comm_free(&host);
  return n;
}

static void world_forget_mesh(World *w) {
  for (int i = 2; i < w->n_group; i++) MPI_Comm_free(&w->group[i].comm);
  w->n_group = 2;
  memset(w->group_of, -1, sizeof w->group_of);
  w->group_of[AXES_WORLD] = w->size > 1;
}

bool world_open(World **out, Arena *a, int *argc, char ***argv, Err *e) {
  int provided = MPI_THREAD_SINGLE;
  *out = NULL;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return err_set(e, ERR_CONFIG, "MPI does not start; launch with mpirun of the library that etalon was built with");
  die_set_hook(stop_all, NULL);
  World *w = *out = ARENA_NEW(a, World, 1);
  w->pulse = &w->no_pulse;
  w->recv_from = w->send_to = -1;
  MPI_Comm_dup(MPI_COMM_WORLD, &w->all);
  MPI_Comm_create_errhandler(mpi_failed, &w->handler);
  MPI_Comm_set_errhandler(w->all, w->handler); /* communicators split off later inherit it */
  MPI_Comm_rank(w->all, &w->rank);
  MPI_Comm_size(w->all, &w->size);
  w->local_size = world_count_local(w);
  world_describe_library(w);
  w->max_message = COMM_MESSAGE;
  w->group[0] = (WorldGroup){.comm = MPI_COMM_NULL, .n = 1, .self = 0};
  w->group[1] = (WorldGroup){.comm = w->all, .n = w->size, .self = w->rank};
  memset(w->traffic_of, -1, sizeof w->traffic_of);
  world_forget_mesh(w);
  w->bound = ARENA_NEW(a, int64_t, w->size + 1);
  w->part = ARENA_NEW(a, const char *, w->size);
  w->stage_bytes = comm_stage_bytes(w->size);
  w->stage = arena_alloc(a, w->stage_bytes, 1);
  fault_arm(&w->fault, getenv("ETALON_FAULT"), w->rank, e);
  if (provided < MPI_THREAD_SERIALIZED)
    err_set(e, ERR_CONFIG, "%s offers no MPI_THREAD_SERIALIZED; use a build of MPI with threads", w->library);
  return world_agree(w, e);
}

/* Number of a rank's group among the groups of one axis set: the coordinates along the axes that are not in it. */
static int group_color(const Mesh *m, int rank, AxisSet axes) { return mesh_group_rank(m, rank, axes, 0); }

/* Do both sets cut the world into the same groups? Decided over all ranks, so that all decide alike. */
static bool groups_equal(const Mesh *m, AxisSet x, AxisSet y) {
  if (mesh_group_size(m, x) != mesh_group_size(m, y)) return false;
  for (int rank = 0; rank < m->world; rank++)
    if (group_color(m, rank, x) != group_color(m, rank, y)) return false;
  return true; /* members are in ascending rank order in both */
}

/* A set without its axes of size one: sets that differ by those alone are one group. */
static AxisSet axes_essential(const Mesh *m, AxisSet axes) {
  for (int a = 0; a < N_AXIS; a++)
    if (m->size[a] == 1) axes &= ~AXIS_BIT(a);
  return axes;
}

static int8_t world_split(World *w, const Mesh *m, AxisSet axes) {
  WorldGroup *g = &w->group[w->n_group];
  MPI_Comm_split(w->all, group_color(m, w->rank, axes), w->rank, &g->comm);
  MPI_Comm_size(g->comm, &g->n);
  MPI_Comm_rank(g->comm, &g->self);
  CHECK(g->n == mesh_group_size(m, axes) && g->self == mesh_group_self(m, w->rank, axes),
        "axis set 0x%x: communicator differs from the mesh", axes);
  return (int8_t)w->n_group++;
}

bool world_set_mesh(World *w, Arena *a, const Mesh *m, Err *e) {
  CHECK(m->world == w->size, "mesh of %d ranks in a world of %d", m->world, w->size);
  world_forget_mesh(w);
  w->mesh = *m;
  ArenaMark mark = arena_mark(a);
  AxisSet *made = ARENA_NEW(a, AxisSet, COMM_MAX_GROUP); /* the set that each group was split for */
  made[1] = AXES_WORLD;
  for (AxisSet axes = 0; axes < N_AXIS_SET; axes++) {
    if (!axes_legal(axes)) continue;
    AxisSet core = axes_essential(m, axes);
    if (mesh_group_size(m, core) == 1) {
      w->group_of[axes] = 0;
      continue;
    }
    for (int i = 1; i < w->n_group && w->group_of[axes] < 0; i++)
      if (groups_equal(m, core, made[i])) w->group_of[axes] = (int8_t)i;
    if (w->group_of[axes] >= 0) continue;
    made[w->n_group] = core;
    w->group_of[axes] = world_split(w, m, core);
  }
  arena_release(a, mark);
  return world_agree(w, e);
}

int world_rank(const World *w) { return w->rank; }
int world_size(const World *w) { return w->size; }
int world_local_size(const World *w) { return w->local_size; }
const char *world_library(const World *w) { return w->library; }
Fault *world_fault(World *w) { return &w->fault; }
Pulse *world_pulse(World *w) { return w->pulse; }

void world_set_max_message(World *w, size_t bytes) {
  CHECK(bytes >= sizeof(uint64_t) && bytes <= COMM_MESSAGE, "messages of at most %zu bytes", bytes);
  w->max_message = bytes;
}

bool world_agree(World *w, Err *e) {
  int mine = e->code == ERR_NONE ? w->size : w->rank, first = w->size;
  wait_begin(w, AXES_WORLD, -1);
  MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, w->all);
  if (first < w->size) MPI_Bcast(e, (int)sizeof *e, MPI_BYTE, first, w->all);
  wait_end(w);
  return e->code == ERR_NONE;
}

/* A stop on request is no error: it is said where the log is, so that launchers keep it behind the log's last line. */
static void say_end(const Err *e) {
  if (e->code != ERR_RESUME)
    fprintf(stderr, "error: %s\n", e->text);
  else if (printf("%s\n", e->text) < 0 || fflush(stdout) != 0)
    fprintf(stderr, "%s\n", e->text);
}

int world_close(World *w, const Err *e) {
  if (e->code != ERR_NONE && e->text[0] && (!w || w->rank == 0)) say_end(e);
  fflush(NULL);
  if (!w) return (int)e->code;
  world_forget_mesh(w);
  MPI_Comm_free(&w->all);
  MPI_Errhandler_free(&w->handler);
  die_set_hook(NULL, NULL);
  MPI_Finalize();
  return (int)e->code;
}
