/* Router: choice, weights, where rows go, statistics, gradients, forced routings. */
#include "kernels_common.h"

enum { SHIFT = 40, E_MAX = 40, T_MAX = 32 };

typedef struct Case {
  int E, k;
  bool renormalise;
  int T;
  int lengths[3];
  int n_seq, window;
} Case;
static const Case CASES[] = {
    {5, 2, true, 14, {7, 7}, 2, 3}, {5, 2, false, 10, {5, 5}, 2, 3}, {6, 6, true, 5, {5}, 1, 2},        {4, 1, true, 6, {6}, 1, 6},
    {1, 1, true, 3, {3}, 1, 2},     {37, 8, false, 3, {3}, 1, 2},    {33, 3, true, 9, {3, 3, 3}, 3, 2}, {3, 2, true, 1, {1}, 1, 1},
};
enum { N_CASE = sizeof CASES / sizeof CASES[0] };

typedef struct Out {
  int32_t *idx, *row_of, *counts;
  void *wt;
  uint64_t *word;
} Out;
static Out out_new(Fix *f, const View *v, const RouteArgs *a) {
  int64_t n = v->v.n_token * a->top_k;
  return (Out){fix_i32(f, n), fix_i32(f, n), fix_i32(f, (int64_t)v->v.n_window * a->n_expert), fix_real(f, n),
               fix_u64(f, 2 + 2 * a->n_expert)};
}
static void run(Fix *f, const Out *o, const void *logits, const RouteArgs *a, const View *v) {
  f->k->route_fwd(&f->ctx, o->idx, o->wt, o->row_of, o->counts, logits, a, &v->v, &(StatSink){o->word, SHIFT, &f->fault});
}

static double softmax(double *s, const double *x, int E) {
  double m = -INFINITY, sum = 0;
  for (int e = 0; e < E; e++) m = fmax(m, x[e]);
  for (int e = 0; e < E; e++) sum += exp(x[e] - m);
  for (int e = 0; e < E; e++) s[e] = exp(x[e] - m) / sum;
  return m + log(sum);
}

/* The weights of given ids, in FP64. */
static void weights(double *w, const double *x, const int32_t *idx, const RouteArgs *a) {
  double s[E_MAX], sum = 0;
  softmax(s, x, a->n_expert);
  for (int j = 0; j < a->top_k; j++) sum += s[idx[j]];
  for (int j = 0; j < a->top_k; j++) w[j] = s[idx[j]] / (a->renormalise ? sum : 1);
}

static void check_choice(const Fix *f, const Out *o, const double *x, const RouteArgs *a, const View *v) {
  int E = a->n_expert, k = a->top_k;
  for (int64_t t = 0; t < v->v.n_token; t++) {
    bool taken[E_MAX] = {false};
    double want[E_MAX];
    for (int j = 0; j < k; j++) {
      int best = -1;
      for (int e = 0; e < E; e++)
        if (!taken[e] && (best < 0 || x[t * E + e] > x[t * E + best])) best = e;
      assert_int_equal(o->idx[t * k + j], best);
      taken[best] = true;
    }
    weights(want, x + t * E, o->idx + t * k, a);
    fix_compare(f, "weights", (char *)o->wt + (size_t)(t * k) * f->k->real_size, want, k, 16);
  }
}

/* Rows sorted by (expert, token); counts per window. */
static void check_rows(const Out *o, const RouteArgs *a, const View *v) {
  int E = a->n_expert, k = a->top_k;
  int32_t at = 0;
  for (int e = 0; e < E; e++)
    for (int64_t t = 0; t < v->v.n_token; t++)
      for (int j = 0; j < k; j++)
        if (o->idx[t * k + j] == e) assert_int_equal(o->row_of[t * k + j], at++);
  assert_int_equal(at, v->v.n_token * k);
  for (int w = 0; w < v->v.n_window; w++)
    for (int e = 0; e < E; e++) {
      int n = 0;
      for (int64_t i = (int64_t)v->window[w] * k; i < (int64_t)v->window[w + 1] * k; i++) n += o->idx[i] == e;
      assert_int_equal(o->counts[w * E + e], n);
    }
}

/* Auxiliary loss of tokens [from, to) with the counts held. */
static double aux_of(const double *x, const int32_t *idx, const RouteArgs *a, int from, int to) {
  int E = a->n_expert, k = a->top_k;
  double counts[E_MAX] = {0}, p[E_MAX] = {0}, s[E_MAX], n = to - from, sum = 0;
  for (int t = from; t < to; t++) {
    softmax(s, x + t * E, E);
    for (int e = 0; e < E; e++) p[e] += s[e];
    for (int j = 0; j < k; j++) counts[idx[t * k + j]]++;
  }
  for (int e = 0; e < E; e++) sum += counts[e] * p[e];
  return n == 0 ? 0 : E / (k * n * n) * sum;
}

static void check_statistics(const Fix *f, const Out *o, const double *x, const RouteArgs *a, const View *v) {
  int E = a->n_expert, k = a->top_k;
  double z = 0, p[E_MAX] = {0}, s[E_MAX], counts[E_MAX] = {0};
  for (int64_t t = 0; t < v->v.n_token; t++) {
    double lse = softmax(s, x + t * E, E);
    z += lse * lse;
    for (int e = 0; e < E; e++) p[e] += s[e];
    for (int j = 0; j < k; j++) counts[o->idx[t * k + j]]++;
  }
  double tolerance = f->f64 ? 1e-9 : 2e-4;
  assert_true(fabs((double)(int64_t)o->word[0] * ldexp(1, 10 - SHIFT) - z) < tolerance);
  assert_true(o->word[1] == 0);
  for (int e = 0; e < E; e++) {
    assert_true(o->word[2 + e] == (uint64_t)counts[e]);
    assert_true(fabs((double)(int64_t)o->word[2 + E + e] * ldexp(1, -SHIFT) - p[e]) < tolerance);
  }
  assert_true(f->fault == 0);
}

static RouteArgs args_of(const Case *c) {
  return (RouteArgs){.n_expert = c->E,
                     .top_k = c->k,
                     .renormalise = c->renormalise,
                     .aux_per_sequence = true,
                     .seq_length = c->lengths[0],
                     .n_token_global = c->T};
}

static void learned_routing(void **state) {
  (void)state;
  for (int i = 0; i < N_CASE; i++) {
    Fix f;
    FOR_BOTH_TYPES(f) {
      const Case *c = &CASES[i];
      RouteArgs a = args_of(c);
      View v;
      view_make(&v, c->lengths, c->n_seq, c->window, 0);
      double *x = fix_random(&f, c->T * c->E, -3, 3);
      void *logits = fix_copy(&f, x, c->T * c->E);
      Out o = out_new(&f, &v, &a);
      run(&f, &o, logits, &a, &v);
      check_choice(&f, &o, x, &a, &v);
      check_rows(&o, &a, &v);
      check_statistics(&f, &o, x, &a, &v);
      for (f.ctx.threads = 2; f.ctx.threads <= 3; f.ctx.threads++) {
        Out p = out_new(&f, &v, &a);
        run(&f, &p, logits, &a, &v);
        fix_same_bits(&f, "weights", p.wt, o.wt, c->T * c->k);
        assert_memory_equal(p.row_of, o.row_of, (size_t)(c->T * c->k) * 4);
        assert_memory_equal(p.word, o.word, (size_t)(2 + 2 * c->E) * 8);
      }
    }
  }
}

static void ties_go_to_the_lowest_id(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    RouteArgs a = {.n_expert = 5, .top_k = 3, .renormalise = true};
    View v;
    view_make(&v, (int[]){3}, 1, 3, 0);
    void *logits = fix_copy(&f, (double[]){1, 1, 1, 1, 1, 0, 2, 0, 2, 2, -1, 0, 3, 0, 0}, 15);
    Out o = out_new(&f, &v, &a);
    run(&f, &o, logits, &a, &v);
    const int32_t want[] = {0, 1, 2, 1, 3, 4, 2, 1, 3};
    assert_memory_equal(o.idx, want, sizeof want);
  }
}

static void ids_are_valid_even_for_nan(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    RouteArgs a = {.n_expert = 3, .top_k = 2, .renormalise = true};
    View v;
    view_make(&v, (int[]){2}, 1, 2, 0);
    Out o = out_new(&f, &v, &a);
    run(&f, &o, fix_copy(&f, (double[]){NAN, 1, 2, 0, INFINITY, 0}, 6), &a, &v);
    for (int t = 0; t < 2; t++) {
      assert_in_range(o.idx[2 * t], 0, 2);
      assert_in_range(o.idx[2 * t + 1], 0, 2);
      assert_int_not_equal(o.idx[2 * t], o.idx[2 * t + 1]);
    }
    assert_true(f.fault == 1);
  }
}

static void forced_routing(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { E = 5, K = 2, T = 12 };
    View v;
    view_make(&v, (int[]){T}, 1, 5, 1000003);
    double *x = fix_random(&f, T * E, -2, 2);
    void *logits = fix_copy(&f, x, T * E);
    for (int mode = 1; mode <= 3; mode++) {
      RouteArgs a = {.n_expert = E, .top_k = K, .renormalise = true, .forced = mode, .zipf_exponent = 1.2, .seed = 77};
      Out o = out_new(&f, &v, &a);
      run(&f, &o, logits, &a, &v);
      for (int t = 0; t < T; t++) {
        double want[K];
        weights(want, x + t * E, o.idx + t * K, &a);
        fix_compare(&f, "weights", (char *)o.wt + (size_t)(t * K) * f.k->real_size, want, K, 16);
        for (int j = 0; j < K; j++) {
          if (mode == 1) assert_int_equal(o.idx[t * K + j], ((1000003 + t) * K + j) % E);
          if (mode == 2) assert_int_equal(o.idx[t * K + j], j);
        }
        assert_int_not_equal(o.idx[t * K], o.idx[t * K + 1]);
      }
      check_rows(&o, &a, &v);
      View tail; /* ids follow the global number, not the place in the call */
      view_part(&tail, &v, 1, v.v.n_window);
      Out p = out_new(&f, &tail, &a);
      run(&f, &p, (char *)logits + 5 * E * f.k->real_size, &a, &tail);
      assert_memory_equal(p.idx, o.idx + 5 * K, (T - 5) * K * 4);
    }
  }
}

/* First draws follow p_e ~ (e + 1)^-exponent; both element types route alike. */
static void zipf_has_its_distribution(void **state) {
  (void)state;
  enum { E = 4, T = MAX_TOKEN, CALLS = 8 };
  int32_t *first[2] = {NULL, NULL};
  static int32_t keep[2][CALLS * T * 2];
  Fix f;
  int type = 0, count[E] = {0};
  FOR_BOTH_TYPES(f) {
    for (int call = 0; call < CALLS; call++) {
      View v;
      view_make(&v, (int[]){T}, 1, 100, call * T);
      RouteArgs a = {.n_expert = E, .top_k = 2, .forced = 3, .zipf_exponent = 1, .seed = 5};
      Out o = out_new(&f, &v, &a);
      run(&f, &o, fix_copy(&f, fix_zeros(&f, T * E), T * E), &a, &v);
      memcpy(keep[type] + call * T * 2, o.idx, T * 2 * 4);
    }
    first[type] = keep[type];
    type++;
  }
  assert_memory_equal(first[0], first[1], sizeof keep[0]);
  for (int t = 0; t < CALLS * T; t++) count[first[0][t * 2]]++;
  double sum = 1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4;
  for (int e = 0; e < E; e++) {
    double p = 1 / (e + 1.0) / sum, n = CALLS * T;
    assert_true(fabs(count[e] - n * p) < 4 * sqrt(n * p * (1 - p)));
  }
}

/* Loss for the differences: <c, weights> + aux_scale * aux + z_scale * sum lse^2, ids held. */
typedef struct Loss {
  double *x, *c;
  const int32_t *idx;
  const RouteArgs *a;
  const View *v;
} Loss;
static double route_loss(void *arg) {
  const Loss *l = arg;
  int E = l->a->n_expert, k = l->a->top_k;
  double sum = 0, w[E_MAX], s[E_MAX];
  for (int64_t t = 0; t < l->v->v.n_token; t++) {
    weights(w, l->x + t * E, l->idx + t * k, l->a);
    sum += dot(w, l->c + t * k, k);
    double lse = softmax(s, l->x + t * E, E);
    sum += l->a->z_scale * lse * lse;
  }
  if (!l->a->aux_per_sequence) return sum + l->a->aux_scale * aux_of(l->x, l->idx, l->a, 0, (int)l->v->v.n_token);
  for (int i = 0; i < l->v->v.n_seq; i++) sum += l->a->aux_scale * aux_of(l->x, l->idx, l->a, l->v->seq[i], l->v->seq[i + 1]);
  return sum;
}

static const int32_t *sequence_counts(Fix *f, const Out *o, const RouteArgs *a, const View *v) {
  int32_t *n = fix_i32(f, (int64_t)v->v.n_seq * a->n_expert);
  f->k->sequence_counts(&f->ctx, n, o->counts, a->n_expert, &v->v);
  return n;
}

static void gradients(void **state) {
  (void)state;
  for (int i = 0; i < 4 * N_CASE; i++) {
    Fix f;
    FOR_BOTH_TYPES(f) {
      const Case *c = &CASES[i / 4];
      RouteArgs a = args_of(c);
      a.aux_per_sequence = i % 2, a.forced = i / 2 % 2;
      a.aux_scale = 0.7, a.z_scale = 0.3;
      View v;
      view_make(&v, c->lengths, c->n_seq, c->window, 0);
      Out o = out_new(&f, &v, &a);
      Loss l = {fix_random(&f, c->T * c->E, -2, 2), fix_random(&f, c->T * c->k, -1, 1), o.idx, &a, &v};
      void *logits = fix_copy(&f, l.x, c->T * c->E), *d = fix_real(&f, c->T * c->E), *dw = fix_copy(&f, l.c, c->T * c->k);
      run(&f, &o, logits, &a, &v);
      const uint64_t *batch = a.aux_per_sequence ? NULL : o.word + 2;
      const int32_t *seq = a.aux_per_sequence ? sequence_counts(&f, &o, &a, &v) : NULL;
      f.k->route_bwd(&f.ctx, d, dw, logits, o.idx, seq, batch, &a, &v.v, &(StatSink){o.word, SHIFT, &f.fault});
      fix_check_gradient(&f, "d_logits", route_loss, &l, l.x, d, c->T * c->E);
      double aux = 0;
      for (int s = 0; s < v.v.n_seq && seq; s++) aux += aux_of(l.x, o.idx, &a, v.seq[s], v.seq[s + 1]);
      assert_true(fabs((double)(int64_t)o.word[1] * ldexp(1, -SHIFT) - aux) < (f.f64 ? 1e-9 : 2e-4) && f.fault == 0);
      for (f.ctx.threads = 2; f.ctx.threads <= 3; f.ctx.threads++) {
        void *again = fix_real(&f, c->T * c->E);
        uint64_t *word = fix_u64(&f, 2);
        f.k->route_bwd(&f.ctx, again, dw, logits, o.idx, seq, batch, &a, &v.v, &(StatSink){word, SHIFT, &f.fault});
        fix_same_bits(&f, "threads", again, d, c->T * c->E);
        assert_true(word[0] == 0 && word[1] == o.word[1]);
      }
    }
  }
}

/* Windows of a sequence on several ranks: counts of whole sequences are added over ranks; all bits are those of one rank. */
static void sequences_may_be_cut(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { E = 6, K = 2, S = 11, T = 3 * S };
    RouteArgs a = {
        .n_expert = E, .top_k = K, .renormalise = true, .aux_per_sequence = true, .seq_length = S, .aux_scale = 0.7, .z_scale = 0.3};
    a.forced = 1;
    View v;
    view_make(&v, (int[]){S, S, S}, 3, 2, 77);
    Shards e = shards_all(1, E, 1), k = shards_all(1, K, 1);
    void *x = fix_copy(&f, fix_random(&f, T * E, -2, 2), T * E), *dw = fix_copy(&f, fix_random(&f, T * K, -1, 1), T * K),
         *d = fix_real(&f, T * E);
    Out o = out_new(&f, &v, &a);
    run(&f, &o, x, &a, &v);
    const int32_t *want = sequence_counts(&f, &o, &a, &v);
    f.k->route_bwd(&f.ctx, d, dw, x, o.idx, want, NULL, &a, &v.v, &(StatSink){o.word, SHIFT, &f.fault});
    for (int ranks = 2; ranks <= 5; ranks++) {
      View part[5];
      Out p[5];
      int32_t token[5][T], counts[3 * E] = {0};
      uint64_t *word = fix_u64(&f, 2 + 2 * E);
      void *xp[5], *all = fix_real(&f, T * E);
      for (int r = 0; r < ranks; r++) {
        view_deal(&part[r], token[r], &v, ranks, r, 2);
        int64_t n = part[r].v.n_token;
        xp[r] = fix_real(&f, n * E);
        shard_rows(&f, xp[r], n, x, T, token[r], n, &e, false);
        p[r] = out_new(&f, &part[r], &a);
        p[r].word = word;
        run(&f, &p[r], xp[r], &a, &part[r]);
        for (int64_t i = 0; i < n; i++) assert_memory_equal(p[r].idx + i * K, o.idx + token[r][i] * K, K * 4);
        const int32_t *own = sequence_counts(&f, &p[r], &a, &part[r]);
        for (int i = 0; i < 3 * E; i++) counts[i] += own[i];
      }
      assert_memory_equal(counts, want, sizeof counts);
      for (int r = 0; r < ranks; r++) {
        int64_t n = part[r].v.n_token;
        void *dp = fix_real(&f, n * E), *dwp = fix_real(&f, n * K);
        shard_rows(&f, dwp, n, dw, T, token[r], n, &k, false);
        f.k->route_bwd(&f.ctx, dp, dwp, xp[r], p[r].idx, counts, NULL, &a, &part[r].v, &(StatSink){word, SHIFT, &f.fault});
        shard_rows(&f, all, T, dp, n, token[r], n, &e, true);
      }
      fix_same_bits(&f, "d_logits", all, d, T * E);
      assert_memory_equal(word, o.word, (2 + 2 * E) * 8);
    }
    assert_true(o.word[1] != 0 && f.fault == 0);
  }
}

static void statistics_do_not_depend_on_calls(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    enum { E = 6, K = 2, T = 14 };
    RouteArgs a = {.n_expert = E, .top_k = K, .renormalise = true};
    View v;
    view_make(&v, (int[]){9, 5}, 2, 2, 0);
    void *logits = fix_copy(&f, fix_random(&f, T * E, -2, 2), T * E);
    Out o = out_new(&f, &v, &a);
    run(&f, &o, logits, &a, &v);
    for (int cut = 1; cut < v.v.n_window; cut++) {
      uint64_t *word = fix_u64(&f, 2 + 2 * E);
      for (int i = 0; i < 2; i++) {
        View part;
        view_part(&part, &v, i ? cut : 0, i ? v.v.n_window : cut);
        Out p = out_new(&f, &part, &a);
        p.word = word;
        size_t from = (size_t)(i ? v.window[cut] : 0);
        run(&f, &p, (char *)logits + from * E * f.k->real_size, &a, &part);
        fix_same_bits(&f, "weights", p.wt, (char *)o.wt + from * K * f.k->real_size, part.v.n_token * K);
      }
      assert_memory_equal(word, o.word, (2 + 2 * E) * 8);
    }
  }
}

static void no_tokens(void **state) {
  (void)state;
  Fix f;
  FOR_BOTH_TYPES(f) {
    RouteArgs a = {.n_expert = 4, .top_k = 2, .aux_per_sequence = true};
    View v;
    view_make(&v, (int[]){0}, 1, 4, 0);
    Out o = out_new(&f, &v, &a);
    run(&f, &o, NULL, &a, &v);
    const int32_t *seq = sequence_counts(&f, &o, &a, &v);
    for (int e = 0; e < 4; e++) assert_int_equal(seq[e], 0);
    f.k->route_bwd(&f.ctx, NULL, NULL, NULL, NULL, seq, NULL, &a, &v.v, &(StatSink){o.word, SHIFT, &f.fault});
    for (int i = 0; i < 10; i++) assert_true(o.word[i] == 0);
    assert_true(f.fault == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(learned_routing),
      cmocka_unit_test(ties_go_to_the_lowest_id),
      cmocka_unit_test(ids_are_valid_even_for_nan),
      cmocka_unit_test(forced_routing),
      cmocka_unit_test(zipf_has_its_distribution),
      cmocka_unit_test(gradients),
      cmocka_unit_test(sequences_may_be_cut),
      cmocka_unit_test(statistics_do_not_depend_on_calls),
      cmocka_unit_test(no_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
