#!/bin/sh
# What `etalon check` must find: one changed number of every quantity, damage, a family that is not there. Each time: the exit code, and one
# line on stderr that says it.
# check_finds.sh ETALON CHECK_ALTER GOLDEN.h5 MPIRUN...
etalon=$1 alter=$2 golden=$3
shift 3
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# expect CODE TEXT COMMAND...
expect() {
  code=$1 text=$2
  shift 2
  "$@" >"$dir/out" 2>"$dir/err"
  rc=$?
  if [ $rc -eq "$code" ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$text" "$dir/err"; then
    echo "ok: $text"
  else
    echo "FAIL: exit code $rc, not $code, or stderr is not one line with \"$text\":"
    cat "$dir/err"
    failed=1
  fi
}

# altered NAME "DELTA [I]" TEXT [SET...]: one number of a copy differs
altered() {
  name=$1 delta=$2 text=$3
  shift 3
  # shellcheck disable=SC2086  # DELTA may be two words
  cp "$golden" "$dir/x.h5" && "$alter" "$dir/x.h5" add "$name" $delta || exit 1
  expect 7 "$text" "$etalon" check "$dir/x.h5" "$@"
}

layer=model.layers.1
altered step1/loss/ce 1e-9 'step1/loss ce'
altered step1/loss/aux 1e-9 'step1/loss aux'
altered step1/loss/z 1e-8 'step1/loss z'
altered step1/loss/total 1e-9 'step1/loss total'
altered step1/logits 1e-8 'step1/logits logits'
altered step1/layers/2/attn_out 1e-8 'step1/attn_out layer 2'
altered step1/layers/0/hidden 1e-8 'step1/hidden layer 0'
altered step1/layers/1/router_logits 1e-8 'step1/router_logits layer 1'
altered step1/layers/2/topk_idx 1 'step1/topk_idx layer 2: 1 values differ'
altered step1/layers/0/topk_weight 1e-8 'step1/topk_weight layer 0'
altered step1/layers/1/moe_out 1e-8 'step1/moe_out layer 1'
altered step1/layers/1/counts 1 'step1/counts layer 1: 1 values differ'
altered step1/grads/$layer.input_layernorm.weight 1e-9 "step1/grads $layer.input_layernorm.weight: relative L2 error"
altered step1/grads/$layer.block_sparse_moe.experts.4.w2.weight 1e-9 "step1/grads $layer.block_sparse_moe.experts.4.w2.weight: relative L2 error"
altered after_step1/$layer.self_attn.o_proj.weight 1e-8 "after_step1 $layer.self_attn.o_proj.weight"
altered after_last/$layer.self_attn.o_proj.weight 1e-8 "after_last $layer.self_attn.o_proj.weight"
altered train/ce 1e-9 'train/ce step 1'
altered step1/logits 0.1 'step1/logits logits' --set numerics.dtype=fp32
altered step1/grads/lm_head.weight 0.01 'step1/grads lm_head.weight' --set numerics.dtype=fp32
altered after_last/lm_head.weight 0.1 'after_last all tensors together' --set numerics.dtype=fp32
altered train/grad_norm 1e-3 'step1/grad_norm step 1' --set numerics.dtype=fp32
altered 'train/grad_norm' '1e-9 3' 'train/grad_norm step 4'
altered 'train/grad_norm' '1e-2 3' 'train/grad_norm step 4' --set numerics.dtype=fp32

# Every rank has a share of the tensor; one message.
cp "$golden" "$dir/x.h5" && "$alter" "$dir/x.h5" add step1/grads/$layer.block_sparse_moe.experts.5.w1.weight 1e-9 || exit 1
expect 7 "step1/grads $layer.block_sparse_moe.experts.5.w1.weight" "$@" -n 2 "$etalon" check "$dir/x.h5" --set layout.ep=2

head -c 100000 "$golden" >"$dir/cut.h5"
expect 4 'cut.h5' "$etalon" check "$dir/cut.h5"
expect 4 'none.h5: no such file' "$etalon" check "$dir/none.h5"
cp "$golden" "$dir/x.h5" && "$alter" "$dir/x.h5" add steps/2/tokens 1000 || exit 1
expect 4 'ids are 0 to' "$etalon" check "$dir/x.h5"
cp "$golden" "$dir/x.h5" && "$alter" "$dir/x.h5" family qwen3_moe || exit 1
expect 2 'family qwen3_moe is not in this version; there are: llama, mixtral' "$etalon" check "$dir/x.h5"
expect 2 'family qwen3_moe is not in this version; there are: llama, mixtral' "$@" -n 2 "$etalon" check "$dir/x.h5"
exit $failed
