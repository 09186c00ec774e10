/* Who works with whom: arithmetic only, no MPI (plan uses it for worlds that are not there). Two views of one world, both pp outermost:
 * pp.dp.cp.tp for dense parts, pp.edp.ep.etp for experts (Megatron Core's parallel folding). tp and etp vary fastest.    */
#ifndef ETALON_MESH_H
#define ETALON_MESH_H
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

typedef enum { AXIS_PP, AXIS_DP, AXIS_CP, AXIS_TP, AXIS_EDP, AXIS_EP, AXIS_ETP, N_AXIS } Axis;
typedef uint32_t AxisSet;                       /* AXIS_BIT(a) | ...; all from one view (pp belongs to both) */
#define AXIS_BIT(a) (1u << (a))
enum { AXES_TOKENS = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_CP),       /* who holds other tokens of the same stage: dense gradients are summed here */
       AXES_WORLD = AXIS_BIT(AXIS_PP) | AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP) };
typedef struct Mesh { int size[N_AXIS], world; } Mesh;
typedef struct Group { int n, self; const int *rank; AxisSet axes; } Group;   /* world ranks in order of the axes' coordinates; self: this rank's place */

/* edp is derived. ERR_CONFIG prints the factorisation that does not multiply up to `world`. */
bool mesh_init(Mesh *m, int world, int pp, int dp, int cp, int tp, int ep, int etp, Err *e);
int  mesh_coord(const Mesh *m, int rank, Axis a);
int  mesh_group_size(const Mesh *m, AxisSet axes);
Group mesh_group(const Mesh *m, Arena *a, int rank, AxisSet axes);
const char *axis_name(Axis a);
/* Share i of n things dealt to p owners: [share_begin(n, p, i), share_begin(n, p, i + 1)); sizes differ by at most one. */
static inline int64_t share_begin(int64_t n, int p, int i) { return (int64_t)((__int128)n * i / p); }
int share_owner(int64_t n, int p, int64_t item);
#endif
