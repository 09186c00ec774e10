/* Routing traces: which experts the routers of a run chose, step by step, in a file that says nothing of the layout (moe.record), and the
 * same choices forced upon another run (moe.routing: replay, moe.replay). For following a run that goes wrong with another trainer or another
 * layout, and for measuring with real routing. Called by watch.
 *
 * File, little-endian: RoutingHeader; n_layer x u32 layer numbers, padded to 8 bytes; then records of one step each: u64 step; ids u16
 * [n_layer][token of the global batch: sequence x seq_length + position][top_k], best first, padded to 8 bytes. Steps follow each other. */
#ifndef ETALON_ROUTING_TRACE_H
#define ETALON_ROUTING_TRACE_H
#include "base/log.h"
#include "train/setup.h"
#include "train/tap_map.h"

typedef struct RoutingHeader { char magic[8]; uint32_t version, n_layer, top_k, n_expert; uint64_t n_seq, seq_length; } RoutingHeader;

typedef struct RouteRecorder {
  FILE *f;                   /* NULL: another rank writes, or it could not be written any more */
  Log *log; const char *path;
  RoutingHeader head;
  TapMap map;
  int *layer_of[STEP_MAX_CHUNK];       /* [n_val] which of the MoE layers this value is the choice of, or -1 */
  uint64_t *word; int64_t n_word;      /* four ids each: this rank's tokens, zero elsewhere */
} RouteRecorder;

/* Collective. done: steps before this run. 0: the file is made anew; else records up to that step are kept, if it is a trace of the same
 * model and batch. The rank whose log speaks writes. ERR_CONFIG: it can't be written, or it is another file; no experts. */
bool record_open(RouteRecorder *r, Setup *s, Log *log, int64_t done, Err *e);
void record_clear(RouteRecorder *r);
/* An ExecTap of the training step; ctx: the RouteRecorder. */
void record_tap(void *ctx, const Step *s, const Ins *i, ValId v, const void *data, int64_t n_row);
/* Collective, after the step. A record that cannot be written is said once; the run goes on without. */
void record_write(RouteRecorder *r, Setup *s, int64_t it);
void record_close(RouteRecorder *r);

typedef struct RouteReplay {
  FILE *f; const char *path;
  RoutingHeader head;
  int64_t first, n_step;               /* steps in the file */
  uint16_t *id;                        /* of one step */
  const uint16_t **layer;              /* [num_hidden_layers] what exec_set_replay takes; NULL for dense layers */
} RouteReplay;

/* Not collective: every rank reads. done: steps before this run. ERR_DATA: no trace, damaged, of another model or batch, or without a step that is to come. */
bool replay_open(RouteReplay *r, Setup *s, int64_t done, Err *e);
/* The choices of step `it`. ERR_DATA: not in the file, ids that are no experts or come twice. Not collective. */
bool replay_read(RouteReplay *r, int64_t it, Err *e);
void replay_close(RouteReplay *r);
#endif
