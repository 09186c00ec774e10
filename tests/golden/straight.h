/* A second opinion: the whole training step of a LLaMA or Mixtral model as straight-line loops in double, written from the published
 * formulas. It shares nothing with the trainer but the arena: no kernels, no program, no layout, no cleverness. Slow, and made to be
 * read. Used by the golden tests, and beside any run of the trainer whose model fits StraightConfig.
 * LLaMA: arXiv:2302.13971; GQA:
 * arXiv:2305.13245; Mixtral: arXiv:2401.04088; auxiliary loss: Switch, arXiv:2101.03961, in Megatron's top-k form; z-loss: ST-MoE,
 * arXiv:2202.08906; AdamW: arXiv:1711.05101. Conventions: tests/oracle/README.md. */
#ifndef ETALON_TESTS_STRAIGHT_H
#define ETALON_TESTS_STRAIGHT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

typedef struct StraightConfig {
  int64_t vocab, hidden, layers, heads, kv_heads, head_dim;
  int64_t experts /* 0: dense model */, top_k, ffn /* width of an expert */, dense_ffn, first_dense /* layers below are dense */;
  int64_t window;                            /* query t sees keys t-window+1 .. t; 0: all up to t */
  double  theta, eps;                        /* RoPE base; epsilon of RMSNorm */
  bool    norm_topk, tied;
  double  aux_coeff, z_coeff;
} StraightConfig;

typedef struct StraightOptim { double lr, beta1, beta2, eps, weight_decay, clip /* 0: none */; } StraightOptim;

/* A parameter under its Hugging Face name; linears [rows = out, cols = in]; gains have n_dim 1 and rows 1. */
typedef struct StraightParam { const char *name; int n_dim; int64_t rows, cols; double *w, *grad, *m, *v; } StraightParam;

typedef struct StraightRoute {
  int64_t *choice, *counts;                  /* [B*S, top_k] best first; [experts] */
  double  *logits, *weight;                  /* [B*S, experts]; [B*S, top_k] as applied */
} StraightRoute;
typedef struct StraightStep {
  double ce, aux, z, total;                  /* aux and z without their coefficients, summed over MoE layers; ce: mean over valid labels */
  int64_t n_valid;
  double *logits;                            /* [B*S, vocab] */
  double *const *attn_out, *const *hidden;   /* [layers] of [B*S, hidden]: after o_proj; the residual stream after the layer */
  const StraightRoute *route;                /* [layers]; all NULL for a dense layer */
} StraightStep;

typedef struct Straight Straight;
/* Fills `out` [rows, cols] with the weight called `name`. */
typedef bool StraightSource(void *ctx, const char *name, int64_t rows, int64_t cols, double *out, Err *e);

/* Everything lives in `a`. Fails only where the source fails. */
bool straight_open(Straight **s, Arena *a, const StraightConfig *c, StraightSource *source, void *ctx, Err *e);
/* Forward and backward of one whole batch; overwrites every parameter's grad (of `total`, before clipping). tokens, labels: [B, S],
 * label -100: ignored; without a valid label ce is 0 and so are all gradients. Results live in `a` until the caller releases it. */
void straight_step(Straight *s, Arena *a, const int64_t *tokens, const int64_t *labels, int64_t B, int64_t S, StraightStep *out);
/* Clips, then AdamW. Returns the gradient norm before clipping. Gains do not decay, all else does. Gradients keep their values. */
double straight_update(Straight *s, const StraightOptim *o);
StraightParam *straight_params(Straight *s, int *n);
StraightParam *straight_param(Straight *s, const char *name);   /* dies when there is none of that name */
#endif
