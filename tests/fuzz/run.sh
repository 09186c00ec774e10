#!/usr/bin/env bash
# Fuzzes the readers of bytes from outside. usage: run.sh SECONDS|Nx [TARGET ...]
# Each target (all of them by default: config golden_config tokens jsonl checkpoint golden) runs for SECONDS, or for N inputs ("1000000x"), beginning with
# its seeds and with what earlier runs found worth keeping (BUILD/fuzz/corpus). Exit 1: something crashed; the input lies in BUILD/fuzz/crash-*: mend the
# reader, then keep the input in tests/fuzz/seeds/TARGET. BUILD: environment, default build-fuzz. Needs clang and libclang-rt (Debian: libclang-rt-14-dev).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
build=${BUILD:-build-fuzz}
limit=${1:?usage: run.sh SECONDS|Nx [TARGET ...]}
shift
case $limit in
*x) stop=(-runs="${limit%x}") ;;
*) stop=(-max_total_time="$limit") ;;
esac
targets=("$@")
((${#targets[@]})) || targets=(config golden_config tokens jsonl checkpoint golden)

cmake -S . -B "$build" -DETALON_FUZZ=ON >/dev/null
cmake --build "$build" --target fuzzers >/dev/null
# The MPI and HDF5 libraries keep memory. HDF5 files are tried in a child process first, and a small process forks three times as fast.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=1:malloc_context_size=4
failed=0
for target in "${targets[@]}"; do
  corpus=$build/fuzz/corpus/$target
  mkdir -p "$corpus"
  seeds=(tests/fuzz/seeds/"$target")
  length=65536
  if [[ $target == golden ]]; then
    mkdir -p "$build/fuzz/golden-seed"
    cp tests/golden/llama-untied-window.h5 "$build/fuzz/golden-seed/"
    seeds=("$build/fuzz/golden-seed")
    length=400000
  fi
  echo "== $target"
  nice -n 19 "$build/fuzz/fuzz_$target" "${stop[@]}" -max_len=$length -rss_limit_mb=4096 -timeout=60 -artifact_prefix="$build/fuzz/crash-$target-" \
    -print_final_stats=1 -verbosity=0 "$corpus" "${seeds[@]}" || failed=1
done
exit $failed
