#include "train/state.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "train/version.h"

/* Runs on n elements from element `first` of a segment as at most three rectangles: a row's end, whole rows, a row's beginning. */
static int rectangles(const ParamSeg *s, int64_t first, int64_t n, StatePiece *out) {
  int k = 0;
  while (n > 0) {
    int64_t row = first / s->n_col, col = first % s->n_col;
    bool rows = col == 0 && n >= s->n_col;
    int64_t n_row = rows ? n / s->n_col : 1, n_col = rows ? s->n_col : s->n_col - col < n ? s->n_col - col : n;
    out[k++] = (StatePiece){
        .tensor = s->tensor, .row = s->row + row, .n_row = n_row, .col = s->col + col, .n_col = n_col, .flat = s->flat + first};
    first += n_row * n_col;
    n -= n_row * n_col;
  }
  return k;
}

/* The pieces without their data. */
static int list_pieces(const Exec *x, const Job *j, Arena *a, TensorView v, PieceSet set, StatePiece **out) {
  const ParamSet *ps = &j->params;
  int n_seg = 0;
  for (int g = 0; g < N_PGROUP; g++) n_seg += ps->n_seg[g];
  StatePiece *piece = *out = ARENA_NEW(a, StatePiece, 3 * n_seg + 1);
  int n = 0;
  for (int g = 0; g < N_PGROUP; g++) {
    if (g == PGROUP_MIRROR && v != TENSOR_WEIGHT && v != TENSOR_GRAD) continue; /* a copy has no more */
    int64_t lo = 0, hi = ps->n_flat[g];
    bool shares = j->c->optimizer.shard_parameters && g != PGROUP_MIRROR; /* what is here is what is owned */
    if (set == PIECES_OWNED || shares) exec_owned(x, g, &lo, &hi);
    for (int k = 0; k < ps->n_seg[g]; k++) {
      const ParamSeg *s = &ps->seg[g][k];
      int64_t end = s->flat + s->n_row * s->n_col, from = s->flat > lo ? s->flat : lo, to = end < hi ? end : hi;
      if (from >= to) continue;
      int m = rectangles(s, from - s->flat, to - from, piece + n);
      for (int i = 0; i < m; i++) {
        piece[n].type = v == TENSOR_WEIGHT ? job_weight(j->c, g) : job_real(j->c);
        piece[n++].group = g;
      }
    }
  }
  return n;
}

int state_pieces(Exec *x, const Job *j, Arena *a, TensorView v, PieceSet set, StatePiece **out) {
  int n = list_pieces(x, j, a, v, set, out);
  for (int k = 0; k < n; k++) {
    StatePiece *p = &(*out)[k];
    int64_t size = p->n_row * p->n_col;
    void *scratch = v == TENSOR_GRAD ? arena_alloc(a, (size_t)size, dtype_size(p->type)) : NULL;
    p->data = (void *)(uintptr_t)exec_view(x, p->group, v, p->flat, size, scratch);
  }
  return n;
}

/* ---- initial values ------------------------------------------------------------------------------------------------------------------------ */
bool state_has_masters(const Job *j) { return job_dtype(j->c) != job_real(j->c); }

/* Where optimizer state is not in shares, every rank has all of it. */
static PieceSet held(const Job *j, TensorView v) { return v == TENSOR_WEIGHT || !j->c->optimizer.shard ? PIECES_LOCAL : PIECES_OWNED; }

enum { INIT_CHUNK = 1024 };
static void init_values(const Job *j, const Param *p, RngKey key, uint64_t element, int64_t n, double *value) {
  if (p->kind == PARAM_NORM || p->kind == PARAM_BIAS) {
    for (int64_t i = 0; i < n; i++) value[i] = p->kind == PARAM_NORM ? 1.0 : 0.0;
  } else {
    rng_normals(key, element, n, value);
    for (int64_t i = 0; i < n; i++) value[i] *= j->c->model.initializer_range;
  }
}
static void init_view(Exec *x, const Job *j, TensorView view) {
  ArenaMark mark = arena_mark(j->arena);
  StatePiece *piece;
  int n = state_pieces(x, j, j->arena, view, held(j, view), &piece);
  for (int k = 0; k < n; k++) {
    const StatePiece *p = &piece[k];
    const Param *par = params_of_tensor(&j->params, p->tensor);
    RngKey key = {
        .seed = (uint64_t)j->c->train.seed, .purpose = RNG_INIT, .stream = hash_name(params_tensor_name(&j->params, j->arena, p->tensor))};
    double value[INIT_CHUNK];
    for (int64_t r = 0; r < p->n_row; r++)
      for (int64_t c = 0, m; c < p->n_col; c += m) {
        m = p->n_col - c < INIT_CHUNK ? p->n_col - c : INIT_CHUNK;
        init_values(j, par, key, (uint64_t)((p->row + r) * par->n_in + p->col + c), m, value);
        for (int64_t i = 0; i < m; i++) dtype_put(p->data, p->type, r * p->n_col + c + i, value[i]);
      }
  }
  arena_release(j->arena, mark);
}
void state_init(Exec *x, const Job *j) {
  init_view(x, j, TENSOR_WEIGHT);
  if (state_has_masters(j)) init_view(x, j, TENSOR_MASTER);
}

/* ---- hashes ---------------------------------------------------------------------------------------------------------------------------------- */
/* Gradients are converted a chunk at a time: a copy of all would be memory that no plan knows. */
enum { HASH_CHUNK = 1 << 16 };
static uint64_t hash_piece(Exec *x, const Job *j, TensorView v, const StatePiece *p, uint64_t name, void *scratch) {
  DType t = p->type;
  int64_t cols = params_of_tensor(&j->params, p->tensor)->n_in, size = p->n_row * p->n_col;
  uint64_t h = 0;
  for (int64_t at = 0; at < size; at += HASH_CHUNK) {
    int64_t n = size - at < HASH_CHUNK ? size - at : HASH_CHUNK;
    const char *data = exec_view(x, p->group, v, p->flat + at, n, scratch);
    for (int64_t i = 0, run; i < n; i += run) {
      int64_t row = (at + i) / p->n_col, col = (at + i) % p->n_col;
      run = n - i < p->n_col - col ? n - i : p->n_col - col;
      h += hash_run(name, (uint64_t)((p->row + row) * cols + p->col + col), data + (size_t)i * dtype_size(t), dtype_size(t), run);
    }
  }
  return h;
}
static void hash_pieces(Exec *x, const Job *j, TensorView v, PieceSet set, uint64_t *hash) {
  ArenaMark mark = arena_mark(j->arena);
  StatePiece *piece;
  int n = list_pieces(x, j, j->arena, v, set, &piece);
  void *scratch = arena_alloc(j->arena, HASH_CHUNK, sizeof(double));
  memset(hash, 0, (size_t)j->params.n_tensor * sizeof *hash);
  for (int k = 0; k < n; k++)
    hash[piece[k].tensor] += hash_piece(x, j, v, &piece[k], hash_name(params_tensor_name(&j->params, j->arena, piece[k].tensor)), scratch);
  arena_release(j->arena, mark);
}
void state_hash(Exec *x, const Job *j, World *w, TensorView v, uint64_t *hash) {
  hash_pieces(x, j, v, PIECES_OWNED, hash);
  comm_allreduce_u64(w, AXES_WORLD, hash, j->params.n_tensor);
}
uint64_t state_hash_all(const Job *j, const uint64_t *hash) {
  uint64_t h = 0;
  for (int i = 0; i < j->params.n_tensor; i++) h += hash_mix(hash[i] + 0x9e3779b97f4a7c15u * (uint64_t)(i + 1));
  return h;
}

/* Over a group, the largest of a hash and of its complement tell whether all that have the tensor agree; who has not gives 0 for both. */
static void compare_group(const Job *j, World *w, AxisSet axes, ParamGroupId group, bool mirrors, const uint64_t *hash, Err *e) {
  int n = j->params.n_tensor;
  uint64_t *high = ARENA_NEW(j->arena, uint64_t, n), *low = ARENA_NEW(j->arena, uint64_t, n);
  for (int i = 0; i < n; i++) {
    const Param *p = params_of_tensor(&j->params, i);
    bool asked = p->group == group && (!mirrors || (p->n_use > 1 && p->kind == PARAM_EMBEDDING));
    if (asked && hash[i]) high[i] = hash[i], low[i] = ~hash[i];
  }
  comm_allreduce_max_u64(w, axes, high, n);
  comm_allreduce_max_u64(w, axes, low, n);
  for (int i = 0; i < n; i++)
    if ((high[i] || low[i]) && high[i] != ~low[i])
      err_set(e, ERR_MISMATCH, "ranks that hold the same weights differ in %s", params_tensor_name(&j->params, j->arena, i));
}

bool state_check_replicas(Exec *x, const Job *j, World *w, Err *e) {
  if (j->c->optimizer.shard_parameters) return true; /* there are none */
  ArenaMark mark = arena_mark(j->arena);
  uint64_t *hash = ARENA_NEW(j->arena, uint64_t, j->params.n_tensor);
  hash_pieces(x, j, TENSOR_WEIGHT, PIECES_LOCAL, hash);
  for (int g = 0; g < N_PGROUP; g++)
    if (g != PGROUP_MIRROR) compare_group(j, w, pgroup_axes(g), g, false, hash, e);
  compare_group(j, w, AXIS_BIT(AXIS_PP), PGROUP_SHARD, true, hash, e);
  arena_release(j->arena, mark);
  return world_agree(w, e);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------------------------------------- */
char *state_numerics(const Job *j, Arena *a) {
  const Config *c = j->c;
  const int *n = j->mesh.size;
  bool canonical = c->numerics.mode == NUM_CANONICAL;
  char *layout = canonical
                     ? arena_printf(a, "%s", "")
                     : arena_printf(a, " layout pp %d dp %d cp %d tp %d ep %d etp %d micro-batches %d threads %d", n[AXIS_PP], n[AXIS_DP],
                                    n[AXIS_CP], n[AXIS_TP], n[AXIS_EP], n[AXIS_ETP], j->train.deal.n_mb, j->device->threads);
  return arena_printf(a, "%s %s window %lld shards %d seed %lld isa %s gemm %s %s%s", canonical ? "canonical" : "native",
                      dtype_name(job_dtype(c)), (long long)j->train.deal.window, model_shards(c), (long long)c->train.seed, j->device->isa,
                      j->device->gemm_name, j->device->gemm_version, layout);
}

static const struct {
  const char *group;
  TensorView view;
} saved[] = {{"weights", TENSOR_WEIGHT}, {"masters", TENSOR_MASTER}, {"moments/m", TENSOR_M}, {"moments/v", TENSOR_V}};
_Static_assert(N_SAVED == sizeof saved / sizeof *saved, "every saved view has a place");

static bool is_copied(const Job *j, int k) { return saved[k].view != TENSOR_MASTER || state_has_masters(j); }
static DType saved_type(const Job *j, int k, ParamGroupId g) {
  return saved[k].view == TENSOR_WEIGHT ? job_weight(j->c, g) : job_real(j->c);
}

size_t state_saved_bytes(const Job *j, ParamGroupId g, int *n_set) {
  size_t bytes = 0;
  *n_set = 0;
  for (int k = 0; k < N_SAVED; k++)
    if (is_copied(j, k)) bytes += dtype_size(saved_type(j, k, g)), *n_set += 1;
  return bytes;
}

static CkptTensor *tensors(const Job *j, Arena *a, int k) {
  CkptTensor *t = ARENA_NEW(a, CkptTensor, j->params.n_tensor);
  for (int i = 0; i < j->params.n_tensor; i++) {
    const Param *p = params_of_tensor(&j->params, i);
    t[i] = (CkptTensor){.name = params_tensor_name(&j->params, a, i),
                        .dtype = saved_type(j, k, p->group),
                        .n_dim = p->n_dim,
                        .rows = p->n_out,
                        .cols = p->n_in};
  }
  return t;
}
static void fill_set(Exec *x, const Job *j, Arena *a, int k, PieceSet which, CkptSet *set) {
  StatePiece *piece;
  int n = state_pieces(x, j, a, saved[k].view, which, &piece);
  CkptPiece *out = ARENA_NEW(a, CkptPiece, n + 1);
  for (int i = 0; i < n; i++)
    out[i] = (CkptPiece){piece[i].tensor, piece[i].row, piece[i].n_row, piece[i].col, piece[i].n_col, piece[i].data};
  *set = (CkptSet){.group = saved[k].group, .tensor = tensors(j, a, k), .n_tensor = j->params.n_tensor, .piece = out, .n_piece = n};
}

void state_open_save(Exec *x, const Job *j, Arena *a, int64_t step, int64_t consumed, StateSave *s) {
  for (int k = 0; k < N_SAVED; k++) {
    fill_set(x, j, a, k, PIECES_OWNED, &s->set[k]);
    if (!is_copied(j, k)) s->set[k].same_as = "weights", s->set[k].n_piece = 0;
  }
  s->meta = (CkptMeta){.step = step,
                       .consumed_samples = consumed,
                       .seed = (uint64_t)j->c->train.seed,
                       .world = j->mesh.world,
                       .config = j->c->text,
                       .numerics = state_numerics(j, a),
                       .code_version = version_text(),
                       .isa = j->device->isa,
                       .gemm = arena_printf(a, "%s %s", j->device->gemm_name, j->device->gemm_version)};
}

static void note_changes(Arena *a, Log *log, const char *was, const char *now, StateFrom *from) {
  const char *changes = was ? config_changes(a, was, now, CONFIG_SCOPE_TRAINING) : NULL;
  if (!changes)
    log_line(log, "note: the checkpoint's configuration cannot be read, so nobody knows whether this run is as it says");
  else if (*changes)
    log_line(log, "note: not as in the run that wrote the checkpoint: %s", changes);
  snprintf(from->changes, sizeof from->changes, "%s", changes ? changes : "unknown");
}

bool state_load(Exec *x, const Job *j, World *w, const char *path, StateFrom *from, Log *log, Err *e) {
  Arena *a = j->arena;
  ArenaMark mark = arena_mark(a);
  CkptMeta m;
  char *file, *note;
  CkptSet set[N_SAVED];
  int n = 0;
  for (int k = 0; k < N_SAVED; k++)
    if (is_copied(j, k)) fill_set(x, j, a, k, held(j, saved[k].view), &set[n++]);
  TRY(ckpt_load_newest(w, a, path, &m, set, n, &file, &note, e));
  *from = (StateFrom){.step = m.step, .consumed = m.consumed_samples};
  snprintf(from->file, sizeof from->file, "%s", file);
  log_line(log, "resumed from %s: step %lld, %lld samples", file, (long long)m.step, (long long)m.consumed_samples);
  if (note) log_line(log, "note: %s", note);
  const char *now = state_numerics(j, a);
  if (strcmp(m.numerics, now))
    log_line(log,
             "note: the checkpoint was written with \"%s\", this run has \"%s\": it continues, but not with the bits of a run that never "
             "stopped",
             m.numerics, now);
  note_changes(a, log, m.config, j->c->text, from);
  arena_release(a, mark);
  return true;
}
