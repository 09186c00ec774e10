/* Attention over parts of the keys, joined: what a ring of ranks computes, against the naive softmax over all keys. */
#include "unit/attention_rig.h"

typedef struct Part {
  View view;
  int32_t token[MAX_TOKEN];
  void *k, *v;
} Part;

static void add_rows(Fix *f, double *sum, const void *part, int64_t T, const Part *p, const Shards *s) {
  int64_t n = p->view.v.n_token;
  double *x = fix_zeros(f, T * shard_total(s));
  void *whole = fix_copy(f, x, T * shard_total(s));
  shard_rows(f, whole, T, part, n, p->token, n, s, true);
  for (int64_t i = 0; i < T * shard_total(s); i++) sum[i] += fix_at(f, whole, i);
}

/* Queries of one part meet the keys of all, its own first; dk, dv are added where the keys lie. */
static void run_part(Fix *f, const Problem *p, Part *part, int n_part, int self, const Result *all, double *dk, double *dv) {
  AttnArgs a = p->args;
  a.part = true;
  const TokenView *ov = &part[self].view.v;
  int64_t T = p->view.v.n_token, n = ov->n_token, nq = n * p->heads * p->D, nk = p->kv_heads * p->D, nh = n * p->heads;
  Shards heads = shards_all(1, p->heads, 1);
  Result r = {fix_real(f, nq), fix_real(f, nh), fix_real(f, nh), fix_copy(f, fix_zeros(f, nq), nq), NULL, NULL};
  void *q = take(f, p->kq, T, part[self].token, n, &p->qs), *d_o = take(f, p->kd_o, T, part[self].token, n, &p->qs);
  void *o = fix_real(f, nq), *lse = fix_real(f, nh);
  for (int i = 0; i < n_part; i++) {
    const Part *keys = &part[(self + i) % n_part];
    work(f, &a, ov, &keys->view.v, ATTN_FWD);
    f->k->attention_fwd(&f->ctx, i ? o : r.o, i ? lse : r.lse, q, keys->k, keys->v, &a, ov, &keys->view.v);
    if (i) f->k->attention_merge(&f->ctx, r.o, r.lse, o, lse, &a, ov);
  }
  f->k->attention_delta(&f->ctx, r.delta, d_o, r.o, &a, ov);
  for (int i = 0; i < n_part; i++) {
    const Part *keys = &part[(self + i) % n_part];
    int64_t m = keys->view.v.n_token * nk;
    r.dk = fix_real(f, m), r.dv = fix_real(f, m);
    work(f, &a, ov, &keys->view.v, ATTN_BWD);
    f->k->attention_bwd(&f->ctx, r.dq, r.dk, r.dv, d_o, r.lse, r.delta, q, keys->k, keys->v, &a, ov, &keys->view.v);
    add_rows(f, dk, r.dk, T, keys, &p->ks), add_rows(f, dv, r.dv, T, keys, &p->ks);
  }
  shard_rows(f, all->o, T, r.o, n, part[self].token, n, &p->qs, true),
      shard_rows(f, all->dq, T, r.dq, n, part[self].token, n, &p->qs, true);
  shard_rows(f, all->lse, T, r.lse, n, part[self].token, n, &heads, true);
}

static void parts_of_keys_add_up(void **state) {
  (void)state;
  const Problem cases[] = {
      {.tokens = 26, .D = 8, .heads = 4, .kv_heads = 2, .q_blocks = 2, .kv_blocks = 2, .n_seq = 3, .length = {150, 0, 91}},
      {.tokens = 5, .D = 20, .heads = 2, .kv_heads = 1, .q_blocks = 1, .kv_blocks = 1, .n_seq = 2, .length = {3, 140}, .window = 70},
      {.tokens = 64, .D = 16, .heads = 3, .kv_heads = 1, .q_blocks = 3, .kv_blocks = 1, .n_seq = 1, .length = {200}},
      {.tokens = 13, .D = 16, .heads = 2, .kv_heads = 2, .q_blocks = 1, .kv_blocks = 1, .n_seq = 2, .length = {170, 80}, .docs = 37},
      {.tokens = 70, .D = 16, .heads = 2, .kv_heads = 1, .q_blocks = 1, .kv_blocks = 1, .n_seq = 2, .length = {190, 70}, .window = 80},
      {.tokens = 1, .D = 8, .heads = 1, .kv_heads = 1, .q_blocks = 1, .kv_blocks = 1, .n_seq = 1, .length = {70}, .window = 9, .docs = 20},
      {.tokens = 50,
       .D = 8,
       .heads = 1,
       .kv_heads = 1,
       .q_blocks = 1,
       .kv_blocks = 1,
       .n_seq = 1,
       .length = {70}}, /* parts without tokens */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0] * 3; i++) {
    Fix f;
    FOR_BOTH_TYPES(f) {
      Problem p = cases[i / 3];
      problem_open(&f, &p, TAGS);
      int64_t T = p.view.v.n_token, nq = T * p.heads * p.D, nk = T * p.kv_heads * p.D;
      int n_part = 2 + (int)i % 3, run = 1 + (int)i / 3 % 3;
      Part part[4];
      for (int r = 0; r < n_part; r++) {
        view_deal(&part[r].view, part[r].token, &p.view, n_part, r, run);
        part[r].k = take(&f, p.kk, T, part[r].token, part[r].view.v.n_token, &p.ks);
        part[r].v = take(&f, p.kv, T, part[r].token, part[r].view.v.n_token, &p.ks);
      }
      Result all = {fix_real(&f, nq), fix_real(&f, T * p.heads), NULL, fix_real(&f, nq), NULL, NULL};
      double *dk = fix_zeros(&f, nk), *dv = fix_zeros(&f, nk);
      f.ctx.threads = 1 + (int)(i % 2);
      for (int r = 0; r < n_part; r++) run_part(&f, &p, part, n_part, r, &all, dk, dv);
      all.dk = fix_copy(&f, dk, nk), all.dv = fix_copy(&f, dv, nk);
      compare(&f, &p, &all);
    }
  }
}

/* (o, lse) by its definition, and what a part without keys leaves alone. */
static void merging_follows_the_sums(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { N = 5, D = 3 };
    const double own[N] = {0.5, -300, 80, -INFINITY, -INFINITY}, other[N] = {-0.25, -301.5, -INFINITY, 2, -INFINITY};
    View v;
    view_make(&v, (int[]){N}, 1, N, 0);
    AttnArgs a = {.q = shards_all(1, 1, D), .kv = shards_all(1, 1, D), .head_dim = D, .scale = 1, .part = true};
    double *x = fix_random(&f, N * D, -1, 1), *y = fix_random(&f, N * D, -1, 1), want[N * D], sum[N];
    for (int i = 0; i < N * D; i++) {
      int t = i / D;
      if (own[t] == -INFINITY) x[i] = 0;
      if (other[t] == -INFINITY) y[i] = 0;
      double m = fmax(own[t], other[t]), p = exp(own[t] - m), q = exp(other[t] - m);
      want[i] = m == -INFINITY ? 0 : (p * x[i] + q * y[i]) / (p + q), sum[t] = m == -INFINITY ? m : m + log(p + q);
    }
    void *o = fix_copy(&f, x, N * D), *lse = fix_copy(&f, own, N), *part = fix_copy(&f, y, N * D), *lse_part = fix_copy(&f, other, N);
    f.k->attention_merge(&f.ctx, o, lse, part, lse_part, &a, &v.v);
    fix_compare(&f, "o", o, want, N * D, 300); /* the rounding of a log-sum-exp of 300 */
    fix_compare(&f, "lse", lse, sum, 3, 4);
    fix_same_bits(&f, "o", (char *)o + 6 * f.k->real_size, fix_copy(&f, x + 6, 3), 3);
    fix_same_bits(&f, "o", (char *)o + 9 * f.k->real_size, fix_copy(&f, y + 9, 3), 3);
    assert_true(fix_at(&f, lse, 3) == 2 && fix_at(&f, lse, 4) == -INFINITY && fix_at(&f, o, 13) == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_keys_add_up), cmocka_unit_test(merging_follows_the_sums)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
