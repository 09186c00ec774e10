/* The network, written once: a family is a row in family_table (model.c) and a builder that reads like the forward pass. Builds the program and declares
 * the parameters it needs. Called at start-up by train and plan.                                                       */
#ifndef ETALON_MODEL_H
#define ETALON_MODEL_H
#include "config/config.h"
#include "program/op.h"

/* Declares every parameter of the model in an order that no layout changes. Parameters that the rank does not hold are declared too (no segments). */
typedef struct ModelParams ModelParams;
ModelParams *model_declare(ParamSet *ps, const Config *c);
/* The forward pass of the whole model for one micro-batch: tokens, labels -> losses [T]. */
void model_build(Program *p, const Config *c, const ModelParams *mp);
/* Sizes of a rank for programs over this deal. */
Dims model_dims(const Config *c, const Mesh *m, int rank, const Deal *d);
#endif
