#include "train/lr.h"

#include <math.h>

typedef double DecayFn(const Config *c, double t, double total); /* share of (lr - min_lr) left after t of `total` decay iterations */
static double decay_constant(const Config *c, double t, double total) { return (void)c, (void)t, (void)total, 1; }
static double decay_linear(const Config *c, double t, double total) { return (void)c, 1 - t / total; }
static double decay_cosine(const Config *c, double t, double total) { return (void)c, 0.5 * (1 + cos(3.14159265358979323846 * t / total)); }
static double decay_wsd(const Config *c, double t, double total) {
  double n = (double)c->optimizer.lr_wsd_decay_iters;
  return t <= total - n || n == 0 ? 1 : (total - t) / n;
}
static DecayFn *const decay[] = {
    [DECAY_CONSTANT] = decay_constant, [DECAY_LINEAR] = decay_linear, [DECAY_COSINE] = decay_cosine, [DECAY_WSD] = decay_wsd};
ROW_FOR_EACH(decay, N_DECAY);

double lr_at(const Config *c, int64_t it) {
  double lr = c->optimizer.lr, low = c->optimizer.min_lr;
  int64_t warm = c->optimizer.lr_warmup_iters, end = c->optimizer.lr_decay_iters ? c->optimizer.lr_decay_iters : c->train.train_iters;
  if (it <= warm) return lr * (double)it / (double)warm;
  if (c->optimizer.lr_decay_style == DECAY_CONSTANT) return lr;
  if (it >= end) return low;
  return low + (lr - low) * decay[c->optimizer.lr_decay_style](c, (double)(it - warm), (double)(end - warm));
}

UpdateArgs update_args(const Config *c, double lr, int64_t t) {
  return (UpdateArgs){.lr = lr,
                      .beta1 = c->optimizer.adam_beta1,
                      .beta2 = c->optimizer.adam_beta2,
                      .eps = c->optimizer.adam_eps,
                      .weight_decay = c->optimizer.weight_decay,
                      .clip_grad = c->optimizer.clip_grad,
                      .t = t};
}
