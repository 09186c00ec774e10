#include "golden/straight.h"

#include <math.h>
#include <string.h>

/* Shapes: T = B*S tokens, H hidden, Q = heads*head_dim, K = kv_heads*head_dim, E experts, k top_k, F width of an FFN, R = rows of an
 * FFN. */

typedef struct Ffn { /* down(silu(gate x) * up x) */
  StraightParam *gate, *up, *down;
  int64_t width;
} Ffn;

typedef struct FfnTape {
  double *g, *u, *act; /* [R, F] */
} FfnTape;

typedef struct Layer {
  StraightParam *norm1, *q, *k, *v, *o, *norm2, *router;
  Ffn dense, *expert; /* [experts] */
  bool moe;
} Layer;

/* What backward reads again. */
typedef struct LayerTape {
  double *x, *n1, *q, *k, *v, *p /* [B, heads, S, S] */, *ctx, *mid, *n2;
  FfnTape dense;
  double *score /* [T, E] */, *lse /* [T] */;
  FfnTape *slot; /* [T*k], one row each */
  double *out;   /* [T*k, H], before the router's weight */
} LayerTape;

struct Straight {
  StraightConfig c;
  StraightParam *params, *embed, *norm, *head;
  int n_params, room;
  Layer *layers;
  int64_t t; /* updates made */
};

typedef struct Run {
  const Straight *s;
  Arena *a;
  int64_t B, S, T;
  LayerTape *tape;
  double *x, *n; /* last residual stream and its norm */
  StraightRoute *route;
  double **attn_out, **hidden;
} Run;

/* ---- parts ----------------------------------------------------------------------------------------------------------------------- */

static double *reals(Arena *a, int64_t n) { return ARENA_NEW(a, double, n); }

static double dot(const double *x, const double *y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

static void axpy(double *y, double a, const double *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void linear(double *y, const double *x, const StraightParam *w, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t o = 0; o < w->rows; o++) y[r * w->rows + o] = dot(x + r * w->cols, w->w + o * w->cols, w->cols);
}

/* dx += dy W, dW += dy^T x */
static void linear_back(double *dx, const double *dy, const double *x, StraightParam *w, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t o = 0; o < w->rows; o++) {
      axpy(dx + r * w->cols, dy[r * w->rows + o], w->w + o * w->cols, w->cols);
      axpy(w->grad + o * w->cols, dy[r * w->rows + o], x + r * w->cols, w->cols);
    }
}

static void rmsnorm(double *y, const double *x, const StraightParam *gain, double eps, int64_t rows) {
  int64_t H = gain->cols;
  for (int64_t r = 0; r < rows; r++) {
    double inv = 1 / sqrt(dot(x + r * H, x + r * H, H) / (double)H + eps);
    for (int64_t i = 0; i < H; i++) y[r * H + i] = x[r * H + i] * inv * gain->w[i];
  }
}

/* With xhat = x * inv and h = dy * gain: dgain += dy * xhat, dx += inv * (h - xhat * mean(h * xhat)). */
static void rmsnorm_back(double *dx, const double *dy, const double *x, StraightParam *gain, double eps, int64_t rows) {
  int64_t H = gain->cols;
  for (int64_t r = 0; r < rows; r++, x += H, dy += H, dx += H) {
    double inv = 1 / sqrt(dot(x, x, H) / (double)H + eps), mean = 0;
    for (int64_t i = 0; i < H; i++) {
      mean += dy[i] * gain->w[i] * x[i] * inv / (double)H;
      gain->grad[i] += dy[i] * x[i] * inv;
    }
    for (int64_t i = 0; i < H; i++) dx[i] += inv * (dy[i] * gain->w[i] - x[i] * inv * mean);
  }
}

/* Rotates pairs (j, j + d/2) of every head by position * theta^(-2j/d), in place; sign -1 is its transpose. */
static void rope(const Run *r, double *x, int64_t heads, double sign) {
  int64_t d = r->s->c.head_dim, half = d / 2;
  for (int64_t t = 0; t < r->T; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t j = 0; j < half; j++) {
        double angle = (double)(t % r->S) * pow(r->s->c.theta, -2.0 * (double)j / (double)d), c = cos(angle), s = sign * sin(angle);
        double *v = x + (t * heads + h) * d + j, a = v[0], b = v[half];
        v[0] = a * c - b * s;
        v[half] = b * c + a * s;
      }
}

/* In place; returns the log-sum-exp. */
static double softmax(double *x, int64_t n) {
  double max = x[0], sum = 0;
  for (int64_t i = 1; i < n; i++) max = fmax(max, x[i]);
  for (int64_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - max);
  for (int64_t i = 0; i < n; i++) x[i] /= sum;
  return max + log(sum);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void ffn(Arena *a, FfnTape *f, double *y, const double *x, const Ffn *w, int64_t rows) {
  f->g = reals(a, rows * w->width), f->u = reals(a, rows * w->width), f->act = reals(a, rows * w->width);
  linear(f->g, x, w->gate, rows);
  linear(f->u, x, w->up, rows);
  for (int64_t i = 0; i < rows * w->width; i++) f->act[i] = f->g[i] * sigmoid(f->g[i]) * f->u[i];
  linear(y, f->act, w->down, rows);
}

static void ffn_back(Arena *a, const FfnTape *f, double *dx, const double *dy, const double *x, const Ffn *w, int64_t rows) {
  ArenaMark m = arena_mark(a);
  int64_t n = rows * w->width;
  double *dact = reals(a, n), *dg = reals(a, n), *du = reals(a, n);
  linear_back(dact, dy, f->act, w->down, rows);
  for (int64_t i = 0; i < n; i++) {
    double s = sigmoid(f->g[i]);
    du[i] = dact[i] * f->g[i] * s;
    dg[i] = dact[i] * f->u[i] * (s + f->g[i] * s * (1 - s));
  }
  linear_back(dx, dg, x, w->gate, rows);
  linear_back(dx, du, x, w->up, rows);
  arena_release(a, m);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------- */

static int64_t first_key(const StraightConfig *c, int64_t t) { return c->window && t >= c->window ? t - c->window + 1 : 0; }

/* Row of probabilities of query (b, h, t): entries lo..t of [B, heads, S, S]. */
static double *prob_row(const Run *r, double *p, int64_t b, int64_t h, int64_t t) {
  return p + ((b * r->s->c.heads + h) * r->S + t) * r->S;
}

static void attention(const Run *r, const Layer *w, LayerTape *l, double *out) {
  const StraightConfig *c = &r->s->c;
  int64_t d = c->head_dim, group = c->heads / c->kv_heads, T = r->T;
  l->q = reals(r->a, T * c->heads * d), l->k = reals(r->a, T * c->kv_heads * d), l->v = reals(r->a, T * c->kv_heads * d);
  l->ctx = reals(r->a, T * c->heads * d), l->p = reals(r->a, T * c->heads * r->S);
  linear(l->q, l->n1, w->q, T);
  linear(l->k, l->n1, w->k, T);
  linear(l->v, l->n1, w->v, T);
  rope(r, l->q, c->heads, 1);
  rope(r, l->k, c->kv_heads, 1);
  for (int64_t b = 0; b < r->B; b++)
    for (int64_t h = 0; h < c->heads; h++)
      for (int64_t t = 0; t < r->S; t++) {
        double *p = prob_row(r, l->p, b, h, t);
        int64_t lo = first_key(c, t), row = ((b * r->S + t) * c->heads + h) * d;
        for (int64_t j = lo; j <= t; j++)
          p[j] = dot(l->q + row, l->k + ((b * r->S + j) * c->kv_heads + h / group) * d, d) / sqrt((double)d);
        softmax(p + lo, t - lo + 1);
        for (int64_t j = lo; j <= t; j++) axpy(l->ctx + row, p[j], l->v + ((b * r->S + j) * c->kv_heads + h / group) * d, d);
      }
  linear(out, l->ctx, w->o, T);
}

static void attention_back(const Run *r, Layer *w, LayerTape *l, double *dn1, const double *dout) {
  const StraightConfig *c = &r->s->c;
  ArenaMark m = arena_mark(r->a);
  int64_t d = c->head_dim, group = c->heads / c->kv_heads, T = r->T;
  double *dctx = reals(r->a, T * c->heads * d), *dq = reals(r->a, T * c->heads * d), *dp = reals(r->a, r->S);
  double *dk = reals(r->a, T * c->kv_heads * d), *dv = reals(r->a, T * c->kv_heads * d);
  linear_back(dctx, dout, l->ctx, w->o, T);
  for (int64_t b = 0; b < r->B; b++)
    for (int64_t h = 0; h < c->heads; h++)
      for (int64_t t = 0; t < r->S; t++) {
        double *p = prob_row(r, l->p, b, h, t), mean = 0;
        int64_t lo = first_key(c, t), row = ((b * r->S + t) * c->heads + h) * d;
        for (int64_t j = lo; j <= t; j++) {
          int64_t key = ((b * r->S + j) * c->kv_heads + h / group) * d;
          dp[j] = dot(dctx + row, l->v + key, d);
          mean += p[j] * dp[j];
          axpy(dv + key, p[j], dctx + row, d);
        }
        for (int64_t j = lo; j <= t; j++) {
          int64_t key = ((b * r->S + j) * c->kv_heads + h / group) * d;
          double ds = p[j] * (dp[j] - mean) / sqrt((double)d);
          axpy(dq + row, ds, l->k + key, d);
          axpy(dk + key, ds, l->q + row, d);
        }
      }
  rope(r, dq, c->heads, -1);
  rope(r, dk, c->kv_heads, -1);
  linear_back(dn1, dq, l->n1, w->q, T);
  linear_back(dn1, dk, l->n1, w->k, T);
  linear_back(dn1, dv, l->n1, w->v, T);
  arena_release(r->a, m);
}

/* ---- mixture of experts ---------------------------------------------------------------------------------------------------------- */

/* The k best of score [E], best first, the lower id where two are equal. */
static void choose(const double *score, int64_t E, int64_t k, int64_t *choice) {
  for (int64_t j = 0; j < k; j++) {
    choice[j] = -1;
    for (int64_t e = 0; e < E; e++) {
      bool taken = false;
      for (int64_t i = 0; i < j; i++) taken |= choice[i] == e;
      if (!taken && (choice[j] < 0 || score[e] > score[choice[j]])) choice[j] = e;
    }
  }
}

static void moe(const Run *r, const Layer *w, LayerTape *l, StraightRoute *route, double *y, StraightStep *loss) {
  const StraightConfig *c = &r->s->c;
  int64_t H = c->hidden, E = c->experts, k = c->top_k, T = r->T;
  route->logits = reals(r->a, T * E), route->weight = reals(r->a, T * k);
  route->choice = ARENA_NEW(r->a, int64_t, T * k), route->counts = ARENA_NEW(r->a, int64_t, E);
  l->score = reals(r->a, T * E), l->lse = reals(r->a, T), l->slot = ARENA_NEW(r->a, FfnTape, T * k), l->out = reals(r->a, T * k * H);
  linear(route->logits, l->n2, w->router, T);
  memcpy(l->score, route->logits, (size_t)(T * E) * sizeof(double));
  for (int64_t t = 0; t < T; t++) {
    double *s = l->score + t * E, *weight = route->weight + t * k, sum = 0;
    int64_t *choice = route->choice + t * k;
    l->lse[t] = softmax(s, E);
    loss->z += l->lse[t] * l->lse[t] / (double)T;
    choose(s, E, k, choice);
    for (int64_t j = 0; j < k; j++) sum += s[choice[j]];
    for (int64_t j = 0; j < k; j++) {
      int64_t i = t * k + j;
      weight[j] = s[choice[j]] / (c->norm_topk ? sum : 1);
      route->counts[choice[j]]++;
      ffn(r->a, &l->slot[i], l->out + i * H, l->n2 + t * H, &w->expert[choice[j]], 1);
      axpy(y + t * H, weight[j], l->out + i * H, H);
    }
  }
  for (int64_t t = 0; t < T; t++)
    for (int64_t e = 0; e < E; e++)
      loss->aux += (double)E / ((double)k * (double)T * (double)T) * (double)route->counts[e] * l->score[t * E + e];
}

/* dz of one token from the gradient of its weights; ds [E] holds that of its scores on the way. */
static void router_back(const StraightConfig *c, const LayerTape *l, const StraightRoute *route, int64_t t, int64_t T,
                        const double *dweight, double *ds) {
  int64_t E = c->experts, k = c->top_k;
  const int64_t *choice = route->choice + t * k;
  const double *s = l->score + t * E, *weight = route->weight + t * k;
  double sum = 0, mean = 0;
  for (int64_t e = 0; e < E; e++) ds[e] = c->aux_coeff * (double)E / ((double)k * (double)T * (double)T) * (double)route->counts[e];
  for (int64_t j = 0; j < k; j++) sum += s[choice[j]];
  for (int64_t j = 0; j < k; j++) ds[choice[j]] += c->norm_topk ? (dweight[j] - dot(dweight, weight, k)) / sum : dweight[j];
  mean = dot(ds, s, E);
  for (int64_t e = 0; e < E; e++) ds[e] = s[e] * (ds[e] - mean) + c->z_coeff * 2 * l->lse[t] / (double)T * s[e];
}

static void moe_back(const Run *r, const Layer *w, const LayerTape *l, const StraightRoute *route, double *dx, const double *dy) {
  const StraightConfig *c = &r->s->c;
  ArenaMark m = arena_mark(r->a);
  int64_t H = c->hidden, E = c->experts, k = c->top_k, T = r->T;
  double *dz = reals(r->a, T * E), *dweight = reals(r->a, k), *dout = reals(r->a, H);
  for (int64_t t = 0; t < T; t++) {
    for (int64_t j = 0; j < k; j++) {
      int64_t i = t * k + j;
      dweight[j] = dot(dy + t * H, l->out + i * H, H);
      for (int64_t h = 0; h < H; h++) dout[h] = route->weight[i] * dy[t * H + h];
      ffn_back(r->a, &l->slot[i], dx + t * H, dout, l->n2 + t * H, &w->expert[route->choice[i]], 1);
    }
    router_back(c, l, route, t, T, dweight, dz + t * E);
  }
  linear_back(dx, dz, l->n2, w->router, T);
  arena_release(r->a, m);
}

/* ---- a step ---------------------------------------------------------------------------------------------------------------------- */

static void layer_forward(Run *r, int64_t i, StraightStep *loss) {
  const Layer *w = &r->s->layers[i];
  LayerTape *l = &r->tape[i];
  double eps = r->s->c.eps;
  int64_t n = r->T * r->s->c.hidden;
  double *f = reals(r->a, n);
  l->x = r->x, l->n1 = reals(r->a, n), l->mid = reals(r->a, n), l->n2 = reals(r->a, n);
  r->attn_out[i] = reals(r->a, n), r->hidden[i] = r->x = reals(r->a, n);
  rmsnorm(l->n1, l->x, w->norm1, eps, r->T);
  attention(r, w, l, r->attn_out[i]);
  for (int64_t j = 0; j < n; j++) l->mid[j] = l->x[j] + r->attn_out[i][j];
  rmsnorm(l->n2, l->mid, w->norm2, eps, r->T);
  if (w->moe)
    moe(r, w, l, &r->route[i], f, loss);
  else
    ffn(r->a, &l->dense, f, l->n2, &w->dense, r->T);
  for (int64_t j = 0; j < n; j++) r->x[j] = l->mid[j] + f[j];
}

/* dx [T, H]: gradient after the layer on entry, before it on return. */
static void layer_back(Run *r, int64_t i, double *dx) {
  Layer *w = &r->s->layers[i];
  LayerTape *l = &r->tape[i];
  ArenaMark m = arena_mark(r->a);
  int64_t n = r->T * r->s->c.hidden;
  double *dn2 = reals(r->a, n), *dn1 = reals(r->a, n);
  if (w->moe)
    moe_back(r, w, l, &r->route[i], dn2, dx);
  else
    ffn_back(r->a, &l->dense, dn2, dx, l->n2, &w->dense, r->T);
  rmsnorm_back(dx, dn2, l->mid, w->norm2, r->s->c.eps, r->T); /* adds to the residual's gradient */
  attention_back(r, w, l, dn1, dx);
  rmsnorm_back(dx, dn1, l->x, w->norm1, r->s->c.eps, r->T);
  arena_release(r->a, m);
}

/* Mean cross-entropy over valid labels; returns dlogits. */
static double *cross_entropy(Run *r, const int64_t *labels, StraightStep *out) {
  int64_t V = r->s->c.vocab;
  double *d = reals(r->a, r->T * V);
  for (int64_t t = 0; t < r->T; t++) out->n_valid += labels[t] != -100;
  for (int64_t t = 0; t < r->T; t++) {
    if (labels[t] == -100) continue;
    CHECK(labels[t] >= 0 && labels[t] < V, "label %lld", (long long)labels[t]);
    memcpy(d + t * V, out->logits + t * V, (size_t)V * sizeof(double));
    out->ce += (softmax(d + t * V, V) - out->logits[t * V + labels[t]]) / (double)out->n_valid;
    d[t * V + labels[t]] -= 1;
    for (int64_t v = 0; v < V; v++) d[t * V + v] /= (double)out->n_valid;
  }
  return d;
}

void straight_step(Straight *s, Arena *a, const int64_t *tokens, const int64_t *labels, int64_t B, int64_t S, StraightStep *out) {
  const StraightConfig *c = &s->c;
  Run r = {.s = s,
           .a = a,
           .B = B,
           .S = S,
           .T = B * S,
           .tape = ARENA_NEW(a, LayerTape, c->layers),
           .route = ARENA_NEW(a, StraightRoute, c->layers),
           .attn_out = ARENA_NEW(a, double *, c->layers),
           .hidden = ARENA_NEW(a, double *, c->layers)};
  int64_t H = c->hidden, n = r.T * H;
  *out = (StraightStep){.logits = reals(a, r.T * c->vocab), .attn_out = r.attn_out, .hidden = r.hidden, .route = r.route};
  for (int i = 0; i < s->n_params; i++) memset(s->params[i].grad, 0, (size_t)(s->params[i].rows * s->params[i].cols) * sizeof(double));
  r.x = reals(a, n), r.n = reals(a, n);
  for (int64_t t = 0; t < r.T; t++) {
    CHECK(tokens[t] >= 0 && tokens[t] < c->vocab, "token %lld", (long long)tokens[t]);
    memcpy(r.x + t * H, s->embed->w + tokens[t] * H, (size_t)H * sizeof(double));
  }
  for (int64_t i = 0; i < c->layers; i++) layer_forward(&r, i, out);
  rmsnorm(r.n, r.x, s->norm, c->eps, r.T);
  linear(out->logits, r.n, s->head, r.T);
  double *dlogits = cross_entropy(&r, labels, out), *dn = reals(a, n), *dx = reals(a, n);
  out->total = out->ce + c->aux_coeff * out->aux + c->z_coeff * out->z;
  if (out->n_valid == 0) return;
  linear_back(dn, dlogits, r.n, s->head, r.T);
  rmsnorm_back(dx, dn, r.x, s->norm, c->eps, r.T);
  for (int64_t i = c->layers; i-- > 0;) layer_back(&r, i, dx);
  for (int64_t t = 0; t < r.T; t++) axpy(s->embed->grad + tokens[t] * H, 1, dx + t * H, H);
}

/* ---- optimizer ------------------------------------------------------------------------------------------------------------------- */

double straight_update(Straight *s, const StraightOptim *o) {
  double square = 0;
  for (int i = 0; i < s->n_params; i++) square += dot(s->params[i].grad, s->params[i].grad, s->params[i].rows * s->params[i].cols);
  double norm = sqrt(square), scale = o->clip > 0 ? fmin(1, o->clip / (norm + 1e-6)) : 1;
  s->t++;
  double c1 = 1 - pow(o->beta1, (double)s->t), c2 = 1 - pow(o->beta2, (double)s->t);
  for (int i = 0; i < s->n_params; i++) {
    StraightParam *p = &s->params[i];
    double keep = p->n_dim > 1 ? 1 - o->lr * o->weight_decay : 1; /* gains do not decay */
    for (int64_t j = 0; j < p->rows * p->cols; j++) {
      double g = p->grad[j] * scale;
      p->m[j] = o->beta1 * p->m[j] + (1 - o->beta1) * g;
      p->v[j] = o->beta2 * p->v[j] + (1 - o->beta2) * g * g;
      p->w[j] = p->w[j] * keep - o->lr * (p->m[j] / c1) / (sqrt(p->v[j] / c2) + o->eps);
    }
  }
  return norm;
}

/* ---- parameters ------------------------------------------------------------------------------------------------------------------ */

typedef struct Maker {
  Straight *s;
  Arena *a;
  StraightSource *source;
  void *ctx;
  Err *e;
  bool ok;
} Maker;

static StraightParam *param_of(Maker *m, const char *name, int n_dim, int64_t rows, int64_t cols) {
  Straight *s = m->s;
  CHECK(s->n_params < s->room, "more parameters than counted");
  StraightParam *p = &s->params[s->n_params++];
  int64_t n = rows * cols;
  *p = (StraightParam){name, n_dim, rows, cols, reals(m->a, n), reals(m->a, n), reals(m->a, n), reals(m->a, n)};
  if (m->ok) m->ok = m->source(m->ctx, name, rows, cols, p->w, m->e);
  return p;
}
static StraightParam *gain(Maker *m, const char *name, int64_t n) { return param_of(m, name, 1, 1, n); }
static StraightParam *param(Maker *m, const char *name, int64_t rows, int64_t cols) { return param_of(m, name, 2, rows, cols); }

static Ffn ffn_params(Maker *m, const char *prefix, const char *const part[3], int64_t H, int64_t F) {
  return (Ffn){param(m, arena_printf(m->a, "%s%s.weight", prefix, part[0]), F, H),
               param(m, arena_printf(m->a, "%s%s.weight", prefix, part[1]), F, H),
               param(m, arena_printf(m->a, "%s%s.weight", prefix, part[2]), H, F), F};
}

static void layer_params(Maker *m, int64_t i) {
  static const char *const DENSE[3] = {"gate_proj", "up_proj", "down_proj"}, *const EXPERT[3] = {"w1", "w3", "w2"};
  const StraightConfig *c = &m->s->c;
  Layer *l = &m->s->layers[i];
  int64_t H = c->hidden, Q = c->heads * c->head_dim, K = c->kv_heads * c->head_dim;
  const char *p = arena_printf(m->a, "model.layers.%lld.", (long long)i);
  l->norm1 = gain(m, arena_printf(m->a, "%sinput_layernorm.weight", p), H);
  l->q = param(m, arena_printf(m->a, "%sself_attn.q_proj.weight", p), Q, H);
  l->k = param(m, arena_printf(m->a, "%sself_attn.k_proj.weight", p), K, H);
  l->v = param(m, arena_printf(m->a, "%sself_attn.v_proj.weight", p), K, H);
  l->o = param(m, arena_printf(m->a, "%sself_attn.o_proj.weight", p), H, Q);
  l->norm2 = gain(m, arena_printf(m->a, "%spost_attention_layernorm.weight", p), H);
  l->moe = c->experts > 0 && i >= c->first_dense;
  if (!l->moe) {
    l->dense = ffn_params(m, arena_printf(m->a, "%smlp.", p), DENSE, H, c->dense_ffn);
    return;
  }
  l->router = param(m, arena_printf(m->a, "%sblock_sparse_moe.gate.weight", p), c->experts, H);
  l->expert = ARENA_NEW(m->a, Ffn, c->experts);
  for (int64_t e = 0; e < c->experts; e++)
    l->expert[e] = ffn_params(m, arena_printf(m->a, "%sblock_sparse_moe.experts.%lld.", p, (long long)e), EXPERT, H, c->ffn);
}

bool straight_open(Straight **out, Arena *a, const StraightConfig *c, StraightSource *source, void *ctx, Err *e) {
  Straight *s = *out = ARENA_NEW(a, Straight, 1);
  Maker m = {s, a, source, ctx, e, true};
  s->c = *c;
  s->room = (int)(3 + c->layers * (10 + 3 * c->experts));
  s->params = ARENA_NEW(a, StraightParam, s->room);
  s->layers = ARENA_NEW(a, Layer, c->layers);
  s->embed = param(&m, "model.embed_tokens.weight", c->vocab, c->hidden);
  for (int64_t i = 0; i < c->layers; i++) layer_params(&m, i);
  s->norm = gain(&m, "model.norm.weight", c->hidden);
  s->head = c->tied ? s->embed : param(&m, "lm_head.weight", c->vocab, c->hidden);
  return m.ok;
}

StraightParam *straight_params(Straight *s, int *n) { return *n = s->n_params, s->params; }

StraightParam *straight_param(Straight *s, const char *name) {
  for (int i = 0; i < s->n_params; i++)
    if (!strcmp(s->params[i].name, name)) return &s->params[i];
  CHECK(false, "no parameter %s", name);
}
