#!/bin/bash
# Layout parity: runs of one group of a table must print the same hashes of weights, gradients and moments, the same loss, learning rate,
# gradient norm and load after every step, and the same validation loss.
#   parity.sh ETALON "MPIRUN ..." TABLE WORKDIR
# A table, line by line (# begins a comment):
#   config FILE             the runs' configuration, beside the table
#   tokens NAME VOCAB N     makes NAME in the work directory: N tokens below VOCAB, two bytes each
#   short NAME KEY          NAME=value stands for --set KEY=value
#   group NAME [k=v ...]    a group begins; these settings hold for all its runs
#   twice NAME [k=v ...]    likewise, but each run is made twice and compared with itself (native mode promises no more)
#   near NAME [k=v ...]     likewise, and its losses and norms are those of the first in all digits that are printed (for FP64)
#   RANKS [k=v ...]         a run; in a group the first is the reference
set -u
export OMP_WAIT_POLICY=passive    # more threads than cores, in some runs
etalon=$1 table=$3 work=$4
read -ra mpirun <<<"$2"
facts=$(dirname "$(readlink -f "$0")")/facts.sed
mkdir -p "$work" && cd "$work" || exit 2
declare -A key=()
mode='' group='' common=() n_run=0 n_bad=0 began=$EPOCHREALTIME

make_tokens() {    # a linear congruence, in octal escapes: the high byte is 0
  local i x=12345 text=''
  for ((i = 0; i < $2; i++)); do
    x=$(((x * 1103515245 + 12345) & 0x7fffffff))
    printf -v text '%s\\0%03o\\0000' "$text" $(((x >> 16) % $1))
  done
  printf '%b' "$text"
}

expand() {         # settings with their short names written out, each after --set
  sets=()
  local s
  for s in "$@"; do sets+=(--set "${key[${s%%=*}]:-${s%%=*}}=${s#*=}"); done
}

hashes() {         # runs; what must be equal into $out, or the end of what it printed
  : >metrics.jsonl
  "${mpirun[@]}" -n "$1" "$etalon" train "$config" --set log.hash_interval=1 --set log.metrics=metrics.jsonl "${sets[@]}" \
    >log 2>&1 </dev/null
  local rc=$?
  n_run=$((n_run + 1))
  out=$(sed -nE -f "$facts" metrics.jsonl)
  [ $rc = 0 ] && [ -n "$out" ] && return
  out="exit code $rc; $(tail -n 3 log)"
  return 1
}

explain() {        # reference, result: the first step that differs, and in what
  local a b x y step='' what='' shown=''
  while read -r a <&3 && read -r b <&4; do
    read -ra x <<<"$a" && read -ra y <<<"$b"
    [ -n "$step" ] && [ "${x[1]}" != "$step" ] && break
    [ "$a" = "$b" ] && continue
    step=${x[1]}
    printf -v shown '%s    reference: %s\n    this run:  %s\n' "$shown" "$a" "$b"
    case $a in
    *weights*)
      [ "${x[3]}" = "${y[3]-}" ] || what+=' weights'
      [ "${x[5]}" = "${y[5]-}" ] || what+=' gradients'
      [ "${x[7]} ${x[8]}" = "${y[7]-} ${y[8]-}" ] || what+=' moments'
      ;;
    *validation*) what+=' validation loss' ;;
    *) what+=' metrics' ;;
    esac
  done 3<<<"$1" 4<<<"$2"
  [ -n "$step" ] && printf '  first difference at step %s:%s\n%s' "$step" "$what" "$shown" && return
  echo "  one run has more lines than the other"
}

near() {           # reference, result: are the numbers of all records the same in nine digits, give or take one of the last?
  paste <(grep -oE '"[^"]+":[-+0-9.e]+' <<<"$1") <(grep -oE '"[^"]+":[-+0-9.e]+' <<<"$2") | awk -F '[:\t]' '
    { d = $2 - $4; size = $2 < 0 ? -$2 : $2; if ($1 != $3 || !(d * d <= (1.1e-8 * size) ^ 2)) bad = 1 }
    END { exit bad || NR == 0 }'
}

report() {         # title, reference, result
  n_bad=$((n_bad + 1))
  echo "DIFFERS  $group: $1"
  case $3 in step*) explain "$2" "$3" ;; *) echo "  $3" ;; esac
  echo "  repeat: cd $work && ${mpirun[*]} -n $n $etalon train $config --set log.hash_interval=1 ${sets[*]}"
}

one_run() {
  local n=$1 title="$*"
  shift
  expand ${common[@]+"${common[@]}"} "$@"
  hashes "$n"
  if [ "$mode" != twice ] && [ -z "$reference" ]; then
    case $out in step*) reference=$out reference_title=$title ;; *) report "$title (reference)" '' "$out" ;; esac
  elif [ "$mode" = near ] && ! near "$reference" "$out"; then
    report "$title (not near the reference: $reference_title)" "$reference" "$out"
  elif [ "$mode" != group ]; then
    local first=$out
    hashes "$n"
    [ "$first" = "$out" ] && case $out in step*) return ;; esac
    report "$title (run twice)" "$first" "$out"
  elif [ "$out" != "$reference" ]; then
    report "$title (reference: $reference_title)" "$reference" "$out"
  fi
}

tables=$(dirname "$table")
while read -ra word; do
  for ((i = 0; i < ${#word[@]}; i++)); do case ${word[i]} in '#'*) word=("${word[@]:0:i}") ;; esac; done
  set -- "${word[@]:1}"
  case ${word[0]-} in
  '') ;;
  config) config=$tables/$1 ;;
  tokens) make_tokens "$2" "$3" >"$1" ;;
  short) key[$1]=$2 ;;
  group | twice | near) mode=${word[0]} group=$1 reference='' && shift && common=("$@") ;;
  [1-9]*) one_run "${word[0]}" "$@" ;;
  *) echo "$table: \"${word[0]}\" is not a word of a table" && exit 2 ;;
  esac
done <"$table"
[ $n_run -gt 0 ] || { echo "$table: no runs" && exit 2; }
printf '%s: %d runs, %d differ, %.1f s\n' "$(basename "$table")" $n_run $n_bad "$(bc <<<"$EPOCHREALTIME - $began" 2>/dev/null || echo 0)"
[ $n_bad = 0 ]
