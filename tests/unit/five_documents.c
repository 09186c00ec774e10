/* Documents packed into sequences give what each gives as a sequence of its own: activations, losses, gradients. */
#include <math.h>

#include "data/data.h"
#include "train/tap_map.h"
#include "unit/train_rig.h"

enum { S = 13, N_PACKED = 4, EOD = 7, V = 97, MAX_DOC = 32, H = 16 };
/* Lengths of the documents of each sequence, the token that ends one included; a last one need not have that token. */
static const int length[N_PACKED][8] = {{13}, {5, 1, 4, 3}, {1, 1, 11}, {7, 6}};
static const bool ends_whole[N_PACKED] = {false, true, false, true};

typedef struct Doc {
  int sequence, first, n;
} Doc;
static int documents(Doc *d) {
  int n = 0;
  for (int q = 0; q < N_PACKED; q++)
    for (int k = 0, at = 0; length[q][k]; at += length[q][k++]) d[n++] = (Doc){q, at, length[q][k]};
  return n;
}
static void packed(int q, int32_t *token, int32_t *label) {
  for (int k = 0, at = 0; length[q][k]; at += length[q][k++])
    for (int t = 0; t < length[q][k]; t++) {
      bool end = t == length[q][k] - 1 && (length[q][k + 1] || ends_whole[q]);
      token[at + t] = end ? EOD : 10 + (q * 31 + (at + t) * (at + t + 3)) % 80;
    }
  for (int t = 0; t < S; t++) label[t] = (t * 5 + q) % V;
}

static bool fetch_packed(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  (void)ctx, (void)e;
  packed((int)seq, token, label);
  return true;
}
/* A document at the start of a sequence; behind it other tokens, which nobody who counts sees. */
static bool fetch_alone(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e) {
  const Doc *d = (const Doc *)ctx + seq;
  int32_t all_token[S], all_label[S];
  (void)e;
  packed(d->sequence, all_token, all_label);
  for (int t = 0; t < S; t++)
    token[t] = t < d->n ? all_token[d->first + t] : 3, label[t] = t < d->n ? all_label[d->first + t] : LABEL_IGNORED;
  return true;
}

/* Everything that the forward pass wrote, by (value, token of the global batch). */
enum { MAX_VALUE = 64 };
typedef struct Seen {
  const char *name[MAX_VALUE];
  int64_t width[MAX_VALUE];
  double *data[MAX_VALUE];
  int n;
  Rig *r;
  TapMap map;
  int64_t n_token;
} Seen;
static void tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row) {
  Seen *x = ctx;
  const Value *val = &s->chunk[i->chunk]->val[v];
  if ((val->rows != ROWS_TOKEN && val->rows != ROWS_TP && val->rows != ROWS_SEQ) || val->dtype != DT_F64) return;
  int k = 0;
  while (k < x->n && strcmp(x->name[k], val->name)) k++;
  if (k == x->n) {
    assert_true(x->n < MAX_VALUE);
    x->name[k] = val->name, x->width[k] = val->width, x->data[k] = ARENA_NEW(&x->r->a, double, x->n_token * val->width);
    x->n++;
  }
  for (int64_t r = 0; r < n_row; r++)
    for (int b = val->cut.first; b < val->cut.first + val->cut.count; b++)
      for (int64_t c = 0; c < shard_width(&val->cut, b); c++)
        x->data[k][tap_token(&x->map, s, i, v, r) * x->width[k] + shard_begin(&val->cut, b) + c] =
            ((const double *)data)[shard_local(&val->cut, b) * n_row + r * shard_width(&val->cut, b) + c];
}

static void run(Rig *r, Seen *x, FeedFn *fetch, void *ctx, const char *const *sets) {
  StepResult result;
  rig_open(r, rig_world, RIG_ODD, 0, sets);
  *x = (Seen){.r = r, .map = tap_map(&r->job, &r->job.train), .n_token = r->job.train.deal.n_seq * S};
  RIG_MUST(r, feed_step(r->x, &r->job, EXEC_TRAIN, fetch, ctx, &r->e));
  UpdateArgs u = rig_update(r, 1);
  exec_set_tap(r->x, tap, x);
  exec_run(r->x, EXEC_TRAIN, &u, &result);
  assert_false(result.fault);
  assert_int_equal(result.n_valid, N_PACKED * S);
}

static void same_gradients(Rig *a, Rig *b) {
  StatePiece *x, *y;
  int n = state_pieces(a->x, &a->job, &a->a, TENSOR_GRAD, PIECES_OWNED, &x),
      m = state_pieces(b->x, &b->job, &b->a, TENSOR_GRAD, PIECES_OWNED, &y);
  double most = 0, size = 0;
  assert_int_equal(n, m);
  for (int k = 0; k < n; k++)
    for (int64_t i = 0; i < x[k].n_row * x[k].n_col; i++) {
      most = fmax(most, fabs(((double *)x[k].data)[i] - ((double *)y[k].data)[i]));
      size = fmax(size, fabs(((double *)x[k].data)[i]));
    }
  assert_true(size > 1e-3 && most < 1e-12);
}

static void check(const char *window) {
  Doc doc[MAX_DOC];
  int n = documents(doc);
  char batch[64];
  Rig a, b;
  Seen x, y;
  snprintf(batch, sizeof batch, "train.global_batch_size=%d", n);
  run(&a, &x, fetch_packed, NULL,
      RIG_SETS("numerics.dtype=fp64", "train.global_batch_size=4", "data.document_mask=true", "data.eod_token=7", window,
               "model.router_aux_loss_coef=0", "model.router_z_loss_coef=0"));
  run(&b, &y, fetch_alone, doc,
      RIG_SETS("numerics.dtype=fp64", batch, window, "model.router_aux_loss_coef=0", "model.router_z_loss_coef=0"));
  assert_int_equal(x.n, y.n);
  assert_true(x.n > 20);
  for (int k = 0; k < x.n; k++) {
    assert_string_equal(x.name[k], y.name[k]);
    for (int d = 0; d < n; d++)
      for (int t = 0; t < doc[d].n; t++)
        for (int64_t c = 0; c < x.width[k]; c++) {
          double p = x.data[k][(doc[d].sequence * S + doc[d].first + t) * x.width[k] + c], q = y.data[k][(d * S + t) * x.width[k] + c];
          if (!(fabs(p - q) <= 1e-12)) fail_msg("%s: token %d of document %d: %.17g packed, %.17g alone", x.name[k], t, d, p, q);
        }
  }
  same_gradients(&a, &b);
  rig_close(&a);
  rig_close(&b);
}
static void packed_is_alone(void **state) {
  (void)state;
  check("model.sliding_window=0");
}
static void packed_is_alone_in_a_window(void **state) {
  (void)state;
  check("model.sliding_window=4");
}

/* Where documents begin, in every view of a rank that has some of the tokens. */
static void starts_in_views(void **state) {
  (void)state;
  Rig r;
  rig_open(&r, rig_world, RIG_ODD, 0,
           RIG_SETS("train.global_batch_size=4", "data.document_mask=true", "data.eod_token=7", "train.micro_batch_size=3"));
  RIG_MUST(&r, feed_step(r.x, &r.job, EXEC_TRAIN, fetch_packed, NULL, &r.e));
  static const int start[N_PACKED][S] = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                         {0, 0, 0, 0, 0, 5, 6, 6, 6, 6, 10, 10, 10},
                                         {0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
                                         {0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7}};
  const DealMb *mb = exec_geometry(r.x, EXEC_TRAIN);
  for (int i = 0; i < 2; i++)
    for (int v = 0; v < N_TOKEN_VIEW; v++) {
      const TokenView *t = &mb[i].view[v];
      for (int q = 0; q < t->n_seq; q++)
        for (int k = t->seq_start[q]; k < t->seq_start[q + 1]; k++) assert_int_equal(t->doc_start[k], start[i * 3 + q][t->position[k]]);
    }
  rig_close(&r);
  rig_open(&r, rig_world, RIG_ODD, 0, RIG_SETS("train.global_batch_size=4"));
  assert_null(exec_geometry(r.x, EXEC_TRAIN)[0].view[VIEW_TP].doc_start);
  rig_close(&r);
}

static void configuration(void **state) {
  (void)state;
  Rig r = {0};
  arena_open(&r.a, "rig", (size_t)1 << 24);
  assert_false(rig_read(&r, RIG_ODD, 1, RIG_SETS("data.document_mask=true", "data.train=a.u16")));
  assert_string_equal(r.e.text,
                      "--set: data.document_mask = true; default: data.eod_token = -1: the second must say which token ends a document; "
                      "only a text has one by itself (256)");
  r.e = (Err){0};
  assert_false(rig_read(&r, RIG_ODD, 1, RIG_SETS("data.document_mask=true", "data.train=a.txt")));
  assert_string_equal(r.e.text,
                      "derived: data.eod_token = 256; test.yaml:1: model.vocab_size = 97: the first must be less than the second");
  r.e = (Err){0};
  RIG_MUST(&r, rig_read(&r, RIG_ODD, 1, RIG_SETS("data.document_mask=true", "data.train=a", "data.format=text", "model.vocab_size=257")));
  assert_int_equal(r.doc.c.data.eod_token, 256);
  RIG_MUST(&r, rig_read(&r, RIG_ODD, 1, RIG_SETS("data.document_mask=true", "data.train=a.txt", "data.eod_token=10")));
  assert_int_equal(r.doc.c.data.eod_token, 10);
  RIG_MUST(&r, rig_read(&r, RIG_ODD, 1, RIG_SETS("data.train=a.txt")));
  assert_int_equal(r.doc.c.data.eod_token, -1);
  arena_close(&r.a);
}

static int run_group(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(packed_is_alone),
      cmocka_unit_test(packed_is_alone_in_a_window),
      cmocka_unit_test(starts_in_views),
      cmocka_unit_test(configuration),
  };
  return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
int main(int argc, char **argv) { return rig_main(argc, argv, run_group); }
