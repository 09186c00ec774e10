#!/usr/bin/env bash
# What each axis costs on two cores: two ranks, against one rank with two threads. And how long the stages of a pipeline wait for each other, measured and simulated.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/rig.sh"
model=$(pick medium small)
cp_window=$(($(seq_length_of "$model") / 4)) # so that a zigzag deals equal work to two ranks
readonly modes="native canonical" schedules="1f1b interleaved zero_bubble all_forward"

# A ring adds up in an order of its own: native mode only.
layouts_of() { echo threads dp tp pp ep cp cp-a2a; if [[ $1 == native ]]; then echo cp-ring; fi; echo dp-zero3; }

# layout NAME: ranks, then settings.
layout() {
  case $1 in
  threads) echo 1 device.threads=2 ;;
  dp) echo 2 ;;
  tp) echo 2 layout.tp=2 numerics.shards=2 ;;
  pp) echo 2 layout.pp=2 ;;
  ep) echo 2 layout.ep=2 ;;
  cp) echo 2 layout.cp=2 numerics.window=$cp_window ;;
  cp-a2a) echo 2 layout.cp=2 layout.cp_comm_type=a2a numerics.window=$cp_window ;;
  cp-ring) echo 2 layout.cp=2 layout.cp_comm_type=p2p numerics.window=$cp_window ;;
  dp-zero3) echo 2 optimizer.shard_parameters=true ;;
  esac
}

# plan_of NAME: memory of the rank that needs most, then what all ranks send over each set of axes, those of a few bytes left out.
plan_of() {
  local rank
  for ((rank = 0; rank < ranks_of[$1]; rank++)); do plan_variant "$1" --rank "$rank"; done | awk '
    /^rank [0-9]+: device / { if ($4 > memory) memory = $4 }
    /^sends over / { if (!($3 in bytes)) order[++n] = $3; bytes[$3] += $4 }
    END {
      printf "%.2f GiB", memory / 2 ^ 30
      for (i = 1; i <= n; i++) if (bytes[order[i]] >= 2 ^ 20) printf "%s %s %.1f", (shown++ ? "," : " |"), order[i], bytes[order[i]] / 2 ^ 20
      print ""
    }'
}

print_axes() {
  local mode name rate
  printf '%-10s %-9s %9s %7s %14s | %s\n' mode layout tokens/s "of dp" "most memory" "MiB sent a step, by axes"
  for mode in $modes; do
    for name in $(layouts_of "$mode"); do
      rate=$(median throughput/tokens_per_sec "$mode.$name")
      IFS="|" read -r memory sent < <(plan_of "$mode.$name")
      printf '%-10s %-9s %9.0f %7s %14s | %s\n' "$mode" "$name" "$rate" \
        "$(calc %.2f "$rate / $(median throughput/tokens_per_sec "$mode.dp")")" "${memory% }" "${sent# }"
    done
  done
}

# Shares of the traced step that ranks spend waiting for other stages: for a message, for room to send, for the end of the step.
measured_bubble() {
  awk 'function field(key) { return substr($0, index($0, "\"" key "\":") + length(key) + 3) + 0 }
    /"ph":"X"/ {
      begin = field("ts"); end = begin + field("dur"); rank = field("pid")
      if (!(rank in first) || begin < first[rank]) first[rank] = begin
      if (end > last[rank]) last[rank] = end
      if ($0 ~ /"cat":"(recv\.|sent|statistics)/) wait[rank] += end - begin
    }
    END {
      for (r in first) { all += last[r] - first[r]; bubble += wait[r] }
      printf "%.1f %%\n", 100 * bubble / all
    }' "$1"
}
simulated_bubble() { plan_variant "$1" --simulate | awk '$1 == "all" { print $(NF - 1), "%" }'; }

declare_schedules() {
  local name chunks
  for name in $schedules; do
    [[ $name == interleaved ]] && chunks=2 || chunks=1
    variant "bubble.$name" 2 "$model" layout.pp=2 schedule.name="$name" layout.chunks=$chunks numerics.mode=native \
      train.trace="$tmp/$name.trace" train.trace_start=2 train.trace_steps=1
  done
}
print_bubbles() {
  local name
  printf '%-14s %9s %10s %10s\n' "pp 2, native" tokens/s measured simulated
  for name in $schedules; do
    printf '%-14s %9.0f %10s %10s\n' "$name" "$(median throughput/tokens_per_sec "bubble.$name")" "$(measured_bubble "$tmp/$name.trace")" \
      "$(simulated_bubble "bubble.$name")"
  done
}

header "1 round; configs/bench_$model.yaml, window $(window_of "$model"), FP32; 2 ranks with a thread each, or one with two (threads)"
for mode in $modes; do
  for name in $(layouts_of "$mode"); do
    read -ra what < <(layout "$name")
    variant "$mode.$name" "${what[0]}" "$model" numerics.mode="$mode" "${what[@]:1}"
  done
done
rounds 1 2
print_axes
echo "bytes: all ranks together, as etalon plan has them, equal to what a run counts; sets of axes below 1 MiB left out. tp: numerics.shards 2, else 1; cp: numerics.window $cp_window"

forget_variants
declare_schedules
rounds 1 2
echo
echo "bubble: share of a step, all ranks together, spent waiting for other stages; 4 micro-batches"
print_bubbles
