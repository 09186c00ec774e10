#include "train/plan_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/timer.h"
#include "plan/world.h"

enum { EXACT_WORLD = 256 /* ranks: up to here each has its own list */ };

/* ---- cost ---------------------------------------------------------------------------------------------------------------------------------------------- */
enum { ROWS = 256, WIDTH = 512, REPEATS = 4, COPIED = 1 << 22 /* elements */ };

/* Products of a linear layer, the best of a few runs: the first ones warm up. */
static double measure_flops(Arena *a, const Kernels *k, KCtx kc, bool blocked) {
  static const int64_t offset[1] = {0};
  RowLeaf leaf = {0, ROWS, ROWS};
  RowGroup group = {.n_row = ROWS, .n_leaf = 1};
  Rows rows = {.n_row = ROWS, .n_group = 1, .group = &group, .leaf = &leaf, .blocked = blocked, .row_bound = ROWS};
  LinArgs l = {.mode = LIN_MAP, .trans = true, .n_fixed = WIDTH, .cut = {1, 0, 1, WIDTH, 1}, .w = {.offset = offset}};
  int64_t size = ROWS;
  void *x = arena_alloc(a, (size_t)ROWS * WIDTH, k->real_size), *y = arena_alloc(a, (size_t)ROWS * WIDTH, k->real_size);
  l.w.data = arena_alloc(a, (size_t)WIDTH * WIDTH, k->real_size);
  k->linear_prepare(&kc, &l, &rows, &size, 1, false);
  kc.work = arena_alloc(a, k->linear_work(&kc, &l, &rows), 1);
  double best = 0;
  for (int i = 0; i < REPEATS; i++) {
    double t = timer_now();
    k->linear(&kc, y, x, &l, &rows);
    double rate = 2.0 * ROWS * WIDTH * WIDTH / (timer_now() - t);
    best = rate > best ? rate : best;
  }
  return best;
}
static double measure_memory(Arena *a, const Kernels *k, KCtx kc) {
  void *x = arena_alloc(a, COPIED, k->real_size), *y = arena_alloc(a, COPIED, k->real_size);
  double best = 0;
  for (int i = 0; i < REPEATS; i++) {
    double t = timer_now();
    k->add(&kc, y, y, x, COPIED);
    double rate = 3.0 * COPIED * (double)k->act_size / (timer_now() - t);
    best = rate > best ? rate : best;
  }
  return best;
}

/* Where the value of `key` goes; axis -1: of all axes. */
static bool set_cost(SimCost *c, const char *key, double value) {
  if (!strcmp(key, "flops")) return c->flops = value, true;
  if (!strcmp(key, "memory")) return c->memory = value, true;
  const char *dot = strchr(key, '.'), *what = dot ? dot + 1 : key;
  double *of = !strcmp(what, "bandwidth") ? c->bandwidth : !strcmp(what, "latency") ? c->latency : NULL;
  bool found = false;
  for (int a = 0; a < N_AXIS && of; a++) {
    bool named = !dot || (strlen(axis_name(a)) == (size_t)(dot - key) && !strncmp(axis_name(a), key, (size_t)(dot - key)));
    if (named) of[a] = value, found = true;
  }
  return found;
}
static bool read_cost(SimCost *c, const char *text, Err *e) {
  char key[64];
  for (const char *at = text; at && *at;) {
    double value;
    int n = 0;
    if (sscanf(at, "%63[^=,]=%lf%n", key, &value, &n) != 2 || value < 0 || (at[n] && at[n] != ','))
      return err_set(e, ERR_CONFIG, "--cost: \"%s\" is not key=value,key=value...", at);
    bool latency = strstr(key, "latency");
    if (value == 0 && !latency) return err_set(e, ERR_CONFIG, "--cost: %s must be above 0", key);
    if (!set_cost(c, key, value))
      return err_set(
          e, ERR_CONFIG,
          "--cost: \"%s\" is not known; there are: flops, memory, bandwidth, latency, and for an axis tp.bandwidth, tp.latency ...", key);
    at += n + (at[n] == ',');
  }
  return true;
}

bool sim_cost(SimCost *cost, Arena *scratch, const Config *c, const Device *d, const char *text, Err *e) {
  ArenaMark mark = arena_mark(scratch);
  const Kernels *k = device_kernels(d, job_dtype(c));
  KCtx kc = {.threads = d->threads, .gemm = d->gemm};
  cost->flops = measure_flops(scratch, k, kc, c->numerics.mode == NUM_CANONICAL);
  cost->memory = measure_memory(scratch, k, kc);
  arena_release(scratch, mark);
  for (int a = 0; a < N_AXIS; a++) cost->bandwidth[a] = 1e10, cost->latency[a] = 5e-6;
  return read_cost(cost, text, e);
}

/* ---- lists ----------------------------------------------------------------------------------------------------------------------------------------------- */
static SimList compile_job(const Job *j, Arena *a, int routing, const SimCost *cost, bool pairs) {
  const Step *s = &j->train.step;
  TrafficArgs t = {.s = s,
                   .mb = j->train.mb,
                   .routed = plan_routed(s, j->arena, &j->train.deal, routing),
                   .k = device_kernels(j->device, job_dtype(j->c)),
                   .zero1 = j->c->optimizer.shard};
  return sim_compile(a, j->arena, &t, cost, pairs);
}

/* Lists that stand for ranks: of one class, with states and exchanges of the same sizes. */
typedef struct Alike {
  int cls, rank;
  uint64_t states, work;
} Alike;
static int find_alike(Alike *alike, int *n, const Alike *x) {
  for (int i = *n - 1; i >= 0; i--)
    if (alike[i].cls == x->cls && alike[i].states == x->states && alike[i].work == x->work) return i;
  alike[*n] = *x;
  return (*n)++;
}

bool sim_world(SimWorld *s, const WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, int routing, const SimCost *cost,
               bool exact, Err *e) {
  const Mesh *m = &w->mesh;
  int n = 0, *list_of = ARENA_NEW(a, int, args->world), places = m->world / m->size[AXIS_PP];
  Alike *alike = ARENA_NEW(a, Alike, args->world);
  const ModelConfig *model = &args->c->model;
  uint64_t *work =
      world_work(a, m, &w->deal, routing, (int)model->num_local_experts, (int)model->num_experts_per_tok, model->sliding_window);
  for (int rank = 0; rank < args->world; rank++)
    list_of[rank] = find_alike(alike, &n, &(Alike){exact ? rank : w->class_of[rank], rank, w->states_of[rank], work[rank % places]});
  SimList *list = ARENA_NEW(a, SimList, n);
  for (int i = 0; i < n; i++) {
    ArenaMark mark = arena_mark(scratch);
    Job j;
    TRY(job_declare(&j, scratch, args->c, args->world, alike[i].rank, args->device, args->n_valid, e));
    step_lower(&j.train.step, scratch, j.train.chunk, j.train.n_chunk, &j.train.sched, &j.train.options); /* no places: time alone */
    list[i] = compile_job(&j, a, routing, cost, exact);
    arena_release(scratch, mark);
  }
  *s = (SimWorld){.mesh = m, .list = list, .list_of = list_of};
  return true;
}

/* ---- report ---------------------------------------------------------------------------------------------------------------------------------------------- */
static void add_time(SimTime *sum, const SimTime *t, double share) {
  sum->compute += t->compute * share, sum->transfer += t->transfer * share;
  sum->wait_calls += t->wait_calls * share, sum->wait_stages += t->wait_stages * share;
}

static void print_stage(const char *name, const SimTime *t, double seconds, FILE *out) {
  double idle = fmax(0, seconds - t->compute - t->transfer - t->wait_calls);
  fprintf(out, "%8s %10.4g s %5.1f %% %10.4g s %5.1f %% %10.4g s %5.1f %% %10.4g s %5.1f %%\n", name, t->compute,
          100 * t->compute / seconds, t->transfer, 100 * t->transfer / seconds, t->wait_calls, 100 * t->wait_calls / seconds, idle,
          100 * idle / seconds);
}

static void print_axes(const SimReport *r, FILE *out) {
  for (AxisSet axes = 1; axes < N_AXIS_SET; axes++) {
    if (r->axes_seconds[axes] == 0) continue;
    fprintf(out, "transfer over");
    for (int a = 0; a < N_AXIS; a++)
      if (axes & AXIS_BIT(a)) fprintf(out, " %s", axis_name(a));
    fprintf(out, ": %.4g s a rank\n", r->axes_seconds[axes]);
  }
}

static void print_report(const SimReport *r, const SimWorld *s, const WorldPlanArgs *args, const SimCost *cost, int routing, FILE *out) {
  int pp = s->mesh->size[AXIS_PP], n = s->mesh->world / pp;
  double flops = 0, tokens = (double)args->c->train.global_batch_size * (double)args->c->data.seq_length;
  SimTime all = {0};
  for (int rank = 0; rank < s->mesh->world; rank++) flops += s->list[s->list_of[rank]].flops;
  fprintf(out, "simulated with %s rows: %.3g flop/s and %.3g bytes/s of memory a rank; links of %.3g to %.3g bytes/s\n",
          routing == ROUTE_BALANCED ? "balanced" : "all-to-one", cost->flops, cost->memory, cost->bandwidth[AXIS_TP],
          cost->bandwidth[AXIS_PP]);
  fprintf(out, "every send meets its receive: %lld calls of groups, %lld messages between stages; bytes agree %s\n", (long long)r->n_call,
          (long long)r->n_message, r->pairs ? "member by member" : "in sum over the members of each call, but for shares of parameters");
  fprintf(out, "a step takes %.4g s: %.4g tokens/s, %.1f %% of the ranks' flop/s\n", r->seconds, tokens / r->seconds,
          100 * flops / (r->seconds * cost->flops * s->mesh->world));
  fprintf(out, "%8s %20s %20s %20s %20s\n", "stage", "compute", "transfer", "waits for members", "bubble");
  for (int stage = 0; stage < pp; stage++) {
    SimTime t = {0};
    char name[16];
    for (int i = 0; i < n; i++) add_time(&t, &r->rank[stage * n + i], 1.0 / n);
    add_time(&all, &t, 1.0 / pp);
    snprintf(name, sizeof name, "%d", stage);
    print_stage(name, &t, r->seconds, out);
  }
  print_stage("all", &all, r->seconds, out);
  print_axes(r, out);
}

bool plan_simulate(const WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, int routing, const SimCost *cost, FILE *out,
                   Err *e) {
  SimWorld s;
  SimReport r;
  TRY(sim_world(&s, w, a, scratch, args, routing, cost, args->world <= EXACT_WORLD, e));
  TRY(simulate(&r, a, &s, e));
  print_report(&r, &s, args, cost, routing, out);
  return true;
}
