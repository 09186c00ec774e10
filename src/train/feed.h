/* Tokens of a step to a rank's input buffers: whole sequences are fetched, the windows of the rank's TP view are kept. */
#ifndef ETALON_FEED_H
#define ETALON_FEED_H
#include "train/job.h"
/* Fetches sequence `seq` of the step's global batch: token, label [seq_length]. */
typedef bool FeedFn(void *ctx, int64_t seq, int32_t *token, int32_t *label, Err *e);
/* Fills the input buffers of step `which`. Not collective: the caller agrees on *e. */
bool feed_step(Exec *x, const Job *j, int which, FeedFn *fetch, void *ctx, Err *e);
#endif
