#include "train/job.h"

#include <string.h>

DType job_dtype(const Config *c) { return c->numerics.dtype == CDT_FP64 ? DT_F64 : DT_F32; }

static int log2_ceil(int64_t n) {
  int b = 0;
  while (((int64_t)1 << b) < n) b++;
  return b;
}

/* The grid of exact sums over T tokens: a parameter used twice takes one bit more. README, "Numerics". */
static Numerics numerics(const Job *j, int64_t n_token) {
  const Config *c = j->c;
  return (Numerics){.exact = c->numerics.mode == NUM_CANONICAL, .real = job_dtype(c), .shards = (int)c->numerics.shards,
                    .shift = 55 - log2_ceil(n_token) - c->model.tie_word_embeddings};
}

static int64_t window(const Config *c) {
  bool whole = c->numerics.mode == NUM_NATIVE || c->numerics.window > c->data.seq_length;
  return whole ? c->data.seq_length : c->numerics.window;
}

static bool step_build(Job *j, JobStep *s, int64_t n_seq, int64_t n_token, bool train, Err *e) {
  const Config *c = j->c;
  Arena *a = j->arena;
  s->deal = deal_make(n_seq, c->data.seq_length, c->train.micro_batch_size, window(c), j->mesh.size[AXIS_DP]);
  Dims dims = model_dims(c, &j->mesh, j->rank, &s->deal);
  Numerics num = numerics(j, n_token);
  program_open(&s->program, a, &j->mesh, j->rank, &dims, &num, &j->params);
  model_build(&s->program, c, j->model);
  static const char *const schedule[] = {[SCHED_1F1B] = "1f1b", [SCHED_ALL_FORWARD] = "all_forward"};
  TRY(schedule_build(&s->sched, a, train ? schedule[c->schedule.name] : "forward", 1, 0, s->deal.n_mb, e));
  TokenView bound = deal_tokens(&s->deal, a, (DealShare){0, deal_max_sequences(&s->deal)});
  StepOptions o = {.train = train, .zero1 = c->optimizer.shard, .k = device_kernels(j->device, num.real),
                   .kctx = {.threads = j->device->threads, .gemm = j->device->gemm}, .tokens = &bound, .n_local_seq = deal_rank(&s->deal, j->dp).n,
                   .batch_aux = train && c->moe.aux_scope == AUX_GLOBAL && c->model.router_aux_loss_coef != 0,
                   .optimizer_work = exec_optimizer_work(&j->params, num.real), .reduce_work = exec_reduce_work(&j->params)};
  TRY(step_lower(&s->step, a, &s->program, &s->sched, &o, e));
  s->n_token = ARENA_NEW(a, int64_t, s->deal.n_mb);
  for (int mb = 0; mb < s->deal.n_mb; mb++) s->n_token[mb] = deal_share(&s->deal, j->dp, mb).n * c->data.seq_length;
  return true;
}

/* Evaluation runs in steps of this many sequences; sums are exact, so the number changes no bit. */
static int64_t eval_sequences(const Config *c, int64_t n_valid_seq) {
  int64_t most = 4 * c->train.global_batch_size;
  return n_valid_seq < most ? n_valid_seq : most;
}

bool job_plan(Job *j, Arena *a, const Config *c, int world, int rank, Device *device, int64_t n_valid_seq, Err *e) {
  *j = (Job){.arena = a, .c = c, .rank = rank, .device = device, .has_eval = n_valid_seq > 0};
  TRY(mesh_init(&j->mesh, world, (int)c->layout.pp, (int)c->layout.dp, (int)c->layout.cp, (int)c->layout.tp, (int)c->layout.ep, (int)c->layout.etp, e));
  j->dp = mesh_coord(&j->mesh, rank, AXIS_DP);
  params_open(&j->params, a, &j->mesh, rank);
  j->model = model_declare(&j->params, c);
  TRY(step_build(j, &j->train, c->train.global_batch_size, c->train.global_batch_size * c->data.seq_length, true, e));
  if (j->has_eval) TRY(step_build(j, &j->eval, eval_sequences(c, n_valid_seq), n_valid_seq * c->data.seq_length, false, e));
  Step *step[2] = {&j->train.step, &j->eval.step};
  int n = j->has_eval ? 2 : 1;
  plan_memory(&j->mem, a, step, n);
  return plan_check_limits(&j->mem, a, step, n, (size_t)c->memory.device_limit, (size_t)c->memory.host_limit, e);
}

bool job_open_exec(Job *j, World *w, Exec **x, Err *e) {
  ExecOptions o = {.step = {[EXEC_TRAIN] = {&j->train.step, j->train.deal, j->dp}}, .device = j->device, .world = w, .guard = j->c->memory.guard,
                   .zero1 = j->c->optimizer.shard, .slab = {.device = j->mem.device, .host = j->mem.host}};
  if (j->has_eval) o.step[EXEC_EVAL] = (ExecStep){&j->eval.step, j->eval.deal, j->dp};
  memcpy(o.slab.base, j->mem.base, sizeof o.slab.base);
  memcpy(o.slab.bytes, j->mem.bytes, sizeof o.slab.bytes);
  return exec_open(x, j->arena, &o, e);
}

int64_t job_eval_chunk(const Job *j) { return j->eval.deal.n_seq; }
