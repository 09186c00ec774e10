/* What the tests of attention share: problems with their numbers, the naive softmax, the kernels on all of it at once. */
#ifndef ETALON_TEST_ATTENTION_H
#define ETALON_TEST_ATTENTION_H
#include "kernels_common.h"

typedef struct Problem {
  int tokens /* of a window of the view, 0: all */, D, heads, kv_heads, q_blocks, kv_blocks, window, n_seq, length[4],
      docs /* length of documents, 0: none */;
  View view;
  Shards qs, ks;
  AttnArgs args;
  double *q, *k, *v, *d_o;   /* row-major [T][heads * D] */
  void *kq, *kk, *kv, *kd_o; /* shard-major, element type */
} Problem;

/* The same random numbers for a sequence wherever it lies: `tag` names it. */
static inline void fill(Fix *f, double *x, int64_t width, const View *v, const uint64_t *tag, uint64_t what) {
  (void)f;
  for (int s = 0; s < v->v.n_seq; s++)
    for (int64_t i = v->seq[s] * width; i < v->seq[s + 1] * width; i++)
      x[i] = (double)(float)(4 * rng_uniform((RngKey){tag[s], what, RNG_TEST}, (uint64_t)(i - v->seq[s] * width)) - 2);
}

static inline void problem_open(Fix *f, Problem *p, const uint64_t *tag) {
  view_make(&p->view, p->length, p->n_seq, p->tokens ? p->tokens : 1000, 0);
  if (p->docs) view_documents(&p->view, p->docs);
  p->qs = shards_all(p->q_blocks, p->heads, p->D), p->ks = shards_all(p->kv_blocks, p->kv_heads, p->D);
  p->args = (AttnArgs){.q = p->qs, .kv = p->ks, .head_dim = p->D, .window = p->window, .scale = 1 / sqrt(p->D)};
  int64_t T = p->view.v.n_token, nq = T * p->heads * p->D, nk = T * p->kv_heads * p->D;
  p->q = fix_zeros(f, nq), p->d_o = fix_zeros(f, nq), p->k = fix_zeros(f, nk), p->v = fix_zeros(f, nk);
  fill(f, p->q, p->heads * p->D, &p->view, tag, 1), fill(f, p->d_o, p->heads * p->D, &p->view, tag, 2);
  fill(f, p->k, p->kv_heads * p->D, &p->view, tag, 3), fill(f, p->v, p->kv_heads * p->D, &p->view, tag, 4);
  p->kq = fix_copy(f, shard_pack(f, p->q, &p->qs, T), nq), p->kd_o = fix_copy(f, shard_pack(f, p->d_o, &p->qs, T), nq);
  p->kk = fix_copy(f, shard_pack(f, p->k, &p->ks, T), nk), p->kv = fix_copy(f, shard_pack(f, p->v, &p->ks, T), nk);
}

static const uint64_t TAGS[] = {101, 102, 103, 104};

/* One query row: probabilities over the keys it sees; returns the log-sum-exp. */
static inline double row_softmax(const Problem *p, double *s, int begin, int t, int h) {
  int kv = h / (p->heads / p->kv_heads), from = p->docs ? begin + (t - begin) / p->docs * p->docs : begin;
  if (p->window && t - p->window + 1 > from) from = t - p->window + 1;
  double m = -INFINITY, sum = 0;
  for (int j = from; j <= t; j++) {
    s[j] = p->args.scale * dot(p->q + (t * p->heads + h) * p->D, p->k + (j * p->kv_heads + kv) * p->D, p->D);
    m = fmax(m, s[j]);
  }
  for (int j = begin; j <= t; j++) s[j] = j < from ? 0 : exp(s[j] - m), sum += s[j];
  for (int j = begin; j <= t; j++) s[j] /= sum;
  return m + log(sum);
}

typedef struct Naive {
  double *o, *lse, *dq, *dk, *dv;
} Naive;
static inline Naive naive(Fix *f, const Problem *p) {
  int64_t T = p->view.v.n_token;
  int D = p->D;
  Naive n = {fix_zeros(f, T * p->heads * D), fix_zeros(f, T * p->heads), fix_zeros(f, T * p->heads * D), fix_zeros(f, T * p->kv_heads * D),
             fix_zeros(f, T * p->kv_heads * D)};
  double s[MAX_TOKEN];
  for (int q = 0; q < p->n_seq; q++)
    for (int t = p->view.seq[q]; t < p->view.seq[q + 1]; t++)
      for (int h = 0; h < p->heads; h++) {
        int kv = h / (p->heads / p->kv_heads), begin = p->view.seq[q];
        int64_t at = (t * p->heads + h) * D;
        n.lse[t * p->heads + h] = row_softmax(p, s, begin, t, h);
        double delta = 0;
        for (int j = begin; j <= t; j++)
          for (int d = 0; d < D; d++) n.o[at + d] += s[j] * p->v[(j * p->kv_heads + kv) * D + d];
        for (int d = 0; d < D; d++) delta += p->d_o[at + d] * n.o[at + d];
        for (int j = begin; j <= t; j++) {
          int64_t key = (j * p->kv_heads + kv) * D;
          double ds = s[j] * (dot(p->d_o + at, p->v + key, D) - delta) * p->args.scale;
          for (int d = 0; d < D; d++) {
            n.dv[key + d] += s[j] * p->d_o[at + d];
            n.dq[at + d] += ds * p->k[key + d];
            n.dk[key + d] += ds * p->q[at + d];
          }
        }
      }
  return n;
}

typedef struct Result {
  void *o, *lse, *delta, *dq, *dk, *dv;
} Result;

static inline void work(Fix *f, const AttnArgs *a, const TokenView *qv, const TokenView *kv, AttnPass pass) {
  f->ctx.work = fix_bytes(f, f->k->attention_work(&f->ctx, a, qv, kv, pass));
}

/* All local. */
static inline Result kernel(Fix *f, const Problem *p) {
  const TokenView *v = &p->view.v;
  const AttnArgs *a = &p->args;
  int64_t T = v->n_token, nq = T * shard_total(&a->q), nk = T * shard_total(&a->kv) * attention_planes(a), nh = nq / p->D;
  Result r = {fix_real(f, nq), fix_real(f, nh), fix_real(f, nh), fix_real(f, nq), fix_real(f, nk), fix_real(f, nk)};
  work(f, a, v, v, ATTN_FWD);
  f->k->attention_fwd(&f->ctx, r.o, r.lse, p->kq, p->kk, p->kv, a, v, v);
  f->k->attention_delta(&f->ctx, r.delta, p->kd_o, r.o, a, v);
  work(f, a, v, v, ATTN_BWD);
  f->k->attention_bwd(&f->ctx, r.dq, r.dk, r.dv, p->kd_o, r.lse, r.delta, p->kq, p->kk, p->kv, a, v, v);
  return r;
}

static inline void compare(Fix *f, const Problem *p, const Result *r) {
  int64_t T = p->view.v.n_token, nq = T * p->heads * p->D, nk = T * p->kv_heads * p->D;
  Naive n = naive(f, p);
  fix_compare(f, "o", r->o, shard_pack(f, n.o, &p->qs, T), nq, 40);
  fix_compare(f, "lse", r->lse, n.lse, T * p->heads, 20);
  fix_compare(f, "dq", r->dq, shard_pack(f, n.dq, &p->qs, T), nq, 100);
  fix_compare(f, "dk", r->dk, shard_pack(f, n.dk, &p->ks, T), nk, 200);
  fix_compare(f, "dv", r->dv, shard_pack(f, n.dv, &p->ks, T), nk, 200);
}

/* Rows of some tokens. */
static inline void *take(Fix *f, const void *whole, int64_t n_whole, const int32_t *token, int64_t n, const Shards *s) {
  void *part = fix_real(f, n * shard_total(s));
  shard_rows(f, part, n, whole, n_whole, token, n, s, false);
  return part;
}

#endif
