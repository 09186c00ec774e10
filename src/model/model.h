/* The network, written once: a family is a row in family_table (model.c) and a builder that reads like the forward pass. Builds the programs and declares
 * the parameters they need. Called at start-up by train and plan.                                                       */
#ifndef ETALON_MODEL_H
#define ETALON_MODEL_H
#include "config/config.h"
#include "program/op.h"

/* What a virtual pipeline stage computes. Virtual stage v is chunk v / pp of rank stage v % pp. */
typedef struct StageSpan { int first_layer, n_layer; bool embeds, heads; } StageSpan;
/* The spans of all virtual stages: as layout.pp_layers says, else contiguous with the smallest largest cost (layers by their weights in use, the head by its).
 * Fewer layers than stages are legal: some stages only pass on. */
void model_stages(const Config *c, int n_virtual, StageSpan *out);

/* Declares every parameter of the model in an order that no layout changes; those of other stages have no segments here. */
typedef struct ModelParams ModelParams;
ModelParams *model_declare(ParamSet *ps, const Config *c, const StageSpan *span, int n_virtual);
/* The forward pass of one virtual stage for one micro-batch: tokens or received activations -> activations to send, or losses. */
void model_build(Program *p, const Config *c, const ModelParams *mp, const StageSpan *span, int virtual_stage, int n_virtual);
/* Sizes of a rank for programs over this deal. */
Dims model_dims(const Config *c, const Mesh *m, int rank, const Deal *d);
int  model_stat(const ModelConfig *m, int layer);      /* first statistic word of a layer's router (kernel.h, route_fwd) */
int  model_shards(const Config *c);      /* blocks of a cut axis: numerics.shards; native mode: as many as ranks need */
#endif
