#include "train/weights.h"

#include "ckpt/ckpt.h"
#include "train/state.h"

static bool has_config(void *ctx, World *w, Arena *a, const char *file, const CkptMeta *m, Err *e) {
  (void)ctx, (void)w, (void)a;
  return m->config || err_set(e, ERR_CKPT, "%s: no configuration in it", file);
}
const char *weights_config(World *w, Arena *a, const char *path, char **file, Err *e) {
  CkptMeta m;
  char *note;
  return ckpt_read_newest(w, a, path, &m, has_config, NULL, file, &note, e) ? m.config : NULL;
}

/* The configuration of the file's run says of which types its weights are. */
static bool stored_config(Arena *a, const CkptMeta *m, const char *file, const Config **c, Err *e) {
  ConfigDoc *doc = ARENA_NEW(a, ConfigDoc, 1);
  Err why = {0};
  if (!config_read_text(doc, a, file, m->config, NULL, 0, &why))
    return err_set(e, ERR_CKPT, "the configuration in the checkpoint cannot be read: %.1500s", why.text);
  *c = &doc->c;
  return true;
}

static void convert(void *to, DType to_type, const void *from, DType from_type, int64_t n) {
  for (int64_t i = 0; i < n; i++) dtype_put(to, to_type, i, dtype_get(from, from_type, i));
}

static CkptTensor *tensors_of(const Job *j, Arena *a, const Config *stored) {
  CkptTensor *out = ARENA_NEW(a, CkptTensor, j->params.n_tensor);
  for (int i = 0; i < j->params.n_tensor; i++) {
    const Param *p = params_of_tensor(&j->params, i);
    DType t = job_weight(stored, p->group);
    out[i] = (CkptTensor){.name = params_tensor_name(&j->params, a, i), .dtype = t, .n_dim = p->n_dim, .rows = p->n_out, .cols = p->n_in};
  }
  return out;
}

static bool load(Exec *x, const Job *j, World *w, const char *file, const Config *stored, Err *e) {
  Arena *a = j->arena;
  StatePiece *piece;
  int n = state_pieces(x, j, a, TENSOR_WEIGHT, PIECES_LOCAL, &piece);
  CkptPiece *p = ARENA_NEW(a, CkptPiece, n + 1);
  for (int i = 0; i < n; i++) {
    const StatePiece *s = &piece[i];
    DType t = job_weight(stored, s->group);
    void *data = t == s->type ? s->data : arena_alloc(a, (size_t)(s->n_row * s->n_col), dtype_size(t));
    p[i] = (CkptPiece){s->tensor, s->row, s->n_row, s->col, s->n_col, data};
  }
  CkptSet set = {.group = "weights", .tensor = tensors_of(j, a, stored), .n_tensor = j->params.n_tensor, .piece = p, .n_piece = n};
  TRY(ckpt_load(w, a, file, &set, 1, e));
  for (int i = 0; i < n; i++)
    if (p[i].data != piece[i].data)
      convert(piece[i].data, piece[i].type, p[i].data, job_weight(stored, piece[i].group), piece[i].n_row * piece[i].n_col);
  return true;
}

typedef struct Target {
  Exec *x;
  const Job *job;
} Target;
static bool read_weights(void *ctx, World *w, Arena *a, const char *file, const CkptMeta *m, Err *e) {
  const Target *t = ctx;
  const Config *stored = NULL;
  stored_config(a, m, file, &stored, e);
  TRY(world_agree(w, e));
  ArenaMark mark = arena_mark(a);
  bool ok = load(t->x, t->job, w, file, stored, e);
  arena_release(a, mark);
  return ok;
}

bool weights_load(Exec *x, const Job *j, World *w, const char *path, WeightsFrom *from, Log *log, Err *e) {
  CkptMeta m;
  char *note;
  *from = (WeightsFrom){0};
  TRY(ckpt_read_newest(w, j->arena, path, &m, read_weights, &(Target){x, j}, &from->file, &note, e));
  if (note) log_line(log, "note: %s", note);
  const char *changes = config_changes(j->arena, m.config, j->c->text, CONFIG_SCOPE_MODEL);
  if (changes && *changes) log_line(log, "note: the weights were trained as another model; here %s", changes);
  from->step = m.step, from->consumed_samples = m.consumed_samples;
  return true;
}

void weights_round(Exec *x, const Job *j) {
  if (job_dtype(j->c) != DT_F64) return;
  ArenaMark mark = arena_mark(j->arena);
  StatePiece *piece;
  int n = state_pieces(x, j, j->arena, TENSOR_WEIGHT, PIECES_LOCAL, &piece);
  for (int k = 0; k < n; k++) {
    double *v = piece[k].data;
    for (int64_t i = 0; i < piece[k].n_row * piece[k].n_col; i++) v[i] = (double)(float)v[i];
  }
  arena_release(j->arena, mark);
}
