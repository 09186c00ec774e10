/* Arithmetic of layouts: every sequence, token and parameter element belongs to exactly one owner, on every layout. */
#include "unit/train_rig.h"

/* ---- sequences ----------------------------------------------------------------------------------------------------------------------- */
static void check_deal(const Deal *d, int64_t micro_batch) {
  int64_t next = 0, fewest = d->n_seq, most = 0;
  for (int dp = 0; dp < d->n_dp; dp++) {
    DealShare all = deal_rank(d, dp);
    assert_int_equal(all.first, next);
    int64_t at = all.first;
    for (int mb = 0; mb < d->n_mb; mb++) {
      DealShare s = deal_share(d, dp, mb);
      if (s.n) assert_int_equal(s.first, at);
      assert_true(s.n >= 0 && s.n <= micro_batch && s.n <= d->micro_batch);
      at += s.n;
    }
    assert_int_equal(at, all.first + all.n);
    next = all.first + all.n;
    fewest = all.n < fewest ? all.n : fewest, most = all.n > most ? all.n : most;
  }
  assert_int_equal(next, d->n_seq);
  assert_true(most - fewest <= 1);
  assert_true((d->n_mb - 1) * d->micro_batch < most); /* no micro-batch is empty everywhere */
}

static void sequences_are_dealt_once(void **state) {
  (void)state;
  for (int64_t n_seq = 1; n_seq <= 9; n_seq++)
    for (int n_dp = 1; n_dp <= 5; n_dp++)
      for (int64_t mb = 1; mb <= 6; mb++) {
        Mesh m;
        Err e = {0};
        assert_true(mesh_init(&m, n_dp, 1, n_dp, 1, 1, 1, 1, &e));
        Deal d = deal_make(n_seq, 13, mb, 4, &m);
        check_deal(&d, mb);
      }
}

/* Every token of a micro-batch is in exactly one rank's own view, its window is whole, and the larger views are unions of the smaller ones. */
static void check_views(const Deal *d, Arena *a, int mb, int64_t S) {
  int64_t n_seq = deal_share(d, 0, mb).n;
  int *owned = ARENA_NEW(a, int, n_seq *S + 1), *in_tp = ARENA_NEW(a, int, n_seq *S + 1);
  for (int cp = 0; cp < d->n_cp; cp++)
    for (int tp = 0; tp < d->n_tp; tp++) {
      DealMb m = deal_mb(d, a, (DealPlace){0, cp, tp}, mb);
      for (int k = 0; k < N_TOKEN_VIEW; k++) {
        const TokenView *v = &m.view[k];
        assert_int_equal(v->seq_start[v->n_seq], v->n_token);
        assert_int_equal(v->window_start[v->n_window], v->n_token);
        for (int w = 0; w < v->n_window; w++) {
          int64_t n = v->window_start[w + 1] - v->window_start[w], at = v->window_number[w] % S;
          assert_int_equal(at % d->window, 0);
          assert_int_equal(n, at + d->window < S ? d->window : S - at);
          assert_int_equal(v->window_number[w] / S, v->window_seq[w] + deal_share(d, 0, mb).first);
          for (int64_t t = 0; t < n; t++) {
            assert_int_equal(v->position[v->window_start[w] + t], at + t);
            if (k == VIEW_OWN) owned[v->window_seq[w] * S + at + t]++;
            if (k == VIEW_TP && tp == 0) in_tp[v->window_seq[w] * S + at + t]++;
          }
        }
        DealCount c = deal_count(d, (DealPlace){0, cp, tp}, mb, k);
        assert_true(c.n_token == v->n_token && c.n_window == v->n_window);
      }
      assert_int_equal(m.view[VIEW_SEQ].n_token, n_seq * S);
      assert_int_equal(m.tp_row[tp + 1] - m.tp_row[tp], m.view[VIEW_OWN].n_token);
      assert_int_equal(m.tp_row[d->n_tp], m.view[VIEW_TP].n_token);
      for (int64_t t = 0; t < m.view[VIEW_OWN].n_token; t++)
        assert_int_equal(m.view[VIEW_TP].position[m.tp_row[tp] + t], m.view[VIEW_OWN].position[t]);
      for (int s = 0; s < m.n_cp_segment; s++)
        for (int64_t t = 0; t < m.cp_segment[s].n && m.cp_segment[s].cp == cp; t++)
          assert_int_equal(m.view[VIEW_TP].position[m.cp_segment[s].tp_row + t], (m.cp_segment[s].seq_row + t) % S);
    }
  for (int64_t t = 0; t < n_seq * S; t++) assert_true(owned[t] == 1 && in_tp[t] == 1);
}
static void windows_are_dealt_once(void **state) {
  (void)state;
  Arena a;
  Err e = {0};
  arena_open(&a, "deal", 1 << 26);
  for (int cp = 1; cp <= 4; cp++)
    for (int tp = 1; tp <= 4; tp++)
      for (int64_t S = 1; S <= 17; S += 4)
        for (int64_t window = 1; window <= S; window += 2) {
          ArenaMark mark = arena_mark(&a);
          Mesh m;
          assert_true(mesh_init(&m, cp * tp, 1, 1, cp, tp, 1, 1, &e));
          Deal d = deal_make(3, S, 2, window, &m);
          for (int mb = 0; mb < d.n_mb; mb++) check_views(&d, &a, mb, S);
          arena_release(&a, mark);
        }
  arena_close(&a);
}

/* ---- parameters ---------------------------------------------------------------------------------------------------------------------- */
typedef struct Cover {
  int64_t *first /* [n_tensor + 1] */;
  uint8_t *owned;
  int *leaf /* [tensor * shards + shard] */;
} Cover;

static void check_segments(const ParamSet *ps, ParamGroupId g) {
  int64_t end = 0;
  for (int k = 0; k < ps->n_seg[g]; k++) {
    const ParamSeg *s = &ps->seg[g][k];
    assert_int_equal(s->flat % NORM_BLOCK, 0);
    assert_true(s->flat >= end);
    end = s->flat + s->n_row * s->n_col;
  }
  assert_true(end <= ps->n_flat[g]);
  assert_int_equal(ps->n_flat[g] % NORM_BLOCK, 0);
}

static void check_bounds(const ParamSet *ps, ParamGroupId g, int n, const int64_t *bound) {
  assert_int_equal(bound[0], 0);
  assert_int_equal(bound[n], ps->n_flat[g]);
  for (int i = 0; i < n; i++) assert_true(bound[i] <= bound[i + 1] && bound[i] % NORM_BLOCK == 0);
}

/* Marks what this rank owns. */
static void cover_rank(Rig *r, Cover *c) {
  const ParamSet *ps = &r->job.params;
  int shards = (int)r->doc.c.numerics.shards;
  for (int g = 0; g < N_PGROUP; g++) {
    int n = mesh_group_size(ps->mesh, pgroup_axes(g)), self = mesh_group_self(ps->mesh, ps->rank, pgroup_axes(g));
    int64_t *bound = ARENA_NEW(&r->a, int64_t, n + 1);
    params_bounds(ps, g, n, bound);
    check_segments(ps, g);
    check_bounds(ps, g, n, bound);
    for (int k = 0; k < ps->n_seg[g]; k++) {
      const ParamSeg *s = &ps->seg[g][k];
      const Param *p = params_of_tensor(ps, s->tensor);
      assert_ptr_equal(p, &ps->param[s->param]);
      int *leaf = &c->leaf[s->tensor * shards + s->shard], mine = params_norm_leaf(ps, s->tensor, s->shard);
      assert_true(*leaf < 0 || *leaf == mine); /* on every rank the same */
      *leaf = mine;
      for (int64_t i = 0; i < s->n_row * s->n_col; i++)
        if (s->flat + i >= bound[self] && s->flat + i < bound[self + 1])
          c->owned[c->first[s->tensor] + (s->row + i / s->n_col) * p->n_in + s->col + i % s->n_col]++;
    }
  }
}

static void cover_open(Cover *c, Arena *a, const ParamSet *ps, int shards) {
  c->first = ARENA_NEW(a, int64_t, ps->n_tensor + 1);
  for (int i = 0; i < ps->n_tensor; i++) c->first[i + 1] = c->first[i] + params_of_tensor(ps, i)->n_out * params_of_tensor(ps, i)->n_in;
  c->owned = ARENA_NEW(a, uint8_t, c->first[ps->n_tensor]);
  c->leaf = ARENA_NEW(a, int, ps->n_tensor *shards);
  memset(c->leaf, -1, (size_t)(ps->n_tensor * shards) * sizeof *c->leaf);
}

/* Every leaf of the norm's tree has one (tensor, shard). */
static void check_leaves(Arena *a, const ParamSet *ps, const Cover *c, int shards) {
  uint8_t *used = ARENA_NEW(a, uint8_t, ps->n_norm_leaf);
  int n = 0;
  for (int i = 0; i < ps->n_tensor * shards; i++) {
    if (c->leaf[i] < 0) continue;
    assert_true(c->leaf[i] < ps->n_norm_leaf && !used[c->leaf[i]]);
    used[c->leaf[i]] = 1, n++;
  }
  assert_int_equal(n, ps->n_norm_leaf);
}

static void cover_layout(int dp, int ep, const char *shards) {
  Arena a;
  Cover c = {0};
  int n_tensor = 0, n_shard = atoi(shards);
  arena_open(&a, "cover", 1 << 26);
  char set[2][64];
  snprintf(set[0], sizeof set[0], "layout.ep=%d", ep);
  snprintf(set[1], sizeof set[1], "numerics.shards=%s", shards);
  for (int rank = 0; rank < dp; rank++) {
    Rig r;
    rig_plan(&r, RIG_ODD, dp, rank, 0, RIG_SETS(set[0], set[1], "train.global_batch_size=1"));
    if (rank == 0) cover_open(&c, &a, &r.job.params, n_shard), n_tensor = r.job.params.n_tensor;
    assert_int_equal(r.job.params.n_tensor, n_tensor);
    cover_rank(&r, &c);
    if (rank == dp - 1) check_leaves(&a, &r.job.params, &c, n_shard);
    rig_close(&r);
  }
  for (int64_t i = 0; i < c.first[n_tensor]; i++)
    if (c.owned[i] != 1) fail_msg("dp %d ep %d: element %lld has %d owners", dp, ep, (long long)i, c.owned[i]);
  arena_close(&a);
}

static void parameters_have_one_owner(void **state) {
  (void)state;
  static const int layout[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4}, {5, 5}, {7, 7}, {12, 4}};
  for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) cover_layout(layout[i][0], layout[i][1], i % 2 ? "3" : "1");
}

/* Names are those of Hugging Face; decay goes by kind and never by shape. */
static void names_and_decay(void **state) {
  (void)state;
  Rig r;
  rig_plan(&r, RIG_ODD, 4, 3, 0, RIG_SETS("layout.ep=4"));
  const ParamSet *ps = &r.job.params;
  int n_expert = 0;
  for (int i = 0; i < ps->n_tensor; i++) {
    const char *name = params_tensor_name(ps, &r.a, i);
    for (int j = 0; j < i; j++) assert_string_not_equal(name, params_tensor_name(ps, &r.a, j));
    n_expert += strstr(name, ".experts.") != NULL;
    assert_int_equal(param_decays(params_of_tensor(ps, i)), !strstr(name, "norm"));
  }
  assert_int_equal(n_expert, 2 * 6 * 3); /* two layers, six experts, three matrices: all are known everywhere */
  assert_int_equal(ps->n_tensor, 3 + 3 * 6 + 3 + 2 + n_expert);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sequences_are_dealt_once), cmocka_unit_test(windows_are_dealt_once),
                                     cmocka_unit_test(parameters_have_one_owner), cmocka_unit_test(names_and_decay)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
