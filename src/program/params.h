/* Parameters: what there is, how it is cut and where it lies. Every parameter lives in one of four flat arrays of elements, by the ranks that hold other tokens'
 * gradients of it: SHARD (cut over TP or whole on it; summed over DP x CP), TOKEN (used on a rank's own tokens alone: norms, routers; summed over TP too), EXPERT
 * (summed over EDP), MIRROR (a copy that another stage owns: the tied embedding beside the head; its gradient goes there, its weights come from there). A flat array is a row of segments; a segment is one block of one logical tensor (tensor x shard), dense row-major,
 * starting at a multiple of NORM_BLOCK. Initialisation, hashes, norms, ZeRO, checkpoints all walk segments and know nothing else.
 * Built by src/model at start-up; read by plan, exec and train.                                                                                       */
#ifndef ETALON_PARAMS_H
#define ETALON_PARAMS_H
#include "base/arena.h"
#include "comm/mesh.h"
#include "kernel.h"

typedef enum { PGROUP_SHARD, PGROUP_TOKEN, PGROUP_EXPERT, PGROUP_MIRROR, N_PGROUP } ParamGroupId;
typedef enum { PARAM_MATRIX, PARAM_EMBEDDING, PARAM_ROUTER, PARAM_NORM, PARAM_BIAS, N_PARAM_KIND } ParamKind;
typedef enum { CUT_OUT, CUT_IN } CutDim;          /* which dim of [n_out, n_in] the shards cut */

typedef struct Param {
  const char *name;                 /* "L03.attn.q" */
  const char *hf_name;              /* logical tensor's name; an expert's has one %d for its number */
  ParamKind kind; ParamGroupId group; CutDim cut_dim;
  int64_t n_out, n_in;              /* logical shape of one tensor, [n_out, n_in]; 1-D: n_out 1 */
  int n_dim;
  Shards cut;                       /* of the cut dim; n 1: not cut */
  int n_expert, first_expert, n_expert_here;      /* dense: 1, 0, 1 */
  bool elsewhere;                   /* on another pipeline stage: no segments here */
  int n_use;                        /* how often the forward uses it (tied embedding: 2) */
  int mirror_of;                    /* MIRROR: the parameter that it copies; has its tensor number */
  int tensor;                       /* logical number of expert 0; expert e has tensor + e */
  int64_t flat, expert_stride;      /* elements, in the group's flat array */
  int64_t *offset;                  /* [cut.count] first element of each local block, from the expert's start */
} Param;

typedef struct ParamSeg { int param, tensor, shard /* global */; int64_t row, n_row, col, n_col /* rectangle of the logical tensor */; int64_t flat; } ParamSeg;

enum { PARAM_MAX = 4096 };
typedef struct ParamSet {
  Arena *arena;
  const Mesh *mesh; int rank;
  int n; Param *param;
  int n_tensor;                     /* logical tensors of the whole model, all ranks alike */
  int n_norm_leaf;                  /* sum over tensors of their number of shards: the leaves of the gradient norm's outer tree */
  int64_t n_flat[N_PGROUP];         /* elements on this rank, multiples of NORM_BLOCK */
  ParamSeg *seg[N_PGROUP]; int n_seg[N_PGROUP];
} ParamSet;

void params_open(ParamSet *ps, Arena *a, const Mesh *m, int rank);
/* Declares a parameter; returns its number. Order of declaration is the order of tensor numbers, so it must not depend on the rank. */
int  params_add(ParamSet *ps, Param spec);
/* After the last params_add: lays segments out. */
void params_finish(ParamSet *ps);
const char *params_tensor_name(const ParamSet *ps, Arena *a, int tensor);      /* Hugging Face name */
const Param *params_of_tensor(const ParamSet *ps, int tensor);
int  params_norm_leaf(const ParamSet *ps, int tensor, int shard);              /* number of the leaf in the norm's outer tree */
bool param_decays(const Param *p);                                             /* weight decay by kind: matrices, embeddings, routers */
AxisSet pgroup_axes(ParamGroupId g);
const char *pgroup_name(ParamGroupId g);
/* ZeRO-1: member i of a group of n owns flat elements [bound[i], bound[i+1]); whole NORM_BLOCKs; nobody owns a mirror. bound: [n + 1]. */
void params_bounds(const ParamSet *ps, ParamGroupId g, int n, int64_t *bound);
#endif
