/* What a Mixture-of-Experts layer sends over its expert group: counts first, then rows to the experts and back. */
#include <string.h>

#include "base/err.h"
#include "program/op_passes.h"

/* ---- plan: the counts of one exchange ----------------------------------------------------------------------------------------------
 * Expert e lives on the ETP members of EP member share_owner(e); each of them gets every row. Places in the group: ep * n_etp + etp. */
enum { EXPERTS = AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP) };
int counts_sources(const Dims *d) { return d->n_ep * d->n_etp; }
int counts_experts(const Dims *d) { return (d->n_expert + d->n_ep - 1) / d->n_ep; }
static int64_t counts_block(const Dims *d) { return d->n_window_peer * (counts_experts(d) + 1); } /* int32s from one source */
int64_t counts_width(const Dims *d) { return counts_sources(d) * counts_block(d) + d->n_expert; }
const int32_t *counts_received(const Dims *d, const int32_t *plan, int source, int64_t window) {
  return plan + source * counts_block(d) + window * (counts_experts(d) + 1);
}
const int32_t *counts_sent(const Dims *d, const int32_t *plan) { return plan + counts_sources(d) * counts_block(d); }

ValId op_exchange_counts(Program *p, const char *name, ValId counts) {
  ValId plan = program_index(p, name, ROWS_ONE, counts_width(&p->dims));
  program_op(p, OP_EXCHANGE_COUNTS, name, &counts, 1, &plan, 1);
  return plan;
}
size_t exchange_counts_work(const OpWorkArgs *w, Pass pass) {
  (void)pass;
  return (size_t)counts_sources(&w->p->dims) * (size_t)counts_block(&w->p->dims) * sizeof(int32_t);
}
void exchange_counts_fwd(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int most = counts_experts(d);
  int64_t block = counts_block(d);
  const int32_t *counts = c->in[0];
  int32_t *send = c->work, *plan = c->out[0];
  const TokenView *own = &c->mb->view[VIEW_OWN];
  if (block) memset(send, 0, (size_t)(counts_sources(d) * block) * sizeof *send); /* no windows anywhere: no workspace */
  for (int peer = 0; peer < counts_sources(d); peer++) {
    int ep = peer / d->n_etp, first = (int)share_begin(d->n_expert, d->n_ep, ep),
        n = (int)share_begin(d->n_expert, d->n_ep, ep + 1) - first;
    for (int w = 0; w < own->n_window; w++) {
      int32_t *row = send + peer * block + w * (most + 1);
      memcpy(row, counts + (int64_t)w * d->n_expert + first, (size_t)n * sizeof *row);
      row[most] = own->window_start[w + 1] - own->window_start[w];
    }
  }
  comm_alltoall(c->env->world, EXPERTS, send, plan, (size_t)block * sizeof *plan);
  int32_t *sent = plan + counts_sources(d) * block;
  memset(sent, 0, (size_t)d->n_expert * sizeof *sent);
  for (int w = 0; w < own->n_window; w++)
    for (int e = 0; e < d->n_expert; e++) sent[e] += counts[(int64_t)w * d->n_expert + e];
}
void exchange_counts_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD) sketch_alltoall(s, EXPERTS, (size_t)counts_block(&c->p->dims) * sizeof(int32_t));
}
int64_t exchange_counts_rows(const OpCall *c) {
  const Dims *d = &c->p->dims;
  int64_t n = 0;
  for (int s = 0; s < counts_sources(d); s++)
    for (int64_t w = 0; w < d->n_window_peer; w++)
      for (int e = 0; e < d->n_expert_here; e++) n += counts_received(d, c->out[0], s, w)[e];
  return n;
}

/* ---- dispatch and return -------------------------------------------------------------------------------------------------------------- */
void op_dispatch(Program *p, const char *name, ValId rows, ValId plan, int n_use, ValId *out) {
  int n_out = p->dims.n_etp == 1 ? 1 : n_use; /* whole gradients are added where they are made */
  for (int k = 0; k < n_out; k++) {
    out[k] = program_act(p, k ? arena_printf(p->arena, "%s.%d", name, k) : name, ROWS_EXPERT, p->val[rows].width, p->val[rows].cut);
    p->val[out[k]].rows_from = plan;
    value_types(p, out[k], p->val[rows].dtype, p->num.real);
    p->val[out[k]].alias_of = k ? out[0] : NO_VAL;
  }
  for (int k = n_out; k < n_use; k++) out[k] = out[0];
  program_op(p, OP_DISPATCH, name, (ValId[]){rows, plan}, 2, out, n_out);
}
ValId op_return(Program *p, const char *name, ValId rows, ValId plan) {
  int64_t width = p->val[rows].grad_width;
  ValId y = program_act(p, name, ROWS_ROUTE, width, shards_uncut(width));
  program_op(p, OP_RETURN, name, (ValId[]){rows, plan}, 2, &y, 1);
  return y;
}

/* The fixed tree of a value that ETP cuts: the planes of an ETP member and their nodes. */
static int planes_of(const Dims *d, const Layout *l, int etp, TreeNode *node) {
  if (!l->partial) return node[0] = (TreeNode){0, 0}, 1;
  Shards s = shards_of(&l->blocks, d->n_etp, etp);
  return shard_roots(&s, node);
}
static int planes_received(const Dims *d, const Layout *l) {
  TreeNode node[TREE_ROOTS];
  int n = 0;
  for (int q = 0; q < d->n_etp; q++) n += planes_of(d, l, q, node);
  CHECK(n <= PLANES_MAX, "%d blocks over %d ranks leave %d partial sums, at most %d", l->blocks.n, d->n_etp, n, PLANES_MAX);
  return n;
}

/* One plane in all, of the type of the result, is received where the result belongs. */
static bool lands(const Dims *d, const Layout *l, bool same_type) { return planes_received(d, l) == 1 && same_type; }

/* Rows at home, by expert: a segment for every (expert, ETP member, plane); plane k of a member follows `stride` rows after the one before. */
static int home_segments(const Dims *d, const int32_t *plan, const Layout *l, int64_t stride, RowSeg *seg) {
  const int32_t *sent = counts_sent(d, plan);
  TreeNode node[TREE_ROOTS];
  int n = 0, plane = 0;
  for (int q = 0; q < d->n_etp; q++) {
    int m = l ? planes_of(d, l, q, node) : 1;
    for (int k = 0; k < m; k++) {
      int64_t row = l ? (plane + k) * stride : 0;
      for (int e = 0; e < d->n_expert; e++) {
        seg[n++] = (RowSeg){.peer = share_owner(d->n_expert, d->n_ep, e) * d->n_etp + q, .row = row, .n_row = sent[e]};
        row += sent[e];
      }
    }
    plane += m;
  }
  return n;
}
/* Rows at the experts, by (expert, source); for every plane. */
static int expert_segments(const Dims *d, const int32_t *plan, int n_plane, int64_t stride, RowSeg *seg) {
  int n = 0;
  for (int k = 0; k < n_plane; k++) {
    int64_t row = k * stride;
    for (int e = 0; e < d->n_expert_here; e++)
      for (int s = 0; s < counts_sources(d); s++) {
        int64_t got = 0;
        for (int64_t w = 0; w < d->n_window_peer; w++) got += counts_received(d, plan, s, w)[e];
        seg[n++] = (RowSeg){.peer = s, .row = row, .n_row = got};
        row += got;
      }
  }
  return n;
}

/* Segment arrays at the front of the workspace, then received planes. */
static size_t segments_work(const Dims *d, const Layout *l) {
  TreeNode node[TREE_ROOTS];
  size_t home = (size_t)(l ? planes_received(d, l) : d->n_etp) * (size_t)d->n_expert;
  size_t expert = (size_t)(l ? planes_of(d, l, d->etp_self, node) : 1) * (size_t)(d->n_expert_here * counts_sources(d));
  return work_align((home + expert + 1) * sizeof(RowSeg));
}
/* The two sides of an exchange: rows at home and rows at the experts. */
typedef struct Sides {
  RowSeg *home, *expert;
  int n_home, n_expert;
} Sides;

/* Every row to all ETP members of its expert's owner. */
static Sides sides_out(const OpCall *c, void *work) {
  const Dims *d = &c->p->dims;
  Sides x = {.home = work};
  x.n_home = home_segments(d, c->in[1], NULL, 0, x.home);
  x.expert = x.home + x.n_home;
  x.n_expert = expert_segments(d, c->in[1], 1, 0, x.expert);
  return x;
}
static void send_out(const OpCall *c, const void *home_rows, void *expert_rows, size_t row_bytes) {
  Sides x = sides_out(c, c->work);
  comm_exchange_rows(c->env->world, EXPERTS, home_rows, x.home, x.n_home, expert_rows, x.expert, x.n_expert, row_bytes);
}
/* The planes of all ETP members, back home. */
static Sides sides_back(const OpCall *c, const Layout *l, void *work) {
  const Dims *d = &c->p->dims;
  TreeNode node[TREE_ROOTS];
  Sides x = {.home = work};
  x.n_home = home_segments(d, c->in[1], l, c->mb->view[VIEW_OWN].n_token * d->top_k, x.home);
  x.expert = x.home + x.n_home;
  x.n_expert = expert_segments(d, c->in[1], planes_of(d, l, d->etp_self, node), c->n_row, x.expert);
  return x;
}
/* Rows back home: the planes of all ETP members, merged by the fixed tree into out [T k, width], which is of the type that `to` calls act. A value that is whole
 * on every member comes from the first. */
static void bring_back(const OpCall *c, const Kernels *to, const Layout *l, const void *expert_rows, size_t row_bytes, void *out,
                       int64_t width, char *work) {
  const Dims *d = &c->p->dims;
  bool whole = lands(d, l, row_bytes == (size_t)width * to->act_size);
  char *planes = whole ? out : work + segments_work(d, l);
  int64_t slots = c->mb->view[VIEW_OWN].n_token * d->top_k;
  Sides x = sides_back(c, l, work);
  TreeNode node[PLANES_MAX];
  const void *plane[PLANES_MAX];
  int n = 0;
  comm_exchange_rows(c->env->world, EXPERTS, expert_rows, x.expert, x.n_expert, planes, x.home, x.n_home, row_bytes);
  if (whole) return;
  for (int q = 0; q < d->n_etp; q++) n += planes_of(d, l, q, node + n);
  for (int k = 0; k < n; k++) plane[k] = planes + (size_t)(k * slots) * row_bytes;
  to->tree_merge(&c->env->kctx, out, plane, node, l->partial ? n : 1, slots, width, width, width);
}
static size_t back_work(const Program *p, const Layout *l, int64_t width, size_t real, bool same_type) {
  int planes = lands(&p->dims, l, same_type) ? 0 : planes_received(&p->dims, l);
  return segments_work(&p->dims, l) + (size_t)(planes * p->dims.n_token[VIEW_OWN] * p->dims.top_k * width) * real;
}

void dispatch_fwd(const OpCall *c) { send_out(c, c->in[0], c->out[0], value_row_bytes(c->p, c->op->in[0], false)); }

/* Consumers one by one, the last first, as gather_dx does. */
void dispatch_dx(const OpCall *c) {
  int64_t width = c->p->val[c->op->in[0]].width, n = c->mb->view[VIEW_OWN].n_token * c->p->dims.top_k * width;
  size_t sum = work_align((size_t)n * c->env->k->real_size);
  for (int k = c->op->n_out - 1; k >= 0; k--) {
    bool first = k == c->op->n_out - 1;
    void *to = first ? c->d_in[0] : c->work;
    bring_back(c, c->env->k->wide, &c->p->val[c->op->out[k]].grad_layout, c->d_out[k], value_row_bytes(c->p, c->op->in[0], true), to, width,
               (char *)c->work + sum);
    if (!first) c->env->k->wide->add(&c->env->kctx, c->d_in[0], c->d_in[0], to, n);
  }
}
static size_t returned_bytes(const OpCall *c) { return (size_t)c->p->val[c->op->out[0]].width * dtype_size(c->p->val[c->op->in[0]].dtype); }
void return_fwd(const OpCall *c) {
  bring_back(c, c->env->k, &c->p->val[c->op->in[0]].layout, c->in[0], returned_bytes(c), c->out[0], c->p->val[c->op->out[0]].width,
             c->work);
}
void return_dx(const OpCall *c) { send_out(c, c->d_out[0], c->d_in[0], value_row_bytes(c->p, c->op->out[0], true)); }

static void sketch_out(const OpCall *c, Sketch *s, size_t row_bytes) {
  Sides x = sides_out(c, c->work);
  sketch_exchange_rows(s, EXPERTS, x.home, x.n_home, x.expert, x.n_expert, row_bytes);
}
static void sketch_back(const OpCall *c, Sketch *s, const Layout *l, size_t row_bytes) {
  Sides x = sides_back(c, l, c->work);
  sketch_exchange_rows(s, EXPERTS, x.expert, x.n_expert, x.home, x.n_home, row_bytes);
}
void dispatch_traffic(const OpCall *c, Pass pass, Sketch *s) {
  size_t row_bytes = value_row_bytes(c->p, c->op->in[0], pass != PASS_FWD);
  if (pass == PASS_FWD) sketch_out(c, s, row_bytes);
  for (int k = c->op->n_out - 1; k >= 0 && pass == PASS_BWD_X; k--) sketch_back(c, s, &c->p->val[c->op->out[k]].grad_layout, row_bytes);
}
void return_traffic(const OpCall *c, Pass pass, Sketch *s) {
  if (pass == PASS_FWD) sketch_back(c, s, &c->p->val[c->op->in[0]].layout, returned_bytes(c));
  if (pass == PASS_BWD_X) sketch_out(c, s, value_row_bytes(c->p, c->op->out[0], true));
}

size_t dispatch_work(const OpWorkArgs *w, Pass pass) {
  if (pass == PASS_FWD) return segments_work(&w->p->dims, NULL);
  int64_t width = w->p->val[w->op->in[0]].width;
  size_t most = 0, sum = work_align((size_t)(w->p->dims.n_token[VIEW_OWN] * w->p->dims.top_k * width) * w->k->real_size);
  for (int k = 0; k < w->op->n_out; k++) {
    size_t n = back_work(w->p, &w->p->val[w->op->out[k]].grad_layout, width, w->k->real_size, true);
    most = n > most ? n : most;
  }
  return sum + most;
}
size_t return_work(const OpWorkArgs *w, Pass pass) {
  if (pass != PASS_FWD) return segments_work(&w->p->dims, NULL);
  const Value *rows = &w->p->val[w->op->in[0]], *out = &w->p->val[w->op->out[0]];
  return back_work(w->p, &rows->layout, out->width, w->k->real_size, rows->dtype == out->dtype);
}
