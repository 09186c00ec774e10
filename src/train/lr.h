/* Learning rate: a pure function of the iteration, in FP64 on the host (Megatron's styles). */
#ifndef ETALON_LR_H
#define ETALON_LR_H
#include "config/config.h"
#include "exec/exec.h"
/* it: 1-based iteration. Warm-up rises linearly from 0 to lr over lr_warmup_iters; then the style's decay to min_lr at lr_decay_iters and min_lr after it. WSD: lr is
 * stable until the last lr_wsd_decay_iters iterations before lr_decay_iters, then falls linearly. */
double lr_at(const Config *c, int64_t it);
/* What update t (from 1) makes of the gradients, at learning rate lr. */
UpdateArgs update_args(const Config *c, double lr, int64_t t);
#endif
