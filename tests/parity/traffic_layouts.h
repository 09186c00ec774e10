/* Layouts of every kind on 1 to 8 ranks, for checks of plan against run. */
#ifndef ETALON_TEST_TRAFFIC_LAYOUTS_H
#define ETALON_TEST_TRAFFIC_LAYOUTS_H
#include <stddef.h>

enum { LAYOUT_SETS = 5 };
static const struct { int ranks; const char *set[LAYOUT_SETS]; } layout[] = {
    {1, {"layout.ep=1"}},
    {2, {"layout.ep=2"}},
    {2, {"layout.tp=2"}},
    {2, {"layout.cp=2"}},
    {2, {"layout.cp=2", "layout.cp_comm_type=a2a"}},
    {2, {"layout.cp=2", "layout.cp_comm_type=p2p", "numerics.mode=native"}},
    {2, {"layout.pp=2"}},
    {2, {"layout.tp=2", "layout.etp=2"}},
    {2, {"layout.pp=2", "model.tie_word_embeddings=true", "schedule.name=zero_bubble"}},
    {2, {"optimizer.shard=false", "train.global_batch_size=1"}},
    {2, {"optimizer.shard_parameters=true"}},
    {3, {"layout.tp=3", "layout.ep=3"}},
    {3, {"layout.cp=3", "optimizer.shard=false"}},
    {3, {"layout.cp=3", "layout.cp_comm_type=a2a", "layout.ep=3", "numerics.dtype=bf16"}},
    {3, {"layout.cp=3", "layout.cp_comm_type=p2p", "numerics.mode=native", "numerics.dtype=bf16"}},
    {4, {"layout.tp=2", "layout.ep=2", "layout.etp=2"}},
    {4, {"layout.pp=2", "layout.cp=2", "layout.ep=2"}},
    {4, {"layout.pp=2", "layout.chunks=2", "schedule.name=interleaved", "layout.etp=2"}},
    {4, {"layout.cp=2", "layout.tp=2", "layout.ep=4", "numerics.mode=native"}},
    {4, {"layout.cp=4", "layout.cp_comm_type=p2p", "numerics.mode=native", "optimizer.shard_parameters=true", "train.micro_batch_size=1"}},
    {4, {"layout.cp=2", "layout.cp_comm_type=p2p", "numerics.mode=native", "layout.pp=2", "numerics.dtype=fp64"}},
    {4, {"layout.ep=4", "schedule.name=all_forward", "moe.aux_scope=global"}},
    {4, {"layout.tp=2", "layout.ep=2", "optimizer.shard_parameters=true"}},
    {6, {"layout.tp=3", "layout.cp=2", "layout.ep=3", "layout.etp=2"}},
    {6, {"layout.tp=3", "layout.cp=2", "layout.ep=3", "layout.cp_comm_type=a2a"}},
    {6, {"layout.tp=3", "layout.cp=2", "layout.ep=3", "layout.cp_comm_type=p2p", "numerics.mode=native"}},
    {8, {"layout.pp=2", "layout.tp=2", "layout.ep=4", "model.tie_word_embeddings=true"}},
    {8, {"layout.tp=2", "layout.cp=2", "layout.etp=2", "layout.ep=2"}},
    {8, {"layout.tp=2", "layout.cp=4", "layout.ep=2", "layout.cp_comm_type=a2a"}},
    {8, {"layout.tp=4", "layout.cp=2", "layout.cp_comm_type=p2p", "numerics.mode=native", "numerics.dtype=bf16"}},
    {8, {"layout.cp=8", "layout.cp_comm_type=p2p", "numerics.mode=native"}},
};
enum { N_LAYOUT = sizeof layout / sizeof *layout };

/* The sets of layout i, then more; NULL at the end. */
static inline void layout_sets(int i, const char **out, const char *const *more) {
  int n = 0;
  for (int k = 0; k < LAYOUT_SETS && layout[i].set[k]; k++) out[n++] = layout[i].set[k];
  while (*more) out[n++] = *more++;
  out[n] = NULL;
}
#endif
