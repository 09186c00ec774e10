/* What a run tells while it runs: a console line, a progress bar, JSONL (names as in Megatron's logs). Rank 0 writes. */
#ifndef ETALON_METRICS_H
#define ETALON_METRICS_H
#include "base/log.h"
#include "train/state.h"
#include "train/tensorboard.h"

typedef struct Metrics {
  Log *log; FILE *json;             /* NULL: none, or not this rank */
  TensorBoard tb;
  const Job *job; World *world;
  double model_flops;               /* of the whole world, one step */
  double peak_flops;                /* measured GEMM peak, sum over ranks; FLOP/s */
  double start, last; int64_t first_it, last_it;
  double pass_seconds;              /* in forward and backward since `last` */
} Metrics;

/* Opens the JSONL file (appends, after a newline where a run broke off in a line) and TensorBoard's; ERR_CONFIG when it can't. Collective: measures the GEMM peak of all ranks at once. */
bool metrics_open(Metrics *m, Log *log, const Job *j, World *w, int64_t first_it, Err *e);
/* Before the first line: where this run begins, for readers of a file that holds several. from: step 0 and no file where it does not resume. */
void metrics_begin(Metrics *m, const StateFrom *from);
void metrics_close(Metrics *m);
/* After each line written to m->json. A file that cannot be written (a full disk) is said once and closed: m->json is NULL then, and the run goes on. */
void metrics_line_end(Metrics *m);
/* After iteration `it`: `seconds` in its exec_run. Prints every log.interval iterations. */
void metrics_step(Metrics *m, const StepResult *r, int64_t it, int64_t consumed, double lr);
void metrics_eval(Metrics *m, int64_t it, double loss, int64_t n_token);
void metrics_hash(Metrics *m, int64_t it, uint64_t weight, const uint64_t *grad /* NULL: none */, uint64_t moment1, uint64_t moment2, const uint64_t *master /* NULL: none */);
/* What happened beside training: a word of ours, and what goes with it (a path, a reason). */
void metrics_event(Metrics *m, int64_t it, const char *event, const char *detail);
/* Losses that StepResult's statistics hold, summed over layers: load balancing and z, without coefficients; load: worst layer's max over mean rows per expert. */
typedef struct RouterStats { double aux, z, load_max; int n_layer; } RouterStats;
RouterStats metrics_router(const Job *j, const StepResult *r);
#endif
