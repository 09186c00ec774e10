/* Who works with whom: arithmetic only, no MPI (plan uses it for worlds that are not there). Two views of one world, both pp outermost:
 * pp.dp.cp.tp for dense parts, pp.edp.ep.etp for experts (Megatron Core's parallel folding, arXiv 2504.14960). tp and etp vary fastest. */
#ifndef ETALON_MESH_H
#define ETALON_MESH_H
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

typedef enum { AXIS_PP, AXIS_DP, AXIS_CP, AXIS_TP, AXIS_EDP, AXIS_EP, AXIS_ETP, N_AXIS } Axis;
typedef uint32_t AxisSet;                       /* AXIS_BIT(a) | ...; all from one view (pp belongs to both) */
#define AXIS_BIT(a) (1u << (a))
enum { AXES_TOKENS = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_CP),       /* who holds other tokens of the same stage: dense gradients are summed here */
       AXES_WORLD = AXIS_BIT(AXIS_PP) | AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP),
       AXES_EXPERT_WORLD = AXIS_BIT(AXIS_PP) | AXIS_BIT(AXIS_EDP) | AXIS_BIT(AXIS_EP) | AXIS_BIT(AXIS_ETP),   /* the same ranks, seen by experts */
       N_AXIS_SET = 1 << N_AXIS };
typedef struct Mesh { int size[N_AXIS], world; } Mesh;
/* World ranks in order of the axes' coordinates, which is ascending world rank; self: this rank's place. */
typedef struct Group { int n, self; const int *rank; AxisSet axes; } Group;

/* edp is derived. ERR_CONFIG prints the factorisation that does not multiply up to `world`. */
bool mesh_init(Mesh *m, int world, int pp, int dp, int cp, int tp, int ep, int etp, Err *e);
/* Coordinate of a rank along an axis, in [0, size[a]). CHECK: rank in [0, world). */
int  mesh_coord(const Mesh *m, int rank, Axis a);
/* Is the set within one view? A set that mixes dp, cp, tp with edp, ep, etp has no group. */
bool axes_legal(AxisSet axes);
/* Ranks that differ along these axes alone: the product of their sizes; 1 for no axes. CHECK, here and below: axes_legal. */
int  mesh_group_size(const Mesh *m, AxisSet axes);
/* Place of `rank` among the members of its group. */
int  mesh_group_self(const Mesh *m, int rank, AxisSet axes);
/* World rank of member `place`, in [0, group size), of the group that `rank` is in. */
int  mesh_group_rank(const Mesh *m, int rank, AxisSet axes, int place);
/* The list of ranks lives in `a`. CHECK: rank in [0, world). */
Group mesh_group(const Mesh *m, Arena *a, int rank, AxisSet axes);
const char *axis_name(Axis a);     /* "pp", "edp" ... as in layout.* */
/* Share i of n things dealt to p owners: [share_begin(n, p, i), share_begin(n, p, i + 1)); sizes differ by at most one. */
static inline int64_t share_begin(int64_t n, int p, int i) { return (int64_t)((__int128)n * i / p); }
/* Who owns item: share_begin(n, p, owner) <= item < share_begin(n, p, owner + 1). item in [0, n). */
int share_owner(int64_t n, int p, int64_t item);
#endif
