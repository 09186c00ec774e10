#!/bin/bash
# What people look at runs with, in parts: eval and sample give the same on every layout, and what the run itself said (look); compare and
# diff find what was made to differ (compare); statistics, pages, traces (watch); routing traces (routing); golden files agree with check and
# with the second opinion (golden).
#   people.sh PART ETALON CHECK_ALTER STRAIGHT GOLDEN.h5 "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive TERM=dumb
part=$1 etalon=$2 alter=$3 straight=$4 golden=$5 work=$7
read -ra mpirun <<<"$6"
config=$(dirname "$(readlink -f "$0")")/people.yaml
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 2
n_bad=0
for ((i = 0; i < 60; i++)); do printf 'abcdefghijklmnopqrstuvw, '; done >line.txt
printf 'A line.\n\nAnother one, and this has no newline at its end' >valid.txt

fail() {
  n_bad=$((n_bad + 1))
  echo "FAILED  $1"
  shift
  printf '  %s\n' "$@"
}
same() { if [ "$2" != "$3" ] || [ -z "$2" ]; then fail "$1" "wanted: $2" "   got: $3"; fi; }
differs() { if [ "$2" = "$3" ] || [ -z "$2" ] || [ -z "$3" ]; then fail "$1" "both: $2"; fi; }
# RANKS ARGS...: what etalon prints
run() {
  local n=$1
  shift
  local launch=("${mpirun[@]}" -n "$n")
  [ "$n" = 1 ] && launch=()
  "${launch[@]}" "$etalon" "$@" 2>&1 </dev/null
}
# CODE TEXT RANKS ARGS...: one error that says TEXT
refused() {
  local code=$1 text=$2 out rc
  shift 2
  out=$(run "$@")
  rc=$?
  if [ $rc != "$code" ] || [ "$(grep -c '^error: ' <<<"$out")" != 1 ] || ! grep -qF -- "$text" <<<"$out"; then
    fail "$*" "exit code $rc, not $code: $out"
  fi
}

# CODE TEXT ARGS...: the exit code, and a line of output or error that says TEXT
says() {
  local code=$1 text=$2 out rc
  shift 2
  out=$(run 1 "$@")
  rc=$?
  if [ $rc != "$code" ] || ! grep -qF -- "$text" <<<"$out"; then fail "$*: no \"$text\"" "exit code $rc, not $code: $out"; fi
}
# NAME RANKS ARGS...: a short run with every hash in NAME.jsonl
hashed() {
  local name=$1 n=$2
  shift 2
  run "$n" train "$config" --set train.train_iters=3 --set log.interval=1 --set log.hash_interval=1 --set log.hash_values=true --set data.valid= \
    --set numerics.dtype=fp64 --set log.metrics="$name.jsonl" --set checkpoint.dir="$name" "$@" >log || fail "$name" "$(tail -n 3 log)"
}

part_look() {
  out=$(run 2 train "$config" --set layout.ep=2 --set train.sample_prompt='ghij' --set train.sample_tokens=30) || fail train "$out"
  same 'the text at the end of training' 'ghijklmnopqrstuvw, abcdefghijklmno' "$(tail -n 1 <<<"$out")"
  said=$(sed -n 's/.*validation loss \([0-9.]*\) over \([0-9]*\) tokens.*/\1 \2/p' <<<"$out")
  number() { sed -n 's/.*step 80 | validation loss \([0-9.]*\) over \([0-9]*\) tokens.*/\1 \2/p'; }
  first=$(run 1 eval "$config" --resume run | number)
  same 'eval: the loss that training printed' "$said" "$(awk '{ printf "%.6f %d", $1, $2 }' <<<"$first")"
  same 'eval: 2 ranks' "$first" "$(run 2 eval --resume run --set layout.ep=2 | number)"
  same 'eval: 3 ranks, other micro-batches' "$first" "$(run 3 eval --resume run/step_00000080.h5 --set train.micro_batch_size=1 | number)"
  same 'eval: FP64, weights converted' "$(awk '{ printf "%.4f %d", $1, $2 }' <<<"$first")" \
    "$(run 1 eval --resume run --set numerics.dtype=fp64 | number | awk '{ printf "%.4f %d", $1, $2 }')"

  # Longer than the window: the context moves on.
  line='xy abcdefghijklmnopqrstuvw, abcdefghijklmnopqrstuvw, abcdefg'
  same 'sample: a long line' "$line" "$(run 1 sample "$config" --resume run --prompt 'xy abcdef' --temperature 0 --tokens 51)"
  loose=$(run 1 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 | md5sum)
  same 'sample: 2 ranks' "$loose" "$(run 2 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 --set layout.ep=2 | md5sum)"
  same 'sample: 4 ranks' "$loose" "$(run 4 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 --set layout.ep=4 | md5sum)"
  differs 'sample: another seed' "$loose" "$(run 1 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 6 | md5sum)"

  # The newest checkpoint is damaged, in its data and then from the beginning: what `train --resume` would take is looked at, and that is said.
  run 1 train "$config" --set train.train_iters=4 --set checkpoint.save_interval=2 --set checkpoint.dir=two >log || fail 'two checkpoints' "$(cat log)"
  older=$(run 1 eval --resume two/step_00000002.h5) text=$(run 1 sample --resume two/step_00000002.h5 --prompt abc --tokens 20)
  for damage in data head; do
    [ $damage = data ] && "$alter" two/step_00000004.h5 add weights/lm_head.weight 1 3 >/dev/null
    [ $damage = head ] && printf 'no checkpoint' | dd of=two/step_00000004.h5 conv=notrunc status=none
    note='resuming from two/step_00000002.h5, the newest that is whole'
    out=$(run 2 eval --resume two) # its configuration too
    same "eval: damage to $damage: noted" 1 "$(grep -c "^note: .*step_00000004.h5.*$note" <<<"$out")"
    same "eval: damage to $damage" "$older" "$(tail -n 1 <<<"$out")"
    out=$(run 1 sample "$config" --resume two --prompt abc --tokens 20)
    same "sample: damage to $damage: noted" 1 "$(grep -c "^note: .*$note" <<<"$out")"
    same "sample: damage to $damage" "$text" "$(tail -n 1 <<<"$out")"
    run 1 golden "$config" two.h5 --steps 1 --resume two >log || fail "golden: damage to $damage" "$(cat log)"
    same "golden: damage to $damage: noted" 1 "$(grep -c "^note: .*$note" log)"
    refused 4 'step_00000004.h5' 1 eval --resume two/step_00000004.h5
  done
  printf 'neither' | dd of=two/step_00000002.h5 conv=notrunc status=none
  refused 4 'no checkpoint in it is whole' 1 eval --resume two
  refused 4 'no checkpoint in it is whole' 1 sample "$config" --resume two --prompt abc

  refused 2 '--resume is missing' 1 eval "$config"
  refused 2 'data.valid is empty' 2 eval --resume run --set data.valid=
  refused 4 'nowhere' 2 sample "$config" --resume nowhere
  refused 2 'not a number from 0' 1 sample --resume run --temperature hot
  refused 2 'model.vocab_size = 300' 2 sample "$config" --resume run --set model.vocab_size=300
  refused 4 'another model' 2 eval "$config" --resume run --set model.hidden_size=16
}

part_compare() {
  hashed a 1
  hashed b 4 --set layout.tp=2 --set layout.ep=2 --set train.micro_batch_size=1
  hashed c 1 --set moe.routing=balanced
  hashed f 1 --set optimizer.lr=1e-2 --set optimizer.min_lr=1e-2
  says 0 'all equal' compare a.jsonl b.jsonl
  says 0 '88 data sets, all bits equal' compare a b
  says 7 'first difference at step 1' compare a.jsonl c.jsonl
  says 7 'first in the forward pass: L00.moe.route.idx' compare a.jsonl c.jsonl
  says 7 'first in the backward pass: lm_head.weight' compare a.jsonl c.jsonl
  # What the runs were told comes before what follows from it.
  says 7 'differ at step 1: learning-rate by' compare a.jsonl f.jsonl
  same 'compare: causes first' 'learning-rate' "$(run 1 compare a.jsonl f.jsonl | sed -n '/^first difference/ { n; s/^ *\([^ ]*\) .*/\1/p; }')"
  says 7 'configurations differ; in the second file optimizer.lr 0.01 (was 0.02), optimizer.min_lr 0.01 (was 0.002)' compare a f
  # One sequence is another one from step 2 on: a hand-made difference in hashes alone.
  sed -E '/"iteration":2,"value/ s/("L00.mid":")./\1x/; /"iteration":2,"value/ s/(sequence_hash":\["[0-9a-f]*","[0-9a-f]*",")./\1x/' b.jsonl >d.jsonl
  says 7 'differ at step 2: first in the forward pass: L00.mid' compare a.jsonl d.jsonl
  says 7 '1 of 4 sequences of the batch; first: 2' compare a.jsonl d.jsonl
  sed -E '/"iteration":3,/ s/("lm loss":[0-9.]*[0-9])/\15/' a.jsonl >e.jsonl
  says 7 'differ at step 3: lm loss by' compare a.jsonl e.jsonl
  says 0 'within the tolerance' compare a.jsonl e.jsonl --tolerance 1e-6
  echo '{"iteration": 9, "lm loss": 1}' >other.jsonl
  says 3 'no step in common' compare a.jsonl other.jsonl
  printf '{"iteration": 9, oops' >>other.jsonl
  says 0 'all equal' compare other.jsonl other.jsonl # cut short while it was written
  echo >>other.jsonl
  says 3 'other.jsonl:2: not a line of JSON' compare other.jsonl other.jsonl
  # A file of several runs is the history of the last: an earlier run that went further, broke off in a line, and differed all along counts no more.
  { cat c.jsonl && printf '{"iteration":4,"lm loss":9}\n{"iteration":5,"lm l'; } >k.jsonl
  hashed k 1
  says 0 'all equal' compare a.jsonl k.jsonl
  says 0 'k.jsonl: steps 1 to 3' compare a.jsonl k.jsonl
  says 0 'k.jsonl: 2 runs; steps 1 to 4 of earlier ones are left out' compare a.jsonl k.jsonl
  echo '{"iteration":4,"lm loss":9}' >>k.jsonl
  run 1 train "$config" --set train.train_iters=3 --set data.valid= --set checkpoint.save_final=false --set numerics.dtype=fp64 --set log.metrics=k.jsonl --resume k >log ||
    fail 'resumed' "$(cat log)"
  says 0 'k.jsonl: 3 runs; steps 1 to 4 of earlier ones are left out' compare a.jsonl k.jsonl
  same 'what a run says of itself' '"first_iteration":4 "resumed_from":"k/step_00000003.h5"' "$(tail -n 2 k.jsonl | grep '"run"' | grep -oE '"(first_it|resumed)[^,]*' | xargs -d '\n')"
  says 4 'is a checkpoint, but a.jsonl' compare a a.jsonl
  says 4 'nowhere: No such file' compare a nowhere
  cp a/step_00000003.h5 a.h5 && "$alter" a.h5 add weights/model.norm.weight 0.5 7 && "$alter" a.h5 add moments/v/lm_head.weight 1e-3
  says 7 'weights/model.norm.weight                                        1 of 32 elements differ, by at most 0.5; relative L2 0.08' ckpt diff a a.h5
  says 7 'differ in 3 of 88 data sets; first in weights/model.norm.weight 1 of 32' ckpt diff a a.h5
  says 7 'differ in 88 of 88' ckpt diff a c
  cp "$golden" g.h5
  says 0 'all bits equal' compare "$golden" g.h5
  "$alter" g.h5 add step1/layers/2/moe_out 1e-9 5 && "$alter" g.h5 add step1/grads/lm_head.weight 1e-3
  says 7 'first in step1/layers/2/moe_out 1 of 416 elements differ, by at most 1e-09' compare "$golden" g.h5
  says 7 'first in step1/grads/lm_head.weight 1 of 1552' compare "$golden" g.h5 --tolerance 1e-8
  "$alter" g.h5 add step1/layers/1/topk_idx 1
  says 7 'first in step1/layers/1/topk_idx 1 of 52' compare "$golden" g.h5 --tolerance 1e-8
}

part_watch() {
  # Two of four experts take all 96 tokens of a step: figures by hand.
  run 2 train "$config" --set train.train_iters=2 --set moe.routing=all_to_one --set log.router_interval=2 --set log.metrics=f.jsonl --set data.valid= \
    --set log.interval=1 --set log.tensorboard=tb --set checkpoint.save_final=false >log || fail 'router statistics' "$(cat log)"
  same 'router statistics' '"tokens_min":0,"tokens_max":96,"tokens_mean":48,"cv":1,"entropy":0.5,"max_violation":1' \
    "$(sed -nE 's/^\{"iteration":2,"router":\[\{"layer":0,(.*),"score_entropy.*,"dropped":0\}\]\}$/\1/p' f.jsonl)"
  same 'TensorBoard: the tags' "2 lm loss, 1 router/L00/entropy" \
    "$(grep -ao 'lm loss' tb/events.out.tfevents.* | wc -l) lm loss, $(grep -ao router/L00/entropy tb/events.out.tfevents.* | wc -l) router/L00/entropy"

  cp f.jsonl '<f>.jsonl'
  says 0 'numbers of steps 1 to 2' report '<f>.jsonl' page.html
  same 'report: plots' 10 "$(grep -o '<svg' page.html | wc -l)"
  same 'report: needs nothing else' 0 "$(grep -cE 'https?:|src=|<link|<f>' page.html)"
  refused 2 'cannot be written' 1 report f.jsonl nowhere/page.html
  refused 3 'not a line of JSON' 1 report log page.html

  # Two pipeline stages: every instruction of the plan is in the trace of every step; shares of the profile add up.
  staged=(--set model.num_hidden_layers=2 --set layout.pp=2 --set data.valid= --set checkpoint.save_final=false)
  run 2 train "$config" "${staged[@]}" --set train.train_iters=5 --set train.profile=true --set train.trace=trace.json --set train.trace_start=3 \
    --set train.trace_steps=2 >log || fail 'trace' "$(cat log)"
  planned() { "$etalon" plan "$config" "${staged[@]}" --ranks 2 --rank "$1" --print | grep -cE '^ +[0-9]+ [a-z]'; }
  if command -v python3 >/dev/null; then
    python3 "$(dirname "$config")/trace_check.py" trace.json 2 "$(planned 0)" "$(planned 1)" >check 2>&1 || fail 'trace' "$(tail -n 1 check)"
  fi
  grep -q '^profile: 4 steps, mean of 2 ranks' log || fail 'profile' "$(tail -n 60 log)"
  same 'profile: shares' 100 "$(awk '$2 == "all" || /^\(between/ { gsub(/[^0-9. ]/, ""); sum += $1 } END { printf "%.0f", sum }' log)"
  run 1 train "$config" --set train.train_iters=2 --set train.trace=nowhere/t.json --set data.valid= --set checkpoint.save_final=false >log 2>&1
  same 'trace: a path that cannot be written' 2 $?

  # A run that is stopped early leaves the steps that it has traced, in one JSON object, and says so in its metrics.
  run 2 train "$config" --set data.valid= --set train.trace='early "é".json' --set train.trace_start=1 --set train.trace_steps=9 \
    --set train.max_minutes=1e-6 --set checkpoint.dir=early --set log.metrics=early.jsonl >log
  same 'stopped early: exit code' 75 $?
  same 'stopped early: steps in the trace' '"step":1,' "$(grep -o '"step":[0-9]*,' 'early "é".json' | sort -u)"
  same 'stopped early: the last line' ']}' "$(tail -n 1 'early "é".json')"
  same 'stopped early: events' '"checkpoint","event_detail":"early/step_00000001.h5 (training stood still for |"trace","event_detail":"early \"é\".json"}|' \
    "$(sed -nE 's/^\{"iteration":1,"event":(.*)$/\1/p' early.jsonl | sed 's/ for .*/ for /' | tr '\n' '|')"
  run 1 train "$config" --set data.valid= --set train.trace=/dev/full --set train.trace_start=1 --set train.max_minutes=1e-6 --set checkpoint.dir=early --set checkpoint.overwrite=true >log
  same 'stopped early: a trace that cannot be written' '75 1' "$? $(grep -c '^warning: train.trace: /dev/full cannot be written' log)"
}

part_routing() {
  # A routing trace belongs to no layout; its choices forced on the run that made them change nothing, and they overrule another router.
  traced() { # NAME RANKS ARGS...: three steps, weights' hash into $traced_hash
    local name=$1 n=$2
    shift 2
    run "$n" train "$config" --set train.train_iters=3 --set log.interval=1 --set data.valid= --set checkpoint.dir="$name" "$@" >log ||
      fail "$name" "$(tail -n 3 log)"
    traced_hash=$(sed -nE 's/.*hash weights ([0-9a-f]+) .*/\1/p' log | tail -n 1)
  }
  traced t1 1 --set moe.record=t1.routes --set checkpoint.save_interval=1
  learned=$traced_hash
  traced t2 4 --set moe.record=t2.routes --set layout.tp=2 --set layout.ep=2
  cmp -s t1.routes t2.routes || fail 'moe.record: another layout, another file' "$(cmp t1.routes t2.routes)"
  traced t3 2 --set moe.routing=replay --set moe.replay=t1.routes --set moe.record=t3.routes --set layout.ep=2
  same 'moe.replay: the bits of the run itself' "$learned" "$traced_hash"
  traced t4 1 --set moe.routing=all_to_one --set moe.record=t4.routes
  differs 'moe.routing: all to one' "$learned" "$traced_hash"
  forced=$traced_hash
  traced t5 2 --set moe.routing=replay --set moe.replay=t4.routes --set moe.record=t5.routes --set layout.cp=2
  same 'moe.replay: of another routing' "$forced" "$traced_hash"
  cmp -s t4.routes t5.routes || fail 'moe.record of a replay' "$(cmp t4.routes t5.routes)"
  # A resumed run takes its trace up where the checkpoint is.
  cp t1.routes t6.routes
  run 1 train "$config" --set train.train_iters=3 --set data.valid= --set checkpoint.save_final=false --set moe.record=t6.routes \
    --resume t1/step_00000001.h5 >log || fail 'moe.record: resumed' "$(tail -n 3 log)"
  cmp -s t1.routes t6.routes || fail 'moe.record: resumed' "$(cmp t1.routes t6.routes)"
  same 'moe.record: the size' $((40 + 8 + 3 * (8 + 4 * 24 * 2 * 2))) "$(stat -c %s t1.routes)"
  replay=(--set moe.routing=replay --set data.valid= --set checkpoint.save_final=false)
  refused 3 'has steps 1 to 3, this run needs 1 to 80' 2 train "$config" "${replay[@]}" --set moe.replay=t1.routes
  refused 3 'no routing trace' 2 train "$config" "${replay[@]}" --set moe.replay=line.txt
  refused 3 'a routing trace with data.seq_length 24 (here 23)' 1 train "$config" "${replay[@]}" --set moe.replay=t1.routes --set data.seq_length=23
  refused 3 'model.num_local_experts 4 (here 6), model.num_experts_per_tok 2 (here 3), the number of MoE layers 1 (here 2)' 1 train "$config" "${replay[@]}" \
    --set moe.replay=t1.routes --set model.num_local_experts=6 --set model.num_experts_per_tok=3 --set model.num_hidden_layers=2
  refused 3 'No such file' 1 train "$config" "${replay[@]}" --set moe.replay=nowhere
  refused 2 'replay needs a routing trace' 1 train "$config" "${replay[@]}"
  refused 2 'only by routing replay' 1 train "$config" --set moe.replay=t1.routes
  printf '\377\377' | dd of=t6.routes bs=1 seek=100 conv=notrunc status=none
  refused 3 'is damaged at step 1' 1 train "$config" "${replay[@]}" --set moe.replay=t6.routes --set train.train_iters=3
  refused 2 'moe.record: the model has no experts' 1 train "$config" --set moe.record=x --set model.model_type=llama --set model.num_local_experts=0
}

part_golden() {
  hashed a 1
  # Golden files of our own: the same on every layout, what check computes, and what the straight-line second opinion computes.
  small=(--set data.seq_length=10 --set train.global_batch_size=3 --set model.initializer_range=0.2 --set model.router_z_loss_coef=0.01)
  says 0 '4 steps of 3 x 10 tokens, 22 tensors' golden "$config" ./g1.h5 --steps 4 "${small[@]}"
  run 2 golden "$config" g2.h5 --steps 4 "${small[@]}" --set layout.cp=2 --set train.micro_batch_size=1 >log || fail 'golden: 2 ranks' "$(cat log)"
  says 0 'data sets, all bits equal' compare g1.h5 g2.h5
  says 0 'after_last                 22' check g1.h5
  run 2 check g1.h5 --set layout.ep=2 >log || fail 'check: 2 ranks' "$(tail -n 1 log)"
  grep -qE '^step1/grads +22 .* 0.00e\+00 ' log || fail 'check: other bits than the file' "$(tail -n 5 log)"
  run 1 golden "$config" ./g3.h5 --steps 3 "${small[@]}" --set numerics.mode=native >log || fail 'golden: native' "$(cat log)"
  "$straight" ./g3.h5 >log 2>&1 || fail 'golden: the second opinion' "$(tail -n 5 log)"
  run 1 train "$config" --set numerics.dtype=fp64 --set train.train_iters=4 --set log.metrics=next.jsonl --set log.interval=1 --set data.valid= \
    --set checkpoint.save_final=false --resume a >log || fail 'step 4' "$(cat log)"
  loss=$(sed -nE 's/.*"iteration":4,.*"lm loss":([0-9]\.[0-9]{5}).*/\1/p' next.jsonl)
  says 0 "loss $loss" golden "$config" ./g4.h5 --steps 1 --resume a
  # Another type: the file says which, check takes it, and the bits are equal. What the configuration says otherwise is told.
  run 1 golden "$config" ./g6.h5 --steps 3 "${small[@]}" --set numerics.dtype=fp32 --set optimizer.lr=0.03 >log || fail 'golden: fp32' "$(cat log)"
  for type in fp32 bf16; do
    run 1 golden "$config" ./g5.h5 --steps 3 "${small[@]}" --set numerics.dtype=$type >log || fail "golden: $type" "$(cat log)"
    grep -qE "^note: not as the configuration says: moe.aux_scope global \(was sequence\), optimizer.lr_decay_style constant \(was cosine\), schedule.name all_forward" log ||
      fail "golden: $type: the note" "$(cat log)"
    run 2 check g5.h5 --set layout.ep=2 >log || fail "check: $type" "$(tail -n 3 log)"
    same "check: $type: equal bits" 2 "$(grep -cE '^(step1/grads|after_last) +22 .* 0.00e\+00 ' log)"
    says 7 'configurations differ: "lr": 0.02 and 0.03' compare g5.h5 g6.h5
  done
  refused 4 'cannot be written' 2 golden "$config" nowhere/x.h5
  refused 2 'one constant learning rate' 1 golden "$config" x.h5 --set optimizer.lr_warmup_iters=2
  if [ -e x.h5 ] || [ -e x.h5.part ]; then fail "golden: something is left behind"; fi
}

"part_$part"
echo "people, $part: $n_bad failed"
[ $n_bad = 0 ]
