#!/bin/bash
# Checkpoints of numerics.dtype: bf16: what is in them, handed from layout to layout, and what other types do with them.
#   bf16.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive LC_ALL=C
etalon=$1 work=$3
read -ra mpirun <<<"$2"
config=$(dirname "$(readlink -f "$0")")/spine.yaml
mkdir -p "$work" && cd "$work" || exit 2
rm -rf checkpoints fp32 wide shares
n_bad=0
for ((i = 0; i < 157; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % 97)))\\0"; done >tokens.u16

fail() {
  n_bad=$((n_bad + 1))
  echo "FAILS  $1"
  tail -n 4 log | sed 's/^/    /'
}
train() { # ranks, settings; options go as they are
  local n=$1 args=() s
  shift
  for s in "$@"; do case $s in -* | ./*) args+=("$s") ;; *) args+=(--set "$s") ;; esac; done
  "${mpirun[@]}" -n "$n" "$etalon" train "$config" --set numerics.shards=4 --set optimizer.lr_decay_iters=4 --set train.train_iters=4 "${args[@]}" \
    >log 2>&1 </dev/null
}
last_hash() { grep -ao 'hash weights.*' log | tail -n 1; }
says() { # exit code, words (between semicolons), command
  local want=$1 words=$2 rc w
  shift 2
  "$@" >log 2>&1 </dev/null
  rc=$?
  [ $rc = "$want" ] || fail "$*: exit code $rc, not $want"
  while [ -n "$words" ]; do
    w=${words%%;*} words=${words#"$w"} words=${words#;}
    grep -aEq -- "$w" log || fail "$*: no \"$w\""
  done
}

train 1 numerics.dtype=bf16 || fail 'a run that never stops'
whole=$(last_hash)
case $whole in *masters*) ;; *) fail "no hash of masters: $whole" ;; esac
train 4 numerics.dtype=bf16 layout.tp=2 layout.ep=2 layout.etp=2 checkpoint.dir=checkpoints checkpoint.save_final=true checkpoint.async=true \
  train.train_iters=2 || fail 'first part'
train 3 numerics.dtype=bf16 layout.ep=3 optimizer.shard=false --resume ./checkpoints || fail 'second part'
[ "$(last_hash)" = "$whole" ] || fail "another layout goes on with other bits: $(last_hash), not $whole"
train 2 numerics.dtype=bf16 layout.pp=2 optimizer.shard_parameters=true --resume ./checkpoints || fail 'second part, in shares'
[ "$(last_hash)" = "$whole" ] || fail "a layout in shares goes on with other bits: $(last_hash), not $whole"

# In the background, a model whose numbers outweigh what lists and padding take.
behind() { train "$1" numerics.dtype=bf16 model.hidden_size=128 model.intermediate_size=64 train.train_iters=1 checkpoint.async=true checkpoint.save_final=true "${@:2}"; }
behind 4 layout.tp=2 layout.ep=2 layout.etp=2 checkpoint.dir=wide || fail 'saved in the background'
behind 2 layout.pp=2 optimizer.shard_parameters=true checkpoint.dir=shares || fail 'saved in the background, from shares'
says 0 'all bits equal' "$etalon" ckpt diff wide shares

# The copy of checkpoint.async has each number once, in its own type.
copied() { # bytes a parameter in a model where lists and headers do not count
  "$etalon" plan "$config" --set model.hidden_size=1024 --set model.intermediate_size=4096 --set checkpoint.async=true --set numerics.dtype="$1" |
    awk '/ parameters, /{ n = $1 } /more bytes of host memory for the copy/{ printf "%.1f", $3 / n }'
}
[ "$(copied fp32) $(copied bf16) $(copied fp64)" = '12.0 14.0 24.0' ] || fail "bytes a parameter: $(copied fp32) $(copied bf16) $(copied fp64)"

# Products' weights are rounded masters; norms and routers are masters.
says 0 '^/?weights/model.embed_tokens.weight +bf16;^/?masters/model.embed_tokens.weight +f32;^/?weights/model.norm.weight +f32;moments/v/lm_head.weight +f32' \
  "$etalon" ckpt show checkpoints
says 0 '^/?weights/model.layers.1.block_sparse_moe.gate.weight +f32;experts.2.w1.weight +bf16' "$etalon" ckpt show checkpoints
says 0 '' "$etalon" ckpt verify checkpoints

# Another type is refused by name, both ways; a look at the weights is not.
says 4 'bf16.*f32.*numerics.dtype' train 1 numerics.dtype=fp32 --resume ./checkpoints
cat log >refusal
train 1 numerics.dtype=fp32 checkpoint.dir=fp32 checkpoint.save_final=true train.train_iters=1 || fail 'a run in FP32'
says 4 'f32.*bf16.*numerics.dtype' train 1 numerics.dtype=bf16 --resume ./fp32
says 0 'loss' "$etalon" eval "$config" --resume checkpoints --set data.valid=tokens.u16 --set numerics.dtype=fp64 --set numerics.shards=4
says 0 'loss' "$etalon" eval "$config" --resume fp32 --set data.valid=tokens.u16 --set numerics.dtype=bf16 --set numerics.shards=4
echo "bf16: $n_bad failed"
[ $n_bad = 0 ]
