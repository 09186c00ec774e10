#!/usr/bin/env bash
# The unit tests of one process under valgrind's memcheck: reads of memory that was never written, accesses outside of blocks. usage: valgrind.sh [TEST ...]
# Builds without AVX-512, which valgrind 3.19 does not know. The other half is `cmake --preset sanitize` with `ctest --preset sanitize`: AddressSanitizer with
# red zones in the arenas. Left out: kernels_math_f64, whose reference has 80 bits (valgrind computes with 64), base, which reserves a tebibyte, and attention,
# which takes very long. BUILD: environment, default build-valgrind. Exit 1: valgrind found something or a test failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
build=${BUILD:-build-valgrind}
tests=("$@")
((${#tests[@]})) || tests=(config config_errors data_files data_sampler text tensorboard device schedule program_deal program_step train_lr gemm
  linear linear_dw kernels_math_f32 kernels_rows kernels_optimizer kernels_xent kernels_route)
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DETALON_ARCH=x86-64-v3 >/dev/null
cmake --build "$build" --parallel 2 --target "${tests[@]/#/test_}" >/dev/null
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self OMP_NUM_THREADS=1
suppress=()
for f in /usr/share/openmpi/openmpi-valgrind.supp tests/valgrind.supp; do [[ -f $f ]] && suppress+=("--suppressions=$f"); done
failed=0
for name in "${tests[@]}"; do
  if nice valgrind -q --error-exitcode=9 --leak-check=no "${suppress[@]}" "$build/test_$name" >"$build/valgrind-$name.log" 2>&1; then
    echo "ok    $name"
  else
    failed=1
    echo "FAILS $name: $build/valgrind-$name.log"
    grep -E '^==|FAILED' "$build/valgrind-$name.log" | head -n 20 || true
  fi
done
exit $failed
