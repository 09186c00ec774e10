# shellcheck shell=bash
# Shared by the fire_*.sh tests: a tiny run, what its end must look like, and that nobody is left. Sourced with ETALON "MPIRUN ..." WORKDIR as arguments.
set -u
export OMP_WAIT_POLICY=passive LC_ALL=C TERM=dumb
etalon=$1 mpirun=$2 work=$3
mkdir -p "$work" && cd "$work" || exit 2
rm -rf ./*
n_bad=0

tokens() { for ((i = 0; i < $1; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % $2)))\\0"; done; }
tokens 157 61 >tokens.u16
cat >tiny.yaml <<END
model: {model_type: mixtral, vocab_size: 61, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 20,
        num_local_experts: 4, num_experts_per_tok: 2, initializer_range: 0.1}
numerics: {window: 4, shards: 2}
data: {train: tokens.u16, seq_length: 8}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 4}
optimizer: {lr: 1e-2}
checkpoint: {dir: ckpt, save_interval: 1}
END

complain() {
  n_bad=$((n_bad + 1))
  echo "FAILS  $*"
  sed 's/^/    /' log | tail -n 12
}

# run RANKS [key=value | --option ...]: output in `log`, exit code in rc. One rank needs no launcher.
# The configuration's path marks the processes as this test's.
run() {
  local n=$1 args=() s launch=()
  shift
  for s in "$@"; do case $s in --* | /* | ./*) args+=("$s") ;; *) args+=(--set "$s") ;; esac; done
  # shellcheck disable=SC2206  # words
  if ((n > 1)); then launch=($mpirun -n "$n"); fi
  timeout -k 5 60 "${launch[@]}" "$etalon" train "$work/tiny.yaml" "${args[@]}" >log 2>&1 </dev/null
  rc=$?
}

# ended WHAT CODE [REGEX]: the exit code; one message (of etalon, or of mpirun when a rank was killed) that holds REGEX; nobody left.
ended() {
  local what=$1 code=$2 words=${3:-}
  [ "$rc" = "$code" ] || complain "$what: exit code $rc, not $code"
  local n
  n=$(grep -acE '^(error|fatal): ' log)
  if [ "$code" != 0 ] && [ "$code" != 75 ] && [ "$code" != 137 ] && [ "$n" != 1 ]; then complain "$what: $n messages"; fi
  if [ -n "$words" ] && ! grep -aEq -- "$words" log; then complain "$what: no \"$words\""; fi
  if pgrep -f -- "$work/tiny.yaml" >left; then complain "$what: still running: $(tr '\n' ' ' <left)"; fi
}

last_hash() { grep -ao 'hash weights.*' log | tail -n 1; }
done_testing() {
  if ((n_bad)); then exit 1; fi
  echo "$1"
}
