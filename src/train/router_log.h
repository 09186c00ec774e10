/* What the routers of a step did, layer by layer: one line of metrics and TensorBoard's tags router/LNN/... Called by watch. */
#ifndef ETALON_ROUTER_LOG_H
#define ETALON_ROUTER_LOG_H
#include "train/metrics.h"

/* Of one layer, over the global batch. entropy: of the experts' shares of routed rows, divided by that of even shares: 1 is even, 0 is one
 * expert. cv: standard deviation over mean of rows per expert. max_violation: largest over mean, minus 1 (Wang et al. 2024, MaxVio).
 * score_entropy: likewise, of the mean router probabilities. dropped: share of rows that no expert took. */
typedef struct RouterLayer { int layer; double tokens_min, tokens_max, tokens_mean, cv, entropy, max_violation, score_entropy, dropped; } RouterLayer;
/* MoE layers in order; returns how many. out: [num_hidden_layers]. */
int  router_layers(const Job *j, const StepResult *r, RouterLayer *out);
void router_log_write(Metrics *m, const StepResult *r, int64_t it);
#endif
