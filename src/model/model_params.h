/* Parameter numbers by role; private to src/model. */
#ifndef ETALON_MODEL_PARAMS_H
#define ETALON_MODEL_PARAMS_H
#include "model/model.h"
typedef struct LayerParams { int norm1, q, k, v, o, norm2, router, gate, up, down; } LayerParams;
struct ModelParams { int embed, norm, head /* this rank's: the embedding, its mirror, or its own */; LayerParams *layer; };
#endif
