#include "train/plan_verb.h"

#include <string.h>

#include "data/data.h"
#include "train/job.h"
#include "train/saver.h"
#include "train/session.h"

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
  if (!session_tokens(&f, a, c, c->data.valid, &e)) {
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
static void print_traffic(const Job *j, Arena *a, Routing routing, FILE *out) {
  const Step *s = &j->train.step;
  bool known = plan_routing_known((int)routing) || !s->n_plan;
  TrafficArgs args = {.s = s,
                      .mb = j->train.mb,
                      .routed = plan_routed(s, a, &j->train.deal, (int)routing),
                      .k = device_kernels(j->device, job_dtype(j->c)),
                      .zero1 = j->c->optimizer.shard};
  Traffic t = plan_traffic(a, &args);
  if (!known) {
    args.routed = plan_routed(s, a, &j->train.deal, PLAN_ONE_ROW);
    Traffic most = plan_traffic(a, &args);
    for (int i = 0; i < t.n; i++) t.of[i].messages = most.of[i].messages;
  }
  for (int i = 0; i < t.n; i++)
    fprintf(out, "sends over %-12s %s%llu bytes in %llu messages\n", axes_text(a, t.of[i].axes), known ? "" : "at most ",
            (unsigned long long)t.of[i].bytes, (unsigned long long)t.of[i].messages);
}

static void print_rank(const Job *j, Arena *a, Routing routing, size_t copy, bool details, FILE *out) {
  int64_t *n_row = plan_routed(&j->train.step, a, &j->train.deal, (int)routing).n_row;
  FlopCount f = plan_flops(&j->train.step, j->train.mb, n_row);
  fprintf(out,
          "rank %d: device %zu = P %zu + F %zu + W %zu + S %zu; host %zu; %.4g flop a step (forward %.4g, backward %.4g); %d instructions, "
          "%d buffers\n",
          j->rank, j->mem.device, j->mem.bytes[REGION_P], j->mem.bytes[REGION_F], j->mem.bytes[REGION_W], j->mem.bytes[REGION_S],
          j->mem.host, f.model, f.forward, f.backward, j->train.step.n_ins, j->train.step.n_buf);
  if (copy) fprintf(out, "rank %d: %zu more bytes of host memory for the copy of checkpoint.async\n", j->rank, copy);
  if (!details) return;
  Step *step[2] = {(Step *)(uintptr_t)&j->train.step, (Step *)(uintptr_t)&j->eval.step};
  plan_report_memory(&j->mem, a, step, j->has_eval ? 2 : 1, out);
  Touched t = touched_new(a);
  plan_touch(&j->train.step, j->train.mb, n_row, &t);
  if (j->has_eval) { plan_touch(&j->eval.step, j->eval.mb, plan_routed(&j->eval.step, a, &j->eval.deal, (int)routing).n_row, &t); }
  fprintf(out, "touched with %s rows:", routing == ROUTE_LEARNED ? "the most" : routing == ROUTE_BALANCED ? "balanced" : "all to one");
  for (int r = REGION_P; r <= REGION_S; r++) fprintf(out, " %c %zu", "PFWS"[r], touched_bytes(&t, r));
  fputc('\n', out);
  print_traffic(j, a, routing, out);
  print_groups(j, a, out);
}

bool plan_verb(Arena *a, const ConfigDoc *doc, const PlanArgs *args, FILE *out, Err *e) {
  static const char *const gemm[] = {[GEMM_AUTO] = "auto", [GEMM_ONEDNN] = "onednn", [GEMM_PLAIN] = "plain"};
  Routing routing;
  TRY(routing_of(args->routing, &routing, e));
  if (args->rank >= args->world) return err_set(e, ERR_CONFIG, "--rank: %d is not below the number of ranks, %d", args->rank, args->world);
  Device device;
  TRY(device_open(&device, doc->c.device.name, gemm[doc->c.device.gemm], (int)doc->c.device.threads, 0, e));
  int64_t n_valid = valid_sequences(a, &doc->c, out);
  bool ok = true;
  for (int rank = 0; rank < args->world && ok; rank++) {
    ArenaMark mark = arena_mark(a);
    Job j;
    size_t copy = 0;
    ok = job_plan(&j, a, &doc->c, args->world, rank, &device, n_valid, e) && job_check_limits(&j, NULL, e) && saver_plan(&j, &copy, e);
    if (ok) print_rank(&j, a, routing, copy, rank == args->rank, out);
    if (ok && args->print && rank == args->rank) step_print(&j.train.step, out);
    arena_release(a, mark);
  }
  device_close(&device);
  return ok;
}
