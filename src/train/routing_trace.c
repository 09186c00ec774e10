#include "train/routing_trace.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/align.h"

static const char magic[8] = "ETALROUT";
enum { VERSION = 1, WORD = sizeof(uint64_t), IDS = WORD / sizeof(uint16_t) };

static int64_t whole_words(int64_t bytes) { return (int64_t)align_up((size_t)bytes, WORD); }
static int64_t n_id(const RoutingHeader *h) { return (int64_t)h->n_layer * (int64_t)(h->n_seq * h->seq_length) * h->top_k; }
static int64_t header_bytes(const RoutingHeader *h) {
  return (int64_t)sizeof *h + whole_words((int64_t)h->n_layer * (int64_t)sizeof(uint32_t));
}
static int64_t record_bytes(const RoutingHeader *h) { return WORD + whole_words(n_id(h) * (int64_t)sizeof(uint16_t)); }

/* The MoE layers of the model. layer: [num_hidden_layers]; returns their number. */
static int list_layers(const Config *c, uint32_t *layer) {
  int n = 0;
  for (int i = 0; i < c->model.num_hidden_layers; i++)
    if (config_layer_is_moe(&c->model, i)) layer[n++] = (uint32_t)i;
  return n;
}

static RoutingHeader header_of(const Config *c, uint32_t *layer) {
  RoutingHeader h = {.version = VERSION,
                     .n_layer = (uint32_t)list_layers(c, layer),
                     .top_k = (uint32_t)c->model.num_experts_per_tok,
                     .n_expert = (uint32_t)c->model.num_local_experts,
                     .n_seq = (uint64_t)c->train.global_batch_size,
                     .seq_length = (uint64_t)c->data.seq_length};
  memcpy(h.magic, magic, sizeof magic);
  return h;
}

static const char *add_difference(Arena *a, const char *list, const char *key, uint64_t found, uint64_t here) {
  if (found == here) return list;
  return arena_printf(a, "%s%s%s %llu (here %llu)", list, *list ? ", " : "", key, (unsigned long long)found, (unsigned long long)here);
}

/* What the trace in f was recorded with that this run has otherwise: empty, if nothing; NULL: it is no trace that this version reads. */
static const char *header_differs(FILE *f, const RoutingHeader *h, const uint32_t *layer, Arena *a) {
  RoutingHeader found;
  if (fread(&found, sizeof found, 1, f) != 1 || memcmp(found.magic, h->magic, sizeof magic) || found.version != h->version) return NULL;
  const char *list = add_difference(a, "", "train.global_batch_size", found.n_seq, h->n_seq);
  list = add_difference(a, list, "data.seq_length", found.seq_length, h->seq_length);
  list = add_difference(a, list, "model.num_local_experts", found.n_expert, h->n_expert);
  list = add_difference(a, list, "model.num_experts_per_tok", found.top_k, h->top_k);
  if (found.n_layer != h->n_layer) return add_difference(a, list, "the number of MoE layers", found.n_layer, h->n_layer);
  uint32_t *l = ARENA_NEW(a, uint32_t, h->n_layer + 1);
  if (fread(l, sizeof *l, h->n_layer, f) != h->n_layer) return NULL;
  bool same = !memcmp(l, layer, h->n_layer * sizeof *l);
  return same ? list : arena_printf(a, "%s%sother layers are MoE layers", list, *list ? ", " : "");
}

/* Number of whole records in f, and the step of the first. */
static int64_t count_records(FILE *f, const RoutingHeader *h, int64_t *first) {
  uint64_t step = 0;
  if (fseeko(f, 0, SEEK_END) != 0) return 0;
  int64_t n = (ftello(f) - header_bytes(h)) / record_bytes(h);
  if (n < 1 || fseeko(f, header_bytes(h), SEEK_SET) != 0 || fread(&step, sizeof step, 1, f) != 1) return 0;
  *first = (int64_t)step;
  return n;
}

/* ---- recording ------------------------------------------------------------------------------------------------------------------- */
static bool write_header(RouteRecorder *r, const uint32_t *layer) {
  static const char zero[WORD] = {0};
  size_t n = r->head.n_layer * sizeof *layer, pad = (size_t)header_bytes(&r->head) - sizeof r->head - n;
  return fwrite(&r->head, sizeof r->head, 1, r->f) == 1 && fwrite(layer, 1, n, r->f) == n && fwrite(zero, 1, pad, r->f) == pad &&
         fflush(r->f) == 0;
}

/* Records after step `done` are those of a run that this one leaves behind. */
static bool continue_file(RouteRecorder *r, Arena *a, const uint32_t *layer, int64_t done, Err *e) {
  int64_t first = 0;
  const char *differs = header_differs(r->f, &r->head, layer, a);
  if (!differs || *differs)
    return err_set(e, ERR_CONFIG, "moe.record: \"%s\" is there and is %s%s; name another file", r->path,
                   differs ? "a routing trace with " : "no routing trace", differs ? differs : "");
  int64_t n = count_records(r->f, &r->head, &first), keep = n ? done - first + 1 : 0;
  keep = keep < 0 ? 0 : keep < n ? keep : n;
  int64_t bytes = header_bytes(&r->head) + keep * record_bytes(&r->head);
  if ((keep && keep != done - first + 1) || ftruncate(fileno(r->f), bytes) != 0 || fseeko(r->f, bytes, SEEK_SET) != 0)
    return err_set(e, ERR_CONFIG, "moe.record: \"%s\" ends before step %lld; name another file", r->path, (long long)done);
  return true;
}

static bool open_file(RouteRecorder *r, Arena *a, const uint32_t *layer, int64_t done, Err *e) {
  if (done > 0 && (r->f = fopen(r->path, "r+b"))) return continue_file(r, a, layer, done, e);
  r->f = fopen(r->path, "wb");
  if (r->f && write_header(r, layer)) return true;
  return err_set(e, ERR_CONFIG, "moe.record: cannot write \"%s\": %s", r->path, strerror(errno));
}

bool record_open(RouteRecorder *r, Setup *s, Log *log, int64_t done, Err *e) {
  Arena *a = s->arena;
  const Step *step = &s->job.train.step;
  uint32_t *layer = ARENA_NEW(a, uint32_t, s->c->model.num_hidden_layers);
  *r = (RouteRecorder){.log = log, .path = s->c->moe.record, .head = header_of(s->c, layer), .map = tap_map(&s->job, &s->job.train)};
  if (!r->head.n_layer) return err_set(e, ERR_CONFIG, "moe.record: the model has no experts");
  r->n_word = (n_id(&r->head) + IDS - 1) / IDS;
  r->word = ARENA_NEW(a, uint64_t, r->n_word);
  for (int c = 0; c < step->n_chunk; c++) {
    r->layer_of[c] = ARENA_NEW(a, int, step->chunk[c]->n_val);
    for (ValId v = 0; v < step->chunk[c]->n_val; v++) {
      const char *name = tap_name(a, step->chunk[c], v);
      r->layer_of[c][v] = -1;
      for (int k = 0; name && strstr(name, ".moe.route.idx") && k < (int)r->head.n_layer; k++)
        if ((int)layer[k] == step->chunk[c]->val[v].layer) r->layer_of[c][v] = k;
    }
  }
  if (log->speaks) open_file(r, a, layer, done, e);
  return world_agree(s->world, e);
}

void record_clear(RouteRecorder *r) { memset(r->word, 0, (size_t)r->n_word * sizeof *r->word); }

void record_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  RouteRecorder *r = ctx;
  int layer = r->layer_of[i->chunk][v];
  if (layer < 0) return;
  const int32_t *idx = data;
  uint16_t *id = (uint16_t *)(void *)r->word;
  int64_t k = r->head.top_k, n_token = (int64_t)(r->head.n_seq * r->head.seq_length);
  for (int64_t row = 0; row < n_row; row++) {
    uint16_t *to = id + (layer * n_token + tap_token(&r->map, s, i, v, row)) * k;
    for (int64_t j = 0; j < k; j++) to[j] = (uint16_t)idx[row * k + j];
  }
}

/* An id is on one rank and zero elsewhere, so sums of words carry nothing from one to the next. */
void record_write(RouteRecorder *r, Setup *s, int64_t it) {
  uint64_t step = (uint64_t)it;
  comm_allreduce_u64(s->world, AXES_WORLD, r->word, r->n_word);
  if (!r->f) return;
  size_t n = (size_t)r->n_word;
  if (fwrite(&step, sizeof step, 1, r->f) == 1 && fwrite(r->word, sizeof *r->word, n, r->f) == n && fflush(r->f) == 0) return;
  log_line(r->log, "warning: moe.record: %s cannot be written: %s; the run goes on without it", r->path, strerror(errno));
  record_close(r);
}

void record_close(RouteRecorder *r) {
  if (r->f) fclose(r->f);
  r->f = NULL;
}

/* ---- replaying ------------------------------------------------------------------------------------------------------------------- */
static bool refuse(RouteReplay *r, Err *e, const char *why) { return err_set(e, ERR_DATA, "moe.replay: \"%s\": %s", r->path, why); }

bool replay_open(RouteReplay *r, Setup *s, int64_t done, Err *e) {
  Arena *a = s->arena;
  int64_t last = s->c->train.train_iters;
  uint32_t *layer = ARENA_NEW(a, uint32_t, s->c->model.num_hidden_layers);
  *r = (RouteReplay){.path = s->c->moe.replay, .head = header_of(s->c, layer), .f = fopen(s->c->moe.replay, "rb")};
  if (!r->f) return refuse(r, e, strerror(errno));
  const char *differs = header_differs(r->f, &r->head, layer, a);
  if (!differs) return refuse(r, e, "no routing trace (moe.record)");
  if (*differs) return refuse(r, e, arena_printf(a, "a routing trace with %s", differs));
  r->n_step = count_records(r->f, &r->head, &r->first);
  if (!r->n_step) return refuse(r, e, "a routing trace without a step");
  if (done < last && (done + 1 < r->first || last >= r->first + r->n_step))
    return refuse(r, e,
                  arena_printf(a, "has steps %lld to %lld, this run needs %lld to %lld (train.train_iters)", (long long)r->first,
                               (long long)(r->first + r->n_step - 1), (long long)done + 1, (long long)last));
  r->id = ARENA_NEW(a, uint16_t, record_bytes(&r->head));
  r->layer = ARENA_NEW(a, const uint16_t *, s->c->model.num_hidden_layers);
  for (uint32_t k = 0; k < r->head.n_layer; k++) r->layer[layer[k]] = r->id + k * (n_id(&r->head) / r->head.n_layer);
  return true;
}

static bool ids_are_experts(const RoutingHeader *h, const uint16_t *id) {
  for (int64_t i = 0; i < n_id(h); i++) {
    if (id[i] >= h->n_expert) return false;
    for (int64_t j = i - i % h->top_k; j < i; j++)
      if (id[j] == id[i]) return false;
  }
  return true;
}

bool replay_read(RouteReplay *r, int64_t it, Err *e) {
  uint64_t step = 0;
  if (it < r->first || it >= r->first + r->n_step)
    return err_set(e, ERR_DATA, "moe.replay: \"%s\" has steps %lld to %lld, not step %lld", r->path, (long long)r->first,
                   (long long)(r->first + r->n_step - 1), (long long)it);
  size_t n = (size_t)(record_bytes(&r->head) - WORD);
  bool read = fseeko(r->f, header_bytes(&r->head) + (it - r->first) * record_bytes(&r->head), SEEK_SET) == 0 &&
              fread(&step, sizeof step, 1, r->f) == 1 && fread(r->id, 1, n, r->f) == n;
  if (!read || step != (uint64_t)it || !ids_are_experts(&r->head, r->id))
    return err_set(e, ERR_DATA, "moe.replay: \"%s\" is damaged at step %lld", r->path, (long long)it);
  return true;
}

void replay_close(RouteReplay *r) {
  if (r->f) fclose(r->f);
  r->f = NULL;
}
