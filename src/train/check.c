#include "train/check.h"

#include <math.h>
#include <string.h>

#include "train/check_tap.h"
#include "train/feed.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/state.h"

typedef struct Check {
  World *world;
  Arena *arena;
  const char *file;
  Log log;
  Golden *golden;
  const GoldenConfig *model;
  ConfigDoc doc;
  Device device;
  Job job;
  Exec *x;
  const CheckLimits *limit;
  CheckTaps taps;
  CheckQuantity loss, counts, norm, grads, after_step1, ce, norms, after_last;
} Check;

/* ---- opening --------------------------------------------------------------------------------------------------------------------- */
/* Sizes that memory is asked for must be those of data that the file really holds. */
static bool check_sizes(Check *k, Err *e) {
  const GoldenConfig *m = k->model;
  int n_tensor, n_dim;
  int64_t dims[GOLDEN_MAX_DIM];
  golden_weights(k->golden, &n_tensor);
  bool moe = strcmp(m->family, "llama") != 0;
  if (m->layers > n_tensor || (moe && m->experts > n_tensor))
    return err_set(e, ERR_CKPT, "%s: its config says %lld layers and %lld experts, but it has %d tensors", k->file, (long long)m->layers,
                   (long long)m->experts, n_tensor);
  for (int64_t step = 1; step <= m->steps; step++)
    for (int i = 0; i < 2; i++) {
      char path[64];
      snprintf(path, sizeof path, "steps/%lld/%s", (long long)step, i ? "labels" : "tokens");
      TRY(golden_dims(k->golden, path, &n_dim, dims, e));
      if (n_dim != 2 || dims[0] != m->batch || dims[1] != m->seq)
        return err_set(e, ERR_CKPT, "%s: %s is not [batch %lld, seq %lld] as its config says", k->file, path, (long long)m->batch,
                       (long long)m->seq);
    }
  return true;
}

enum { N_NUMERICS = 4 };
/* A file that this program wrote says in which type, windows and shards it was computed: the same ones give the same bits. Returns their number. */
static int file_sets(Check *k, const char **out, int most, Err *e) {
  static const char *const known[] = {"numerics.mode=", "numerics.dtype=", "numerics.window=", "numerics.shards="};
  const char *text = golden_numerics(k->golden);
  int n = 0;
  while (text && *text) {
    size_t length = strcspn(text, " ");
    const char *set = arena_printf(k->arena, "%.*s", (int)length, text);
    bool fine = false;
    for (int i = 0; i < N_NUMERICS && n < most; i++) fine = fine || !strncmp(set, known[i], strlen(known[i]));
    if (!fine) return err_set(e, ERR_CKPT, "%s: its attribute numerics holds \"%.64s\"", k->file, set), 0;
    out[n++] = set;
    text += length + (text[length] == ' ');
  }
  return n;
}

static bool read_config(Check *k, const char *const *sets, int n_sets, Err *e) {
  static const char *const fixed[] = {"layout.dp=0", "numerics.window=4", "numerics.dtype=fp64", "memory.guard=true"};
  enum { N_FIXED = sizeof fixed / sizeof *fixed };
  const char *own[N_NUMERICS];
  int n, n_own = file_sets(k, own, N_NUMERICS, e);
  const char *const *from_file = golden_config_sets(k->model, k->arena, &n);
  const char **all = ARENA_NEW(k->arena, const char *, n + N_FIXED + n_own + n_sets);
  memcpy(all, from_file, (size_t)n * sizeof *all);
  memcpy(all + n, fixed, sizeof fixed);
  memcpy(all + n + N_FIXED, own, (size_t)n_own * sizeof *all);
  memcpy(all + n + N_FIXED + n_own, sets, (size_t)n_sets * sizeof *all);
  return e->code == ERR_NONE && config_read(&k->doc, k->arena, NULL, all, n + N_FIXED + n_own + n_sets, e) &&
         config_resolve(&k->doc, world_size(k->world), e);
}

static bool open_device(Check *k, Err *e) {
  const Config *c = &k->doc.c;
  return device_open(&k->device, c->device.name, config_word(c, "device.gemm"), (int)c->device.threads,
                     (uint64_t)c->train.seed + (uint64_t)world_rank(k->world), e);
}

/* Every tensor of the model is in the file, of that shape, and the file has no other. */
static bool check_tensors(Check *k, Err *e) {
  const ParamSet *ps = &k->job.params;
  int n;
  const GoldenTensor *stored = golden_weights(k->golden, &n);
  if (n != ps->n_tensor)
    return err_set(e, ERR_CKPT, "%s: %d tensors, the model that its config describes has %d", k->file, n, ps->n_tensor);
  for (int i = 0; i < n; i++) {
    const Param *p = params_of_tensor(ps, i);
    const char *name = params_tensor_name(ps, k->arena, i);
    int at = 0;
    while (at < n && strcmp(stored[at].name, name)) at++;
    if (at == n) return err_set(e, ERR_CKPT, "%s: no tensor weights/%s", k->file, name);
    const GoldenTensor *t = &stored[at];
    bool fits = t->n_dim == p->n_dim && t->dims[p->n_dim - 1] == p->n_in && (p->n_dim == 1 || t->dims[0] == p->n_out);
    if (!fits)
      return err_set(e, ERR_CKPT, "%s: weights/%s has not the shape [%lld, %lld]", k->file, name, (long long)p->n_out, (long long)p->n_in);
  }
  return true;
}

/* Why these: check.h. */
static const CheckLimits limit_fp64 = {1e-11, 1e-11, 1e-11, 1e-11, 1e-11, 0, false, false},
                         limit_fp32 = {2e-5, 2e-5, 2e-5, 5e-5, 2e-4, 0, false, true},
                         limit_bf16 = {2e-2, 1e-1, 1e-1, 5e-2, 5e-1, (double)INFINITY, true, true};

#define GRADIENT_FLOOR 1e-3

static CheckQuantity tensors_quantity(const Check *k, const char *name, bool weights) {
  const ParamSet *ps = &k->job.params;
  bool together = weights ? k->limit->weights_together : k->limit->gradients_together;
  CheckQuantity q =
      quantity_new(k->arena, name, ps->n_tensor, together ? JUDGE_TOGETHER : JUDGE_EACH, weights ? k->limit->weight : k->limit->gradient);
  for (int i = 0; i < q.n; i++) {
    const Param *p = params_of_tensor(ps, i);
    q.item[i] = (CheckItem){.name = params_tensor_name(ps, k->arena, i), .size = p->n_out * p->n_in};
  }
  q.lists = !weights;
  return q;
}

static CheckQuantity scalars_quantity(const Check *k, const char *name, int n, const char *const *item, double tolerance) {
  CheckQuantity q = quantity_new(k->arena, name, n, JUDGE_EACH, tolerance);
  q.shared = true;
  for (int i = 0; i < n; i++) q.item[i] = (CheckItem){.name = item ? item[i] : arena_printf(k->arena, "step %d", i + 1), .size = 1};
  return q;
}

static bool open_quantities(Check *k, Err *e) {
  static const char *const losses[] = {"ce", "aux", "z", "total"};
  int n_step = (int)k->model->steps;
  k->loss = scalars_quantity(k, "step1/loss", 4, losses, k->limit->loss);
  k->norm = scalars_quantity(k, "step1/grad_norm", 1, NULL, k->limit->loss);
  k->ce = scalars_quantity(k, "train/ce", n_step, NULL, k->limit->loss);
  k->norms = scalars_quantity(k, "train/grad_norm", n_step, NULL, k->limit->later_norm);
  k->grads = tensors_quantity(k, "step1/grads", false);
  k->grads.floor = GRADIENT_FLOOR;
  k->after_step1 = tensors_quantity(k, "after_step1", true);
  k->after_last = tensors_quantity(k, "after_last", true);
  int n_route = 0;
  for (int l = 0; l < k->doc.c.model.num_hidden_layers; l++) n_route += config_layer_is_moe(&k->doc.c.model, l);
  k->counts = quantity_new(k->arena, "step1/counts", n_route, JUDGE_EQUAL, k->limit->choice);
  k->counts.shared = true;
  return taps_open(&k->taps, &k->job, k->arena, k->golden, k->limit, e);
}

static bool check_open(Check *k, const char *const *sets, int n_sets, Err *e) {
  if (golden_open(&k->golden, k->arena, k->file, e)) k->model = golden_config(k->golden);
  TRY(world_agree(k->world, e));
  if (check_sizes(k, e) && read_config(k, sets, n_sets, e)) open_device(k, e);
  TRY(world_agree(k->world, e));
  DType type = job_dtype(&k->doc.c);
  k->limit = type == DT_F64 ? &limit_fp64 : type == DT_F32 ? &limit_fp32 : &limit_bf16;
  if (job_plan(&k->job, k->arena, &k->doc.c, world_size(k->world), world_rank(k->world), &k->device, 0, e) && check_tensors(k, e))
    open_quantities(k, e);
  TRY(world_agree(k->world, e));
  TRY(world_set_mesh(k->world, k->arena, &k->job.mesh, e));
  job_open_exec(&k->job, k->world, &k->x, e);
  return world_agree(k->world, e);
}

static void check_close(Check *k) {
  exec_close(k->x);
  if (k->device.ops) device_close(&k->device);
  if (k->model) golden_close(k->golden);
}

/* ---- data in --------------------------------------------------------------------------------------------------------------------- */
/* Visits the pieces of a view with the stored tensor each is part of. */
typedef void PieceFn(Check *k, const StatePiece *p, const double *stored, int64_t stride, void *ctx);
static bool each_piece(Check *k, TensorView v, PieceSet set, const char *group, PieceFn *fn, void *ctx, Err *e) {
  ArenaMark mark = arena_mark(k->arena);
  StatePiece *piece;
  int n = state_pieces(k->x, &k->job, k->arena, v, set, &piece);
  for (int i = 0; i < n && e->code == ERR_NONE;) {
    ArenaMark each = arena_mark(k->arena);
    int tensor = piece[i].tensor;
    const Param *par = params_of_tensor(&k->job.params, tensor);
    double *stored = ARENA_NEW(k->arena, double, par->n_out * par->n_in);
    const char *path = arena_printf(k->arena, "%s/%s", group, params_tensor_name(&k->job.params, k->arena, tensor));
    bool ok = golden_read_f64(k->golden, path, stored, par->n_out * par->n_in, e);
    for (; i < n && piece[i].tensor == tensor; i++)
      if (ok) fn(k, &piece[i], stored, par->n_in, ctx);
    arena_release(k->arena, each);
  }
  arena_release(k->arena, mark);
  return world_agree(k->world, e);
}

static void load_piece(Check *k, const StatePiece *p, const double *stored, int64_t stride, void *ctx) {
  (void)k, (void)ctx;
  for (int64_t r = 0; r < p->n_row; r++)
    for (int64_t c = 0; c < p->n_col; c++) dtype_put(p->data, p->type, r * p->n_col + c, stored[(p->row + r) * stride + p->col + c]);
}

typedef struct StoredBatch {
  int64_t *token, *label;
  int64_t seq;
} StoredBatch;

static bool fetch_stored(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  (void)e;
  const StoredBatch *b = ctx;
  for (int64_t i = 0; i < b->seq; i++) token[i] = (int32_t)b->token[seq * b->seq + i], label[i] = (int32_t)b->label[seq * b->seq + i];
  return true;
}

static bool read_ids(Check *k, int64_t step, const char *what, int64_t *id, bool may_be_ignored, Err *e) {
  const GoldenConfig *m = k->model;
  const char *path = arena_printf(k->arena, "steps/%lld/%s", (long long)step, what);
  TRY(golden_read_i64(k->golden, path, id, m->batch * m->seq, e));
  for (int64_t i = 0; i < m->batch * m->seq; i++)
    if (id[i] >= m->vocab || (id[i] < 0 && !(may_be_ignored && id[i] == -100)))
      return err_set(e, ERR_CKPT, "%s: %s has the id %lld; ids are 0 to %lld%s", k->file, path, (long long)id[i], (long long)m->vocab - 1,
                     may_be_ignored ? ", or -100" : "");
  return true;
}

static bool load_batch(Check *k, int64_t step, Err *e) {
  int64_t n = k->model->batch * k->model->seq;
  ArenaMark mark = arena_mark(k->arena);
  StoredBatch b = {ARENA_NEW(k->arena, int64_t, n), ARENA_NEW(k->arena, int64_t, n), k->model->seq};
  bool ok = read_ids(k, step, "tokens", b.token, false, e) && read_ids(k, step, "labels", b.label, true, e) &&
            feed_step(k->x, &k->job, EXEC_TRAIN, fetch_stored, &b, e);
  arena_release(k->arena, mark);
  return ok;
}

/* ---- comparing -------------------------------------------------------------------------------------------------------------------- */
static void compare_piece(Check *k, const StatePiece *p, const double *stored, int64_t stride, void *ctx) {
  (void)k;
  for (int64_t r = 0; r < p->n_row; r++)
    for (int64_t c = 0; c < p->n_col; c++)
      quantity_add(ctx, p->tensor, dtype_get(p->data, p->type, r * p->n_col + c), stored[(p->row + r) * stride + p->col + c]);
}

static bool compare_scalar(Check *k, CheckQuantity *q, int i, const char *path, double here, Err *e) {
  double golden;
  TRY(golden_read_f64(k->golden, path, &golden, 1, e));
  quantity_add(q, i, here, golden);
  return true;
}

static bool compare_losses(Check *k, const StepResult *r, Err *e) {
  RouterStats s = metrics_router(&k->job, r);
  double total = r->loss + k->model->aux_coeff * s.aux + k->model->z_coeff * s.z;
  return compare_scalar(k, &k->loss, 0, "step1/loss/ce", r->loss, e) && compare_scalar(k, &k->loss, 1, "step1/loss/aux", s.aux, e) &&
         compare_scalar(k, &k->loss, 2, "step1/loss/z", s.z, e) && compare_scalar(k, &k->loss, 3, "step1/loss/total", total, e);
}

static bool compare_counts(Check *k, const StepResult *r, Err *e) {
  const ModelConfig *m = &k->doc.c.model;
  int at = 0, n = (int)m->num_local_experts;
  for (int l = 0; l < m->num_hidden_layers; l++) {
    if (!config_layer_is_moe(m, l)) continue;
    int64_t *golden = ARENA_NEW(k->arena, int64_t, n);
    TRY(golden_read_i64(k->golden, arena_printf(k->arena, "step1/layers/%d/counts", l), golden, n, e));
    k->counts.item[at] = (CheckItem){.name = arena_printf(k->arena, "layer %d", l), .size = n};
    for (int x = 0; x < n; x++) quantity_add(&k->counts, at, (double)r->stat[model_stat(m, l) + 2 + x], (double)golden[x]);
    at++;
  }
  return true;
}

/* Losses and norms of every step, known on every rank alike. */
static bool compare_steps(Check *k, const double *ce, const double *norm, Err *e) {
  int n = (int)k->model->steps;
  double *golden = ARENA_NEW(k->arena, double, n);
  TRY(golden_read_f64(k->golden, "train/ce", golden, n, e));
  for (int i = 0; i < n; i++) quantity_add(&k->ce, i, ce[i], golden[i]);
  TRY(golden_read_f64(k->golden, "train/grad_norm", golden, n, e));
  quantity_add(&k->norm, 0, norm[0], golden[0]);
  for (int i = 0; i < n; i++) quantity_add(&k->norms, i, norm[i], golden[i]);
  return true;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------------- */
static bool run_step(Check *k, int64_t step, StepResult *r, Err *e) {
  const Config *c = &k->doc.c;
  load_batch(k, step, e);
  TRY(world_agree(k->world, e));
  UpdateArgs u = update_args(c, c->optimizer.lr, step);
  exec_set_tap(k->x, step == 1 ? taps_compare : NULL, &k->taps);
  exec_run(k->x, EXEC_TRAIN, &u, r);
  if (r->fault)
    return err_set(e, ERR_NONFINITE, "%s: step %lld: a loss or gradient is not finite or beyond its bound (loss %g, gradient norm %g)",
                   k->file, (long long)step, r->loss, r->grad_norm);
  return true;
}

static bool run_steps(Check *k, Err *e) {
  int64_t n = k->model->steps;
  double *ce = ARENA_NEW(k->arena, double, n), *norm = ARENA_NEW(k->arena, double, n);
  TRY(each_piece(k, TENSOR_WEIGHT, PIECES_LOCAL, "weights", load_piece, NULL, e));
  if (state_has_masters(&k->job))
    TRY(each_piece(k, TENSOR_MASTER, k->doc.c.optimizer.shard ? PIECES_OWNED : PIECES_LOCAL, "weights", load_piece, NULL, e));
  for (int64_t step = 1; step <= n; step++) {
    StepResult r;
    TRY(run_step(k, step, &r, e));
    ce[step - 1] = r.loss, norm[step - 1] = r.grad_norm;
    if (step > 1) continue;
    if (compare_losses(k, &r, e)) compare_counts(k, &r, e);
    TRY(world_agree(k->world, e));
    TRY(each_piece(k, TENSOR_GRAD, PIECES_OWNED, "step1/grads", compare_piece, &k->grads, e));
    TRY(each_piece(k, TENSOR_MASTER, PIECES_OWNED, "after_step1", compare_piece, &k->after_step1, e));
  }
  TRY(each_piece(k, TENSOR_MASTER, PIECES_OWNED, "after_last", compare_piece, &k->after_last, e));
  compare_steps(k, ce, norm, e);
  return world_agree(k->world, e);
}

static void say_hello(Check *k) {
  const Config *c = &k->doc.c;
  const Mesh *m = &k->job.mesh;
  log_line(&k->log, "%s: %s, %d tensors, %lld steps of %lld x %lld tokens", k->file, k->model->family, k->job.params.n_tensor,
           (long long)k->model->steps, (long long)k->model->batch, (long long)k->model->seq);
  log_line(&k->log, "%d ranks (dp %d = edp %d x ep %d), %d micro-batches, %s %s, window %lld, shards %lld, %s, gemm %s %s", m->world,
           m->size[AXIS_DP], m->size[AXIS_EDP], m->size[AXIS_EP], k->job.train.deal.n_mb,
           c->numerics.mode == NUM_CANONICAL ? "canonical" : "native", dtype_name(job_dtype(c)), (long long)c->numerics.window,
           (long long)c->numerics.shards, k->device.name, k->device.gemm_name, k->device.gemm_version);
}

static bool report(Check *k, Err *e) {
  enum { MAX = CHECK_TAPS + 8 };
  CheckQuantity *q[MAX];
  int n = 0;
  q[n++] = &k->loss;
  for (int i = 0; i < k->taps.n; i++) q[n++] = &k->taps.quantity[i];
  if (k->counts.n) q[n++] = &k->counts;
  q[n++] = &k->norm;
  q[n++] = &k->grads;
  q[n++] = &k->after_step1;
  q[n++] = &k->ce;
  q[n++] = &k->norms;
  q[n++] = &k->after_last;
  for (int i = 0; i < n; i++) quantity_combine(q[i], k->world, k->arena);
  quantity_print_header(&k->log);
  for (int i = 0; i < n; i++) quantity_print(q[i], &k->log);
  return quantity_judge(q, n, k->file, e);
}

bool check_run(World *w, Arena *a, const char *file, const char *const *sets, int n_sets, FILE *out, Err *e) {
  Check *k = ARENA_NEW(a, Check, 1);
  *k = (Check){.world = w, .arena = a, .file = file};
  log_open(&k->log, out, world_rank(w) == 0);
  bool ok = check_open(k, sets, n_sets, e);
  if (ok) {
    say_hello(k);
    ok = run_steps(k, e) && report(k, e) && state_check_replicas(k->x, &k->job, w, e);
  }
  check_close(k);
  return ok;
}
