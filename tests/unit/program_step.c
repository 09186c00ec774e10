/* The instruction list: nothing is read before it is written, no two live buffers share memory, names are stable; and bytes by hand. */
#include "unit/train_rig.h"

typedef void RigCheck(Rig *r, const Step *s);

/* Every schedule with 1 to 5 micro-batches, dense and MoE, one and several ranks. */
static void for_all_lists(RigCheck *check) {
  static const char *const schedule[] = {"schedule.name=1f1b", "schedule.name=all_forward"};
  static const char *const aux[] = {"moe.aux_scope=sequence", "moe.aux_scope=global"};
  for (int n_mb = 1; n_mb <= 5; n_mb++)
    for (int k = 0; k < 3; k++) {
      Rig r;
      char set[64];
      snprintf(set, sizeof set, "train.global_batch_size=%d", n_mb);
      rig_plan(&r, RIG_ODD, 1, 0, 3, RIG_SETS(set, "train.micro_batch_size=1", schedule[k > 0], aux[k > 1]));
      assert_int_equal(r.job.train.deal.n_mb, n_mb);
      check(&r, &r.job.train.step);
      check(&r, &r.job.eval.step);
      rig_close(&r);
    }
  Rig r;
  rig_plan(&r, RIG_ODD, 4, 3, 3, RIG_SETS("layout.ep=4", "optimizer.shard=false", "train.micro_batch_size=1"));
  check(&r, &r.job.train.step);
  rig_close(&r);
  rig_plan(
      &r, RIG_ODD, 1, 0, 0,
      RIG_SETS("model.model_type=llama", "model.num_local_experts=0", "model.first_k_dense_replace=0", "model.tie_word_embeddings=true"));
  check(&r, &r.job.train.step);
  rig_close(&r);
}

/* ---- reads and writes of an instruction ---------------------------------------------------------------------------------------------- */
typedef struct Uses {
  BufId read[2 * (MAX_IN + MAX_OUT)], write[MAX_IN + MAX_OUT];
  int n_read, n_write;
} Uses;
static void add(BufId *list, int *n, const BufId *b, int count) {
  for (int i = 0; i < count; i++)
    if (b[i] != NO_BUF) list[(*n)++] = b[i];
}
static Uses uses_of(const Ins *i) {
  Uses u = {0};
  bool backward = i->kind == INS_KERNEL && i->pass != PASS_FWD;
  add(u.read, &u.n_read, i->in, MAX_IN);
  add(u.read, &u.n_read, i->d_out, MAX_OUT);
  if (backward)
    add(u.read, &u.n_read, i->out, MAX_OUT);
  else
    add(u.write, &u.n_write, i->out, MAX_OUT);
  add(u.write, &u.n_write, i->d_in, MAX_IN);
  return u;
}

enum { EMPTY, COMING, THERE };
static void check_order(Rig *r, const Step *s) {
  uint8_t *what = ARENA_NEW(&r->a, uint8_t, s->n_buf);
  int *event = ARENA_NEW(&r->a, int, s->n_buf);
  char name[128];
  for (BufId b = 0; b < s->n_buf; b++) what[b] = s->buf[b].kind == BUF_STATE || s->buf[b].kind == BUF_HOST ? THERE : EMPTY;
  for (int n = 0; n < s->n_ins; n++) {
    const Ins *i = &s->ins[n];
    Uses u = uses_of(i);
    if (i->kind == INS_WAIT)
      for (int k = 0; k < u.n_read; k++)
        if (what[u.read[k]] == COMING && event[u.read[k]] == i->event) what[u.read[k]] = THERE;
    for (int k = 0; k < u.n_read; k++)
      if (what[u.read[k]] != THERE)
        fail_msg("%s reads %s, which is %s", ins_name(s, i, name, sizeof name), s->buf[u.read[k]].label,
                 what[u.read[k]] ? "still being copied" : "not written yet");
    for (int k = 0; k < u.n_write; k++) {
      if (s->buf[u.write[k]].kind == BUF_VALUE || s->buf[u.write[k]].kind == BUF_GRAD)
        assert_int_equal(what[u.write[k]], EMPTY); /* written once */
      what[u.write[k]] = i->kind == INS_COPY ? COMING : THERE;
      event[u.write[k]] = i->event;
    }
  }
  for (BufId b = 0; b < s->n_buf; b++) assert_int_not_equal(what[b], COMING); /* nobody waited */
}
static void reads_follow_writes(void **state) {
  (void)state;
  for_all_lists(check_order);
}

/* ---- lifetimes and places ------------------------------------------------------------------------------------------------------------ */
static void check_lifetimes(Rig *r, const Step *s) {
  (void)r;
  for (int n = 0; n < s->n_ins; n++) {
    const Ins *i = &s->ins[n];
    Uses u = uses_of(i);
    add(u.read, &u.n_read, &i->work, 1);
    for (int k = 0; k < u.n_read; k++) assert_true(s->buf[u.read[k]].first <= n && s->buf[u.read[k]].last >= n);
    for (int k = 0; k < u.n_write; k++) assert_true(s->buf[u.write[k]].first <= n && s->buf[u.write[k]].last >= n);
  }
}
static void check_places(Rig *r, const Step *s) {
  const MemPlan *m = &r->job.mem;
  for (BufId a = 0; a < s->n_buf; a++) {
    const Buf *x = &s->buf[a];
    if (x->first < 0) continue;
    assert_true(x->offset + x->bytes <= m->bytes[x->region]);
    assert_int_equal(x->offset % PLAN_LINE, 0);
    for (BufId b = 0; b < a; b++) {
      const Buf *y = &s->buf[b];
      if (y->first < 0 || x->region != y->region || x->first > y->last || y->first > x->last) continue;
      /* whole lines: the guard and the count of touched memory work in lines */
      size_t x_end = (x->offset + x->bytes + PLAN_LINE - 1) / PLAN_LINE * PLAN_LINE,
             y_end = (y->offset + y->bytes + PLAN_LINE - 1) / PLAN_LINE * PLAN_LINE;
      if (x->bytes && y->bytes && x->offset < y_end && y->offset < x_end) fail_msg("%s and %s share memory", x->label, y->label);
    }
  }
}
static void lifetimes_cover_uses(void **state) {
  (void)state;
  for_all_lists(check_lifetimes);
}
static void no_two_live_buffers_overlap(void **state) {
  (void)state;
  for_all_lists(check_places);
}

/* Regions follow each other, states lie at the same place in both steps. */
static void regions(void **state) {
  (void)state;
  Rig r;
  rig_plan(&r, RIG_ODD, 2, 1, 3, RIG_SETS("layout.ep=2"));
  const MemPlan *m = &r.job.mem;
  size_t at = 0;
  for (int k = REGION_P; k <= REGION_S; k++) {
    assert_int_equal(m->base[k], at);
    assert_true(m->bytes[k] > 0 && m->live[k] <= m->bytes[k]);
    at += m->bytes[k];
  }
  assert_int_equal(m->device, at);
  const Step *a = &r.job.train.step, *b = &r.job.eval.step;
  for (int g = 0; g < N_PGROUP; g++)
    for (int k = 0; k < N_STATE; k++) assert_int_equal(a->buf[a->state[g][k]].offset, b->buf[b->state[g][k]].offset);
  for (BufId i = 0; i < a->n_buf; i++)
    if (a->buf[i].region == REGION_S) assert_true(a->p->val[a->buf[i].val].late); /* only what may be dropped */
  rig_close(&r);
}

/* P by hand, for two ranks that share every tensor: blocks of 1024 elements; weights f32, accumulators u64, moments of the owned half. */
static void bytes_by_hand(void **state) {
  (void)state;
  Rig r;
  rig_plan(&r, RIG_ODD, 2, 0, 0, RIG_SETS("numerics.shards=1"));
  enum { LAYERS = 3, MOE = 2, E = 6 };
  /* blocks of SHARD: 2 for embed and head each (97 x 16), 4 in a layer (q, k, v, o), 3 in the dense FFN; of TOKEN: 2 gains in a layer, 1 in a router, 1 for the
   * last gain */
  int64_t shard = 2 + 2 + LAYERS * 4 + 3, token = LAYERS * 2 + MOE + 1, expert = MOE * E * 3, stat = 8 * (2 + MOE * (2 + 2 * E));
  assert_int_equal(r.job.params.n_flat[PGROUP_SHARD], 1024 * shard);
  assert_int_equal(r.job.params.n_flat[PGROUP_TOKEN], 1024 * token);
  assert_int_equal(r.job.params.n_flat[PGROUP_EXPERT], 1024 * expert);
  assert_int_equal(r.job.params.n_flat[PGROUP_MIRROR], 0);
  int64_t own = shard / 2 + token / 2 + expert / 2;
  assert_int_equal(r.job.mem.bytes[REGION_P], 1024 * ((shard + token + expert) * (4 + 8) + own * 8) + (stat + 63) / 64 * 64);
  assert_int_equal(r.job.mem.bytes[REGION_HOST], 2 * 128 + (stat + 63) / 64 * 64); /* 2 sequences of 13 ids: 104 bytes, in lines */
  rig_close(&r);
}

/* ---- names --------------------------------------------------------------------------------------------------------------------------- */
static char *printed(Arena *a, const Step *s) {
  char *text = NULL;
  size_t n = 0;
  FILE *f = open_memstream(&text, &n);
  step_print(s, f);
  fclose(f);
  char *copy = arena_printf(a, "%s", text);
  free(text);
  return copy;
}
static void check_names(Rig *r, const Step *s) {
  char x[128], y[128];
  for (int n = 0; n < s->n_ins; n++) {
    if (s->ins[n].kind != INS_KERNEL) continue;
    ins_name(s, &s->ins[n], x, sizeof x);
    for (int k = 0; k < n; k++)
      if (s->ins[k].kind == INS_KERNEL) assert_string_not_equal(x, ins_name(s, &s->ins[k], y, sizeof y));
  }
  (void)r;
}
static void names_are_unique(void **state) {
  (void)state;
  for_all_lists(check_names);
}
static void names_are_stable(void **state) {
  (void)state;
  Rig a, b;
  rig_plan(&a, RIG_ODD, 2, 0, 0, RIG_SETS("layout.ep=2"));
  rig_plan(&b, RIG_ODD, 2, 0, 0, RIG_SETS("layout.ep=2"));
  char *text = printed(&a.a, &a.job.train.step);
  assert_string_equal(text, printed(&b.a, &b.job.train.step));
  static const char *const expected[] = {
      "embed mb0",    "L00.attn.q mb0",  "L02.moe.gate/dW mb1", "L01.moe.dispatch/dX mb0", "L01.moe.route/dX mb1",
      "loss/dX mb0",  "norm/dW mb0",     "reduce.shard",        "reduce.expert",           "update.expert",
      "gather.shard", "copy.tokens mb1", "copy.host.statistics"};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
    if (!strstr(text, expected[i])) fail_msg("no instruction is called \"%s\"", expected[i]);
  rig_close(&a);
  rig_close(&b);
}

/* A dense layer of a model whose other layers have experts reads no routing. */
static void guards_are_of_routed_rows_only(void **state) {
  (void)state;
  Rig r;
  rig_plan(&r, RIG_ODD, 1, 0, 0, RIG_SETS("train.micro_batch_size=1"));
  const Step *s = &r.job.train.step;
  assert_int_equal(s->n_plan, 2);
  assert_int_equal(s->n_guard, 10);
  for (int n = 0; n < s->n_ins; n++) {
    const Ins *i = &s->ins[n];
    if (i->kind != INS_KERNEL) continue;
    bool moe = s->p->op[i->op].layer >= 1;
    if (i->guard >= 0) assert_true(moe && i->guard / s->n_plan == i->mb && i->guard % s->n_plan == s->p->op[i->op].layer - 1);
  }
  rig_close(&r);
}

/* What is timed as forward and backward: every kernel, and nothing of the optimizer. */
static void passes_lie_between(void **state) {
  (void)state;
  Rig r;
  rig_plan(&r, RIG_ODD, 1, 0, 0, RIG_SETS("train.micro_batch_size=1"));
  const Step *s = &r.job.train.step;
  for (int n = 0; n < s->n_ins; n++) {
    InsKind k = s->ins[n].kind;
    bool inside = n >= s->pass_begin && n < s->pass_end;
    if (k == INS_KERNEL || k == INS_DECIDE) assert_true(inside);
    if (k == INS_ZERO || k == INS_COUNT || k == INS_STATS || k == INS_REDUCE || k == INS_NORM || k == INS_UPDATE) assert_false(inside);
  }
  rig_close(&r);
}

/* A kind without a row would be called when it is first met. */
static void every_op_has_a_row(void **state) {
  (void)state;
  for (int k = 0; k < N_OP; k++) {
    const OpDesc *d = &op_desc[k];
    if (!d->name || !d->run[PASS_FWD]) fail_msg("op kind %d: no row in op_table.c, or no forward pass", k);
    if (!d->run[PASS_BWD_W] != !d->has_dw) fail_msg("%s: a dW pass and has_dw go together", d->name);
    if ((d->flags & OPF_SETS_ROWS) && !d->plan_rows) fail_msg("%s: sets rows without plan_rows", d->name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_has_a_row),
                                     cmocka_unit_test(reads_follow_writes),
                                     cmocka_unit_test(lifetimes_cover_uses),
                                     cmocka_unit_test(no_two_live_buffers_overlap),
                                     cmocka_unit_test(regions),
                                     cmocka_unit_test(bytes_by_hand),
                                     cmocka_unit_test(names_are_unique),
                                     cmocka_unit_test(names_are_stable),
                                     cmocka_unit_test(guards_are_of_routed_rows_only),
                                     cmocka_unit_test(passes_lie_between)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
