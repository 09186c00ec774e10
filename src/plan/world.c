#include "plan/world.h"

#include "base/align.h"
#include "base/hash.h"

static uint64_t fold(uint64_t key, uint64_t x) { return hash_mix((key ^ x) + 0x9e3779b97f4a7c15u); }
static uint64_t fold_int(uint64_t key, int64_t x) { return fold(key, (uint64_t)x); }

/* ---- what a place is given ----------------------------------------------------------------------------------------------------------------------- */
static uint64_t fold_tokens(uint64_t key, const Deal *d, DealPlace p) {
  for (int mb = 0; mb < d->n_mb; mb++) {
    key = fold_int(key, deal_share(d, p.dp, mb).n);
    for (int k = 0; k < N_TOKEN_VIEW; k++) {
      DealCount c = deal_count(d, p, mb, k);
      key = fold_int(fold_int(key, c.n_window), c.n_token);
    }
  }
  return key;
}

/* Bounds of an expert group: model_dims reads the sum of its members' tokens and the most windows of any. */
static uint64_t fold_group(uint64_t key, const Mesh *m, int rank, const DealCount *most) {
  AxisSet experts = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP);
  int64_t tokens = 0, windows = 0;
  for (int i = 0; i < mesh_group_size(m, experts); i++) {
    const DealCount *c = &most[mesh_group_rank(m, rank, experts, i)];
    tokens += c->n_token;
    windows = c->n_window > windows ? c->n_window : windows;
  }
  return fold_int(fold_int(key, tokens), windows);
}

Places world_places(Arena *a, const Mesh *m, const Deal *const *deal, int n_deal, int n_expert, bool cp_apart) {
  Places p = {.n = m->world / m->size[AXIS_PP]};
  p.given = ARENA_NEW(a, uint64_t, p.n), p.tokens = ARENA_NEW(a, uint64_t, p.n);
  ArenaMark mark = arena_mark(a);
  DealCount *most = ARENA_NEW(a, DealCount, p.n);
  for (int r = 0; r < p.n; r++) {
    int n_ep = m->size[AXIS_EP], ep = mesh_coord(m, r, AXIS_EP);
    uint64_t key = fold_int(fold_int(0, mesh_coord(m, r, AXIS_TP)), mesh_coord(m, r, AXIS_ETP));
    if (cp_apart) key = fold_int(key, mesh_coord(m, r, AXIS_CP));
    p.given[r] = fold_int(key, share_begin(n_expert, n_ep, ep + 1) - share_begin(n_expert, n_ep, ep));
  }
  for (int i = 0; i < n_deal; i++) {
    for (int r = 0; r < p.n; r++) {
      most[r] = deal_most(deal[i], deal_place(m, r), VIEW_OWN);
      p.tokens[r] = fold_tokens(p.tokens[r], deal[i], deal_place(m, r));
    }
    for (int r = 0; r < p.n; r++) p.given[r] = fold_group(p.given[r], m, r, most);
  }
  for (int r = 0; r < p.n; r++) p.given[r] = fold(p.given[r], p.tokens[r]);
  arena_release(a, mark);
  return p;
}

/* ---- what a place works on and exchanges ------------------------------------------------------------------------------------------------------------------------ */
/* Rows of each place's tokens for each expert in a micro-batch: [places][experts]. */
static void count_rows(int32_t *rows, Arena *a, const Mesh *m, const Deal *d, int mb, int routing, int n_expert, int top_k) {
  for (int r = 0; r < m->world / m->size[AXIS_PP]; r++) {
    ArenaMark mark = arena_mark(a);
    TokenView v = deal_view(d, a, deal_place(m, r), mb, VIEW_OWN);
    for (int e = 0; e < n_expert; e++) rows[(int64_t)r * n_expert + e] = 0;
    for (int w = 0; w < v.n_window; w++)
      for (int e = 0; e < n_expert; e++)
        rows[(int64_t)r * n_expert + e] +=
            (int32_t)plan_window_rows(routing, n_expert, top_k, v.window_number[w], v.window_start[w + 1] - v.window_start[w], e);
    arena_release(a, mark);
  }
}

/* Rows and segments that go to other members and that come from them. */
static uint64_t fold_exchange(uint64_t key, const Mesh *m, int rank, const int32_t *rows, int n_expert) {
  AxisSet experts = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP);
  int n_etp = m->size[AXIS_ETP], ep = mesh_coord(m, rank, AXIS_EP), n = mesh_group_size(m, experts);
  int first = (int)share_begin(n_expert, m->size[AXIS_EP], ep), last = (int)share_begin(n_expert, m->size[AXIS_EP], ep + 1);
  int64_t out = 0, out_segments = 0, in = 0, in_segments = 0;
  const int32_t *own = rows + (int64_t)rank * n_expert;
  for (int e = 0; e < n_expert; e++) {
    int others = n_etp - (e >= first && e < last);
    out += own[e] * others, out_segments += own[e] ? others : 0;
  }
  for (int i = 0; i < n; i++) {
    int source = mesh_group_rank(m, rank, experts, i);
    for (int e = first; e < last && source != rank; e++)
      in += rows[(int64_t)source * n_expert + e], in_segments += rows[(int64_t)source * n_expert + e] > 0;
  }
  return fold_int(fold_int(fold_int(fold_int(key, out), out_segments), in), in_segments);
}

/* What attention computes and exchanges, of the sequences of a CP rank, for any heads: pairs of queries and keys; how many runs of tokens its own are, each a
 * message to whoever fetches them; and around the ring from here, the tokens of all members. */
static uint64_t fold_attention(uint64_t key, Arena *a, const Deal *d, DealPlace p, int mb, int64_t sliding_window) {
  ArenaMark mark = arena_mark(a);
  DealMb m = deal_mb(d, a, p, mb);
  const TokenView *v = &m.view[VIEW_TP];
  int64_t pairs = 0, runs = 0, *tokens = ARENA_NEW(a, int64_t, d->n_cp);
  for (int64_t i = 0; i < v->n_token; i++)
    pairs += sliding_window && v->position[i] >= sliding_window ? sliding_window : (int64_t)v->position[i] + 1;
  for (int i = 0; i < m.n_cp_segment; i++) tokens[m.cp_segment[i].cp] += m.cp_segment[i].n, runs += m.cp_segment[i].cp == p.cp;
  key = fold_int(fold_int(key, pairs), runs);
  for (int i = 0; i < d->n_cp; i++) key = fold_int(key, tokens[(p.cp + i) % d->n_cp]);
  arena_release(a, mark);
  return key;
}
static void fold_sequences(uint64_t *key, Arena *a, const Mesh *m, const Deal *d, int64_t sliding_window) {
  int n = m->world / m->size[AXIS_PP];
  for (int r = 0; r < n; r++) {
    AxisSet tp = AXIS_BIT(AXIS_TP);
    if (mesh_coord(m, r, AXIS_TP) > 0) continue; /* has what the first of its group has */
    uint64_t all = 0;
    for (int mb = 0; mb < d->n_mb; mb++) all = fold_attention(all, a, d, deal_place(m, r), mb, sliding_window);
    for (int i = 0; i < mesh_group_size(m, tp); i++) {
      uint64_t *k = &key[mesh_group_rank(m, r, tp, i)];
      *k = fold(*k, all);
    }
  }
}

uint64_t *world_work(Arena *a, const Mesh *m, const Deal *d, int routing, int n_expert, int top_k, int64_t sliding_window) {
  int n = m->world / m->size[AXIS_PP];
  uint64_t *key = ARENA_NEW(a, uint64_t, n);
  fold_sequences(key, a, m, d, sliding_window);
  ArenaMark mark = arena_mark(a);
  int32_t *rows = ARENA_NEW(a, int32_t, (int64_t)n * n_expert);
  for (int mb = 0; mb < d->n_mb && n_expert; mb++) {
    count_rows(rows, a, m, d, mb, routing, n_expert, top_k);
    for (int r = 0; r < n; r++) key[r] = fold_exchange(key[r], m, r, rows, n_expert);
  }
  arena_release(a, mark);
  return key;
}

/* ---- what a list follows from ---------------------------------------------------------------------------------------------------------------------- */
static uint64_t fold_value(uint64_t key, const Program *p, ValId v) {
  const Value *x = &p->val[v];
  const int64_t word[] = {x->kind, x->dtype,     x->rows,     x->width, x->grad_width, x->floor,
                          x->late, x->rows_from, x->alias_of, x->def,   x->param};
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) key = fold_int(key, word[i]);
  return fold_int(key, value_bound_rows(p, v));
}

static uint64_t fold_op(uint64_t key, const Program *p, const Op *op, const StepOptions *o) {
  key = fold_int(key, op->kind);
  for (int k = 0; k < op->n_in; k++) key = fold_int(key, op->in[k]);
  for (int k = 0; k < op->n_out; k++) key = fold_int(key, op->out[k]);
  OpWorkArgs w = {.p = p, .op = op, .k = o->k, .kctx = o->kctx, .mb = o->mb};
  for (int pass = 0; pass < N_PASS; pass++)
    if (op_desc[op->kind].run[pass] && op_desc[op->kind].work) key = fold(key, op_desc[op->kind].work(&w, pass));
  return key;
}

static uint64_t fold_program(uint64_t key, const Program *p, const StepOptions *o) {
  const int64_t word[] = {p->n_op, p->n_val, p->n_stat, p->tokens, p->labels, p->loss, p->recv, p->send, p->virtual_stage, p->n_virtual};
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) key = fold_int(key, word[i]);
  for (ValId v = 0; v < p->n_val; v++) key = fold_value(key, p, v);
  for (OpId op = 0; op < p->n_op; op++) key = fold_op(key, p, &p->op[op], o);
  return key;
}

/* Sizes of parameters count where one of them has a buffer of its own. */
static uint64_t fold_params(uint64_t key, const ParamSet *ps) {
  for (int g = 0; g < N_PGROUP; g++) key = fold_int(key, ps->n_flat[g]);
  for (int i = 0; i < ps->n; i++) key = fold_int(fold_int(key, ps->param[i].expert_stride), ps->param[i].n_expert_here);
  return key;
}

uint64_t world_step_key(uint64_t key, const Program *const *chunk, int n_chunk, const Schedule *sched, const StepOptions *o) {
  const int64_t word[] = {
      o->train,    o->zero1, o->zero3, o->batch_aux, o->n_input, o->tied_stages, (int64_t)o->optimizer_work, (int64_t)o->reduce_work,
      sched->n_mb, n_chunk};
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) key = fold_int(key, word[i]);
  for (int a = 0; a < sched->n_act; a++) key = fold_int(fold_int(fold_int(key, sched->act[a].kind), sched->act[a].mb), sched->act[a].chunk);
  for (int c = 0; c < n_chunk; c++) key = fold_program(key, chunk[c], o);
  return fold_params(key, chunk[0]->params);
}

size_t world_state_bytes(const ParamSet *ps, int rank, const Numerics *num, const StepOptions *o, uint64_t *key) {
  size_t sum = 0;
  for (int g = 0; g < N_PGROUP; g++) {
    size_t bytes[N_STATE];
    step_state_bytes(ps, rank, g, num, o->zero1, o->zero3, bytes);
    for (int k = 0; k < N_STATE; k++) {
      sum += align_up(bytes[k], PLAN_LINE);
      if (key) *key = fold(*key, bytes[k]);
    }
  }
  return sum;
}
