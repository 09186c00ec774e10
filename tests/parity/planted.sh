#!/bin/bash
# Do the parity tests find what they are there for? Faults are planted one by one, a line each; the program must then differ from itself on one rank
# in a run of planted.table. Not part of the default run: it builds the program once for every fault, in a copy of the tree.
#   planted.sh ["MPIRUN ..." [NAME ...]]     names: these faults only
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader} OMPI_MCA_mpi_yield_when_idle=1
root=$(dirname "$(readlink -f "$0")")/../..
mpirun=${1:-mpirun -q --oversubscribe --bind-to none}
[ $# -gt 0 ] && shift
only=" $* "
work=$(mktemp -d "${TMPDIR:-/tmp}/planted.XXXXXX")
tree=$work/tree
trap 'rm -rf "$work"' EXIT
n_missed=0 n_found=0

# name | file | sed's command | what is wrong then
faults() {
  cat <<'END'
none            | src/program/deal.c      | p;d                                                                             | nothing: the runs agree
no_tp_sum       | src/program/params.c    | s/\[PGROUP_TOKEN\] = AXES_TOKENS | AXIS_BIT(AXIS_TP)/[PGROUP_TOKEN] = AXES_TOKENS/ | gains and routers are not summed over TP
expert_group    | src/program/params.c    | s/\[PGROUP_EXPERT\] = AXIS_BIT(AXIS_EDP)/[PGROUP_EXPERT] = AXIS_BIT(AXIS_EP)/   | experts' gradients are summed over those who hold other experts
tree_order      | src/program/op_gather.c | s/plane\[k\] = (const char \*)work + (size_t)(k \* own)/plane[k] = (const char *)work + (size_t)((x.n_recv - 1 - k) * own)/ | planes are added at another place of the tree
tree_left_out   | src/program/op_dispatch.c | s/node, l->partial ? n : 1, slots/node, 1, slots/                               | partial sums of other ETP ranks are dropped
window_owner    | src/program/deal.c      | s/int64_t w = nth_window(&s, i), len/int64_t w = nth_window(\&s, s.n_low + s.n_high - 1 - i), len/ | windows of a CP rank are taken for others
window_place    | src/program/deal.c      | s/position\[t++\] = (int32_t)(from + k)/position[t++] = (int32_t)(d->n_cp > 1 ? k : from + k)/ | positions restart in a window
expert_owner    | src/model/declare.c     | s/first = (int)share_begin(E, ep, self);/first = (int)share_begin(E, ep, ep - 1 - self);/; s/share_begin(E, ep, self + 1) - first/share_begin(E, ep, ep - self) - first/ | an EP rank holds another's experts
sequence_counts | src/program/op_route.c  | /AXIS_BIT(AXIS_CP) . AXIS_BIT(AXIS_TP), sum, n/d                                | load balance counts the rank's tokens alone
mirror_gradient | src/program/lower.c     | s/if (l->o->tied_stages) lower_emit(s, INS_MIRROR_GRAD)/if (false) lower_emit(s, INS_MIRROR_GRAD)/ | the head's part of a tied gradient is lost
mirror_weight   | src/program/lower.c     | s/if (l->o->tied_stages) lower_emit(s, INS_MIRROR_WEIGHT)/if (false) lower_emit(s, INS_MIRROR_WEIGHT)/ | the head's copy of a tied weight is not renewed
norm_twice      | src/exec/optimizer.c    | s/ \&\& x->self\[g\] == 0; k++/; k++/                                           | every replica counts in the gradient norm
labels_by_tp    | src/exec/optimizer.c    | s/comm_allreduce_u64(x->o.world, AXES_TOKENS, &count, 1)/comm_allreduce_u64(x->o.world, AXES_TOKENS | AXIS_BIT(AXIS_TP), \&count, 1)/ | labels count once for each TP rank
loss_by_tp      | src/program/op_head.c   | s/&c->mb->view\[VIEW_OWN\], c->mb->tp_row\[d->tp_self\]/\&c->mb->view[VIEW_TP], 0/ | losses count once for each TP rank
key_heads       | src/program/attn_heads.c | s/for (int t = 0; t < c->p->dims.n_tp; t++) {/for (int t = 0; t < c->p->dims.n_tp \&\& n == 0; t++) {/ | a key head's gradient lacks query heads of other ranks
dealt_heads     | src/program/attn_a2a.c  | s/(i - mine.first) \* mb->view\[VIEW_SEQ\].n_token + g->seq_row/(i - mine.first) * mb->view[VIEW_SEQ].n_token + g->tp_row/ | windows lie at other places of a sequence after the all-to-all
ring_home       | src/program/attn_ring.c | s/step > 0 \&\& step < r.n) sum_into/step > 1 \&\& step < r.n) sum_into/           | what the next rank adds to gradients that pass it is lost
ring_merge      | kernels/cpu/attention_merge.c | s/w.own \* x\[d\]/x[d]/                                               | what was there before a part is not scaled down
ring_block      | src/program/attn_ring.c | s/+ 2 \* r->n - step) % r->n/+ r->n + (step ? step : 0)) % r->n/                | blocks are taken for those of the rank on the other side
embedding_rows  | src/program/op_gather.c | s/for (int i = 0; i < d->n_tp; i++) c->env->k->bits_add/for (int i = 1; i < d->n_tp; i++) c->env->k->bits_add/ | tokens of the first vocabulary shard have no embedding
weight_pass     | src/program/lower_pass.c | s/PASS_BWD_W, mb, d->w_in, d->w_out, kept_d_out(l, chunk, mb, op)/PASS_BWD_W, mb, d->w_in, d->w_out, kept_d_out(l, chunk, 0, op)/ | a late weight gradient takes another micro-batch's
stale_weights   | src/program/lower.c     | s/if (g != PGROUP_MIRROR && !l->o->zero3) lower_emit(s, INS_GATHER)/if (g == PGROUP_EXPERT) lower_emit(s, INS_GATHER)/ | owners keep their new weights to themselves
dense_sum       | src/exec/optimizer.c    | s/^  reduce_scatter(/  if (g != PGROUP_SHARD) reduce_scatter(/                  | dense gradients are not summed over DP and CP
document_start  | src/exec/exec.c         | s/m->view\[VIEW_SEQ\].doc_start = .*;/m->view[VIEW_SEQ].doc_start = NULL;/           | keys forget where documents begin, in the backward over CP
END
}

verdict() { # the runs of the table, as the name says
  local rc good=0 summary
  timeout 300 "$root/tests/parity/parity.sh" "$tree/build/etalon" "$mpirun" "$root/tests/parity/planted.table" "$work/runs" >"$work/result" 2>&1
  rc=$?
  summary=$(tail -n 1 "$work/result")
  case $name-$rc-$summary in none-0-*' 0 differ, '*) good=1 ;; none-*) ;; *-1-*' differ, '*) good=1 ;; esac
  echo "${summary#*: }"
  [ $good = 1 ] && n_found=$((n_found + 1)) && return
  n_missed=$((n_missed + 1))
  head -n 5 "$work/result"
}

build() {
  ninja -C "$tree/build" etalon >"$work/log" 2>&1 && return
  tail -n 5 "$work/log"
  return 1
}

mkdir "$tree" "$tree/tests" && : >"$tree/tests/tests.cmake"
cp -r "$root/src" "$root/kernels" "$root/CMakeLists.txt" "$tree"
cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 && build || exit 2
while IFS='|' read -r name file rest; do
  what=${rest##*|} command=${rest%|*}
  name=${name// /} file=${file// /}
  [ "$only" = '  ' ] || [[ $only == *" $name "* ]] || continue
  printf '%-16s%s: ' "$name" "$what"
  cp "$tree/$file" "$work/sound"
  sed -i "$command" "$tree/$file"
  if [ "$name" != none ] && cmp -s "$tree/$file" "$work/sound"; then
    echo "$file has no such line any more"
    n_missed=$((n_missed + 1))
  elif build; then
    verdict
  else
    n_missed=$((n_missed + 1))
  fi
  cp "$work/sound" "$tree/$file"
done < <(faults)
echo "planted: $n_found as they should be, $n_missed not"
[ $n_missed = 0 ] && [ $n_found -gt 0 ]
