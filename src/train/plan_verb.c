#include "train/plan_verb.h"

#include <string.h>

#include "data/data.h"
#include "train/plan_sim.h"
#include "train/plan_world.h"
#include "train/saver.h"
#include "train/setup.h"

enum { PLAN_SCRATCH_GIB = 64 };

static bool routing_of(const char *name, Routing *out, Err *e) {
  static const struct {
    const char *name;
    Routing r;
  } known[] = {{"balanced", ROUTE_BALANCED}, {"all_to_one", ROUTE_ALL_TO_ONE}, {"bound", ROUTE_LEARNED}};
  *out = ROUTE_LEARNED;
  if (!name) return true;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, name)) return *out = known[i].r, true;
  return err_set(e, ERR_CONFIG, "--routing: \"%s\" is not known; there are: bound, balanced, all_to_one", name);
}

/* Evaluation counts in the plan when the validation file can be read here; else the plan says so. */
static int64_t valid_sequences(Arena *a, const Config *c, FILE *out) {
  TokenFile f;
  Err e = {0};
  if (!c->data.valid || !*c->data.valid) return 0;
  if (!setup_tokens(&f, a, c, c->data.valid, &e)) {
    fprintf(out, "note: validation is left out of this plan: %s\n", e.text);
    return 0;
  }
  int64_t n = valid_count(&f, c->data.seq_length);
  token_file_close(&f);
  return n;
}

static void print_groups(const Job *j, Arena *a, FILE *out) {
  static const Axis axes[] = {AXIS_PP, AXIS_DP, AXIS_CP, AXIS_TP, AXIS_EDP, AXIS_EP, AXIS_ETP};
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
    Group g = mesh_group(&j->mesh, a, j->rank, AXIS_BIT(axes[i]));
    fprintf(out, "group %-4s", axis_name(axes[i]));
    for (int k = 0; k < g.n; k++) fprintf(out, " %d", g.rank[k]);
    fputc('\n', out);
  }
}

static char *axes_text(Arena *a, AxisSet axes) {
  char *text = arena_printf(a, "%s", "");
  for (int i = 0; i < N_AXIS; i++)
    if (axes & AXIS_BIT(i)) text = arena_printf(a, "%s%s%s", text, *text ? "." : "", axis_name(i));
  return text;
}
/* What the rank sends in a training step. Without known counts: what no routing exceeds, bytes and messages each by themselves. */
static Traffic rank_traffic(const Job *j, Arena *a, Routing routing) {
  const Step *s = &j->train.step;
  TrafficArgs args = {.s = s,
                      .mb = j->train.mb,
                      .routed = plan_routed(s, a, &j->train.deal, (int)routing),
                      .k = device_kernels(j->device, job_dtype(j->c)),
                      .zero1 = j->c->optimizer.shard};
  Traffic t = plan_traffic(a, &args);
  if (plan_routing_known((int)routing) || !s->n_plan) return t;
  args.routed = plan_routed(s, a, &j->train.deal, PLAN_ONE_ROW);
  Traffic most = plan_traffic(a, &args);
  for (int i = 0; i < t.n; i++) t.of[i].messages = most.of[i].messages;
  return t;
}

static const char *rows_text(Routing routing) {
  return routing == ROUTE_LEARNED ? "the most" : routing == ROUTE_BALANCED ? "balanced" : "all to one";
}

static Touched rank_touched(const Job *j, Arena *a, Routing routing) {
  Touched t = touched_new(a);
  plan_touch(&j->train.step, j->train.mb, plan_routed(&j->train.step, a, &j->train.deal, (int)routing).n_row, &t);
  if (j->has_eval) plan_touch(&j->eval.step, j->eval.mb, plan_routed(&j->eval.step, a, &j->eval.deal, (int)routing).n_row, &t);
  return t;
}

/* ---- the world ------------------------------------------------------------------------------------------------------------------------ */
static void print_world(const Job *j, FILE *out) {
  const Mesh *m = &j->mesh;
  double all = 0, active = 0;
  for (int i = 0; i < j->params.n; i++) {
    const Param *p = &j->params.param[i];
    if (p->group == PGROUP_MIRROR) continue;
    double n = (double)p->n_out * (double)p->n_in;
    all += n * p->n_expert;
    active += n * (p->group == PGROUP_EXPERT ? (double)j->c->model.num_experts_per_tok : 1);
  }
  fprintf(out, "%.4g parameters, %.4g of them in use for a token\n", all, active);
  fprintf(out, "%d ranks = pp %d x dp %d x cp %d x tp %d; experts: edp %d x ep %d x etp %d\n", m->world, m->size[AXIS_PP], m->size[AXIS_DP],
          m->size[AXIS_CP], m->size[AXIS_TP], m->size[AXIS_EDP], m->size[AXIS_EP], m->size[AXIS_ETP]);
  const Deal *d = &j->train.deal;
  fprintf(out, "a step: %lld sequences of %lld tokens; %d micro-batches of at most %lld sequence%s on each of %d shares\n",
          (long long)d->n_seq, (long long)d->seq_length, d->n_mb, (long long)d->micro_batch, d->micro_batch > 1 ? "s" : "", d->n_dp);
  fprintf(out, "workspaces are those of GEMM provider %s %s with %d threads; others may need more or less\n", j->device->gemm_name,
          j->device->gemm_version, j->device->threads);
}

static char *layers_text(const Job *j, Arena *a, int stage) {
  char *text = arena_printf(a, "%s", "");
  for (int v = stage; v < j->n_virtual; v += j->mesh.size[AXIS_PP]) {
    const StageSpan *s = &j->span[v];
    const char *comma = *text ? "," : "";
    if (s->n_layer > 1)
      text = arena_printf(a, "%s%s%d-%d", text, comma, s->first_layer, s->first_layer + s->n_layer - 1);
    else if (s->n_layer == 1)
      text = arena_printf(a, "%s%s%d", text, comma, s->first_layer);
  }
  return *text ? text : arena_printf(a, "%s", "none");
}

static void print_head(Routing routing, FILE *out) {
  fprintf(out, "%5s %-9s %7s %7s %12s %12s %12s %12s %12s %12s %10s %12s\n", "stage", "layers", "ranks", "as rank", "device", "P", "F", "W",
          "S", plan_routing_known((int)routing) ? "touched" : "at most", "flop",
          plan_routing_known((int)routing) ? "sends" : "sends up to");
}

static void print_class(const Job *j, Arena *a, const RankClass *c, Routing routing, FILE *out) {
  FlopCount f = plan_flops(&j->train.step, j->train.mb, plan_routed(&j->train.step, a, &j->train.deal, (int)routing).n_row);
  Touched touched = rank_touched(j, a, routing);
  Traffic t = rank_traffic(j, a, routing);
  size_t sum = 0;
  uint64_t sends = 0;
  for (int r = REGION_P; r <= REGION_S; r++) sum += touched_bytes(&touched, r);
  for (int i = 0; i < t.n; i++) sends += t.of[i].bytes;
  fprintf(out, "%5d %-9s %7d %7d %12s", c->stage, layers_text(j, a, c->stage), c->n, j->rank, bytes_text(a, j->mem.device));
  for (int r = REGION_P; r <= REGION_S; r++) fprintf(out, " %12s", bytes_text(a, j->mem.bytes[r]));
  fprintf(out, " %12s %10.4g %12s\n", bytes_text(a, sum), f.sum, bytes_text(a, (size_t)sends));
}

/* In bytes and whole numbers, for people with calculators and for scripts. */
static const char *class_line(const Job *j, Arena *a, const RankClass *c, Routing routing) {
  FlopCount f = plan_flops(&j->train.step, j->train.mb, plan_routed(&j->train.step, j->arena, &j->train.deal, (int)routing).n_row);
  const size_t *b = j->mem.bytes;
  char *alike = arena_printf(j->arena, "; so have %d ranks, with %zu to %zu bytes of parameter states", c->n, c->states_least, c->states);
  return arena_printf(a,
                      "rank %d: device %zu = P %zu + F %zu + W %zu + S %zu; host %zu; %.4g flop a step (forward %.4g, backward %.4g); %d "
                      "instructions, %d buffers%s\n",
                      j->rank, j->mem.device, b[REGION_P], b[REGION_F], b[REGION_W], b[REGION_S], j->mem.host, f.sum, f.forward, f.backward,
                      j->train.step.n_ins, j->train.step.n_buf, c->n > 1 ? alike : "");
}

/* checkpoint.async: what the planned host memory does not hold. Refused where memory.host_limit is too small for both. */
static bool copy_line(const Job *j, Arena *a, const char **line, Err *e) {
  size_t copy;
  TRY(saver_plan(j, &copy, e));
  if (copy) *line = arena_printf(a, "%srank %d: %zu more bytes of host memory for the copy of checkpoint.async\n", *line, j->rank, copy);
  return true;
}

/* The table, then the lines, then what is largest; the first limit that is broken is the answer. */
static bool print_classes(const WorldPlan *w, Arena *a, Arena *scratch, const WorldPlanArgs *args, Routing routing, FILE *out, Err *e) {
  const char **line = ARENA_NEW(a, const char *, w->n_class), *largest = "";
  size_t most = 0;
  bool fits = true;
  print_head(routing, out);
  for (int i = 0; i < w->n_class; i++) {
    ArenaMark mark = arena_mark(scratch);
    Job j;
    TRY(world_plan_job(w, &j, scratch, args, i, e));
    print_class(&j, scratch, &w->cls[i], routing, out);
    line[i] = class_line(&j, a, &w->cls[i], routing);
    Step *step[2] = {&j.train.step, &j.eval.step};
    int n_step = j.has_eval ? 2 : 1;
    if (j.mem.device > most)
      most = j.mem.device,
      largest = arena_printf(a, "most memory on rank %d; largest buffers: %s\n", j.rank, plan_largest_buffers(scratch, step, n_step));
    if (fits)
      fits = plan_check_limits(&j.mem, j.mem.device, j.mem.host, scratch, step, n_step, (size_t)args->c->memory.device_limit,
                               (size_t)args->c->memory.host_limit, e) &&
             copy_line(&j, a, &line[i], e);
    arena_release(scratch, mark);
  }
  for (int i = 0; i < w->n_class; i++) fputs(line[i], out);
  fputs(largest, out);
  return fits;
}

/* ---- one rank --------------------------------------------------------------------------------------------------------------------------- */
static void print_rank(const Job *j, Arena *a, Routing routing, FILE *out) {
  bool known = plan_routing_known((int)routing) || !j->train.step.n_plan;
  Step *step[2] = {(Step *)(uintptr_t)&j->train.step, (Step *)(uintptr_t)&j->eval.step};
  fprintf(out, "rank %d in detail\n", j->rank);
  plan_report_memory(&j->mem, a, step, j->has_eval ? 2 : 1, out);
  Touched t = rank_touched(j, a, routing);
  fprintf(out, "touched with %s rows:", rows_text(routing));
  for (int r = REGION_P; r <= REGION_S; r++) fprintf(out, " %c %zu", "PFWS"[r], touched_bytes(&t, r));
  fputc('\n', out);
  Traffic sent = rank_traffic(j, a, routing);
  for (int i = 0; i < sent.n; i++)
    fprintf(out, "sends over %-12s %s%llu bytes in %llu messages\n", axes_text(a, sent.of[i].axes), known ? "" : "at most ",
            (unsigned long long)sent.of[i].bytes, (unsigned long long)sent.of[i].messages);
  print_groups(j, a, out);
}

static bool print_plan(Arena *a, Arena *scratch, const WorldPlanArgs *w, const PlanArgs *args, Routing routing, FILE *out, Err *e) {
  WorldPlan world;
  Job j;
  SimCost cost;
  if (args->simulate) TRY(sim_cost(&cost, scratch, w->c, w->device, args->cost, e));
  ArenaMark mark = arena_mark(scratch);
  TRY(world_plan(&world, a, scratch, w, e));
  TRY(job_declare(&j, scratch, w->c, w->world, args->rank, w->device, w->n_valid, e));
  print_world(&j, out);
  arena_release(scratch, mark);
  TRY(print_classes(&world, a, scratch, w, routing, out, e));
  if (args->simulate)
    TRY(plan_simulate(&world, a, scratch, w, plan_routing_known((int)routing) ? (int)routing : ROUTE_BALANCED, &cost, out, e));
  TRY(job_plan(&j, scratch, w->c, w->world, args->rank, w->device, w->n_valid, e));
  print_rank(&j, scratch, routing, out);
  if (args->print) step_print(&j.train.step, out);
  return true;
}

bool plan_verb(Arena *a, const ConfigDoc *doc, const PlanArgs *args, FILE *out, Err *e) {
  Routing routing;
  TRY(routing_of(args->routing, &routing, e));
  if (args->cost && !args->simulate) return err_set(e, ERR_CONFIG, "--cost: belongs to --simulate, which is missing");
  if (args->rank >= args->world) return err_set(e, ERR_CONFIG, "--rank: %d is not below the number of ranks, %d", args->rank, args->world);
  Device device;
  TRY(device_open(&device, doc->c.device.name, config_word(&doc->c, "device.gemm"), (int)doc->c.device.threads, 0, e));
  WorldPlanArgs w = {.c = &doc->c, .world = args->world, .device = &device, .n_valid = valid_sequences(a, &doc->c, out)};
  Arena scratch;
  arena_open(&scratch, "plan", (size_t)PLAN_SCRATCH_GIB << 30);
  bool ok = print_plan(a, &scratch, &w, args, routing, out, e);
  arena_close(&scratch);
  device_close(&device);
  return ok;
}
