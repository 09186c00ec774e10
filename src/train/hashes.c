#include "train/hashes.h"

#include <string.h>

#include "base/hash.h"
#include "train/named.h"
#include "train/state.h"

void value_hash_open(ValueHash *h, const Setup *s) {
  const JobStep *job = &s->job.train;
  *h = (ValueHash){.map = tap_map(&s->job, job),
                   .sequence = ARENA_NEW(s->arena, uint64_t, job->deal.n_seq),
                   .n_seq = job->deal.n_seq,
                   .seq_length = job->deal.seq_length};
  for (int c = 0; c < job->step.n_chunk; c++) {
    const Program *p = job->step.chunk[c];
    h->value[c] = ARENA_NEW(s->arena, uint64_t, p->n_val);
    h->name[c] = ARENA_NEW(s->arena, const char *, p->n_val);
    for (ValId v = 0; v < p->n_val; v++) h->name[c][v] = tap_name(s->arena, p, v);
  }
}

void value_hash_clear(ValueHash *h, const Setup *s) {
  const Step *step = &s->job.train.step;
  for (int c = 0; c < step->n_chunk; c++) memset(h->value[c], 0, (size_t)step->chunk[c]->n_val * sizeof *h->value[c]);
  memset(h->sequence, 0, (size_t)h->n_seq * sizeof *h->sequence);
}

void value_hash_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  ValueHash *h = ctx;
  if (!h->name[i->chunk][v]) return;
  const Value *val = &s->chunk[i->chunk]->val[v];
  const Shards *cut = &val->cut;
  uint64_t name = hash_name(h->name[i->chunk][v]);
  int64_t width = shard_begin(cut, cut->n);
  size_t size = dtype_size(val->dtype);
  for (int64_t r = 0; r < n_row; r++) {
    int64_t token = tap_token(&h->map, s, i, v, r);
    uint64_t sum = 0;
    for (int b = cut->first; b < cut->first + cut->count; b++)
      sum +=
          hash_run(name, (uint64_t)(token * width + shard_begin(cut, b)),
                   (const char *)data + (size_t)(shard_local(cut, b) * n_row + r * shard_width(cut, b)) * size, size, shard_width(cut, b));
    h->value[i->chunk][v] += sum;
    h->sequence[token / h->seq_length] += sum;
  }
}

/* ---- values of all ranks --------------------------------------------------------------------------------------------------------- */
static NamedList local_list(const ValueHash *h, const Setup *s) {
  const Step *step = &s->job.train.step;
  int room = 0;
  for (int c = 0; c < step->n_chunk; c++) room += step->chunk[c]->n_val;
  NamedList l = named_open(s->arena, room);
  for (int c = 0; c < step->n_chunk; c++)
    for (ValId v = 0; v < step->chunk[c]->n_val; v++)
      if (h->name[c][v]) named_at(&l, h->name[c][v])->v[0] += h->value[c][v];
  return l;
}

void value_hash_write(const ValueHash *h, Setup *s, Metrics *m, int64_t it) {
  ArenaMark mark = arena_mark(s->arena);
  int64_t n_seq = s->job.train.deal.n_seq;
  NamedList mine = local_list(h, s), all = named_sum(s->world, s->arena, &mine);
  uint64_t *sequence = ARENA_NEW(s->arena, uint64_t, n_seq);
  memcpy(sequence, h->sequence, (size_t)n_seq * sizeof *sequence);
  comm_allreduce_u64(s->world, AXES_WORLD, sequence, n_seq);
  if (m->json) {
    fprintf(m->json, "{\"iteration\":%lld,\"value_hash\":{", (long long)it);
    for (int i = 0; i < all.n; i++)
      fprintf(m->json, "%s\"%s\":\"%016llx\"", i ? "," : "", all.row[i].name, (unsigned long long)all.row[i].v[0]);
    fprintf(m->json, "},\"sequence_hash\":[");
    for (int64_t i = 0; i < n_seq; i++) fprintf(m->json, "%s\"%016llx\"", i ? "," : "", (unsigned long long)sequence[i]);
    fprintf(m->json, "]}\n");
    metrics_line_end(m);
  }
  arena_release(s->arena, mark);
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------------- */
void tensor_hash_write(Setup *s, Metrics *m, int64_t it) {
  static const struct {
    TensorView view;
    const char *name;
  } view[] = {{TENSOR_WEIGHT, "weights"}, {TENSOR_GRAD, "gradients"}};
  ArenaMark mark = arena_mark(s->arena);
  const ParamSet *ps = &s->job.params;
  uint64_t *hash = ARENA_NEW(s->arena, uint64_t, ps->n_tensor);
  if (m->json) fprintf(m->json, "{\"iteration\":%lld,\"tensor_hash\":{", (long long)it);
  for (int k = 0; k < 2; k++) {
    state_hash(s->x, &s->job, s->world, view[k].view, hash);
    if (!m->json) continue;
    fprintf(m->json, "%s\"%s\":{", k ? "," : "", view[k].name);
    for (int i = 0; i < ps->n_tensor; i++) {
      ArenaMark name = arena_mark(s->arena);
      fprintf(m->json, "%s\"%s\":\"%016llx\"", i ? "," : "", params_tensor_name(ps, s->arena, i), (unsigned long long)hash[i]);
      arena_release(s->arena, name);
    }
    fputc('}', m->json);
  }
  if (m->json) fprintf(m->json, "}}\n"), metrics_line_end(m);
  arena_release(s->arena, mark);
}
