#include "train/job.h"

#include <string.h>

static const struct {
  DType act, real;
  GemmType gemm;
} types[] = {[CDT_FP32] = {DT_F32, DT_F32, GEMM_F32}, [CDT_FP64] = {DT_F64, DT_F64, GEMM_F64}, [CDT_BF16] = {DT_BF16, DT_F32, GEMM_BF16}};
ROW_FOR_EACH(types, N_CDT);
DType job_dtype(const Config *c) { return types[c->numerics.dtype].act; }
DType job_real(const Config *c) { return types[c->numerics.dtype].real; }
GemmType job_gemm(const Config *c) { return types[c->numerics.dtype].gemm; }
DType job_weight(const Config *c, ParamGroupId g) { return weight_type(&(Numerics){.act = job_dtype(c), .real = job_real(c)}, g); }

static int log2_ceil(int64_t n) {
  int b = 0;
  while (((int64_t)1 << b) < n) b++;
  return b;
}

/* The grid of exact sums over T tokens: a parameter used twice takes one bit more. README, "Numerics". */
static Numerics numerics(const Job *j, int64_t n_token) {
  const Config *c = j->c;
  return (Numerics){.exact = c->numerics.mode == NUM_CANONICAL,
                    .act = job_dtype(c),
                    .real = job_real(c),
                    .shards = model_shards(c),
                    .shift = 55 - log2_ceil(n_token) - c->model.tie_word_embeddings};
}

/* Native mode needs windows only where sequences are dealt out. */
static int64_t window(const Config *c) {
  bool dealt = c->layout.tp > 1 || c->layout.cp > 1;
  bool whole = (c->numerics.mode == NUM_NATIVE && !dealt) || c->numerics.window > c->data.seq_length;
  return whole ? c->data.seq_length : c->numerics.window;
}

static const char *schedule_name(const Config *c, bool train) { return train ? config_word(c, "schedule.name") : "forward"; }

static void build_programs(Job *j, JobStep *s, int64_t n_token) {
  int pp = j->mesh.size[AXIS_PP], stage = mesh_coord(&j->mesh, j->rank, AXIS_PP);
  s->n_chunk = j->n_virtual / pp;
  s->chunk = ARENA_NEW(j->arena, const Program *, s->n_chunk);
  Dims dims = model_dims(j->c, &j->mesh, j->rank, &s->deal);
  Numerics num = numerics(j, n_token);
  s->program = ARENA_NEW(j->arena, Program, s->n_chunk);
  for (int c = 0; c < s->n_chunk; c++) {
    int v = c * pp + stage;
    program_open(&s->program[c], j->arena, &j->mesh, j->rank, &dims, &num, &j->params);
    model_build(&s->program[c], j->c, j->model, &j->span[v], v, j->n_virtual);
    s->chunk[c] = &s->program[c];
  }
}

static bool step_declare(Job *j, JobStep *s, int64_t n_seq, int64_t n_token, bool train, Err *e) {
  const Config *c = j->c;
  Arena *a = j->arena;
  int pp = j->mesh.size[AXIS_PP];
  s->deal = deal_make(n_seq, c->data.seq_length, c->train.micro_batch_size, window(c), &j->mesh);
  build_programs(j, s, n_token);
  TRY(schedule_build(&s->sched, a, schedule_name(c, train), pp, mesh_coord(&j->mesh, j->rank, AXIS_PP), s->deal.n_mb, s->n_chunk, e));
  int64_t n_input = 0;
  s->mb = ARENA_NEW(a, DealMb, s->deal.n_mb);
  for (int mb = 0; mb < s->deal.n_mb; mb++) s->mb[mb] = deal_mb(&s->deal, a, j->place, mb), n_input += s->mb[mb].view[VIEW_TP].n_token;
  bool ends = s->chunk[0]->virtual_stage == 0 || s->chunk[s->n_chunk - 1]->virtual_stage == j->n_virtual - 1;
  s->options = (StepOptions){.train = train,
                             .zero1 = c->optimizer.shard,
                             .zero3 = c->optimizer.shard_parameters,
                             .k = device_kernels(j->device, job_dtype(c)),
                             .kctx = {.threads = j->device->threads, .gemm = j->device->gemm},
                             .mb = &s->mb[0],
                             .n_input = n_input,
                             .n_document = c->data.document_mask ? deal_rank(&s->deal, j->place.dp).n * c->data.seq_length : 0,
                             .tied_stages = c->model.tie_word_embeddings && pp > 1 && ends,
                             .batch_aux = train && c->moe.aux_scope == AUX_GLOBAL && c->model.router_aux_loss_coef != 0,
                             .optimizer_work = exec_optimizer_work(&j->params, job_real(c)),
                             .reduce_work = exec_reduce_work(&j->params)};
  return true;
}

/* Evaluation runs in steps of this many sequences; sums are exact, so the number changes no bit. */
static int64_t eval_sequences(const Config *c, int64_t n_valid_seq) {
  int64_t most = 4 * c->train.global_batch_size;
  return n_valid_seq < most ? n_valid_seq : most;
}

bool job_declare(Job *j, Arena *a, const Config *c, int world, int rank, Device *device, int64_t n_valid_seq, Err *e) {
  *j = (Job){.arena = a, .c = c, .rank = rank, .device = device, .has_eval = n_valid_seq > 0};
  TRY(mesh_init(&j->mesh, world, (int)c->layout.pp, (int)c->layout.dp, (int)c->layout.cp, (int)c->layout.tp, (int)c->layout.ep,
                (int)c->layout.etp, e));
  j->place = deal_place(&j->mesh, rank);
  j->n_virtual = (int)(c->layout.pp * c->layout.chunks);
  j->span = ARENA_NEW(a, StageSpan, j->n_virtual);
  model_stages(c, j->n_virtual, j->span);
  params_open(&j->params, a, &j->mesh, rank);
  j->model = model_declare(&j->params, c, j->span, j->n_virtual);
  TRY(step_declare(j, &j->train, c->train.global_batch_size, c->train.global_batch_size * c->data.seq_length, true, e));
  if (j->has_eval) TRY(step_declare(j, &j->eval, eval_sequences(c, n_valid_seq), n_valid_seq * c->data.seq_length, false, e));
  return true;
}

static void lower(Job *j, JobStep *s) { step_lower(&s->step, j->arena, s->chunk, s->n_chunk, &s->sched, &s->options); }
void job_lower(Job *j) {
  Step *step[2] = {&j->train.step, &j->eval.step};
  lower(j, &j->train);
  if (j->has_eval) lower(j, &j->eval);
  plan_memory(&j->mem, j->arena, step, j->has_eval ? 2 : 1);
}

bool job_plan(Job *j, Arena *a, const Config *c, int world, int rank, Device *device, int64_t n_valid_seq, Err *e) {
  TRY(job_declare(j, a, c, world, rank, device, n_valid_seq, e));
  job_lower(j);
  return true;
}

bool job_check_limits(Job *j, World *w, Err *e) {
  Step *step[2] = {&j->train.step, &j->eval.step};
  uint64_t need[2] = {j->mem.device, j->mem.host};
  if (w) comm_allreduce_max_u64(w, AXES_WORLD, need, 2);
  bool mine = need[0] == j->mem.device || !w; /* the rank that needs most speaks, with its own buffers */
  if (mine || need[1] == j->mem.host)
    plan_check_limits(&j->mem, (size_t)need[0], (size_t)need[1], j->arena, step, j->has_eval ? 2 : 1,
                      mine ? (size_t)j->c->memory.device_limit : 0, (size_t)j->c->memory.host_limit, e);
  return w ? world_agree(w, e) : e->code == ERR_NONE;
}

bool job_open_exec(Job *j, World *w, Exec **x, Err *e) {
  ExecOptions o = {.step = {[EXEC_TRAIN] = {&j->train.step, j->train.deal, j->place}},
                   .device = j->device,
                   .world = w,
                   .guard = j->c->memory.guard,
                   .zero1 = j->c->optimizer.shard,
                   .zero3 = j->c->optimizer.shard_parameters,
                   .slab = {.device = j->mem.device, .host = j->mem.host}};
  if (j->has_eval) o.step[EXEC_EVAL] = (ExecStep){&j->eval.step, j->eval.deal, j->place};
  memcpy(o.slab.base, j->mem.base, sizeof o.slab.base);
  memcpy(o.slab.bytes, j->mem.bytes, sizeof o.slab.bytes);
  return exec_open(x, j->arena, &o, e);
}

int64_t job_eval_chunk(const Job *j) { return j->eval.deal.n_seq; }
