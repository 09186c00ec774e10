#!/usr/bin/env bash
# Every lint rule finds what it is for, and lets pass what only looks like it. usage: selftest.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -r "$root"' EXIT
bad=0

# put FILE TEXT: the only file of an otherwise clean tree.
put() {
  rm -rf "${root:?}"/*
  mkdir -p "$root/src/base" "$root/kernels" "$root/tests" "$(dirname "$root/$1")"
  printf 'int base_zero(void);\n' >"$root/src/base/clean.h"
  printf '%b' "$2" >"$root/$1"
}
# finds LINT FILE TEXT MESSAGE: the lint fails and says MESSAGE about FILE.
finds() {
  put "$2" "$3"
  local out rc=0
  out=$("$here/$1.sh" "$root" 2>&1) || rc=$?
  if ((rc != 1)) || [[ $out != *"$2"* || $out != *"$4"* ]]; then
    echo "$1.sh, $2, '$3': exit $rc, expected 1 and '$4', got: $out"
    bad=1
  fi
}
passes() {
  put "$2" "$3"
  local out rc=0
  out=$("$here/$1.sh" "$root" 2>&1) || rc=$?
  if ((rc)); then
    echo "$1.sh, $2, '$3': exit $rc, expected 0, got: $out"
    bad=1
  fi
}
repeat() { for ((i = 0; i < $1; i++)); do printf '%s' "$2"; done; }

finds layers src/base/a.c '#include "config/config.h"\n' 'may not see src/config'
finds layers src/config/a.c '#include "device/device.h"\n' 'may not see src/device'
finds layers src/plan/a.c '#include "exec/exec.h"\n' 'may not see src/exec'
finds layers src/exec/a.c '#include "plan/plan.h"\n' 'may not see src/plan'
finds layers src/model/a.c '  #  include "schedule/schedule.h"\n' 'may not see src/schedule'
finds layers src/plan/a.c '#include "comm/comm.h"\n' 'only mesh.h'
finds layers src/plan/a.c '#include "comm/reduce.h"\n' 'only mesh.h'
finds layers src/data/a.c '#include "program/program.h"\n' 'depends on src/base alone'
finds layers src/data/a.c '#include "kernel.h"\n' 'knows no kernels'
finds layers src/exec/a.c '#include <mpi.h>\n' 'belongs in src/comm'
finds layers src/ckpt/a.c '#include <mpi.h>\n' 'belongs in src/comm'
finds layers src/train/a.c '#include <hdf5.h>\n' 'belongs in src/ckpt'
finds layers src/exec/a.c '#include <cuda_runtime.h>\n' 'belongs in src/device'
finds layers src/comm/a.c '#include <assert.h>\n' 'belongs in no file'
finds layers src/exec/a.c '#include "../plan/plan.h"\n' 'begins with ..'
finds layers src/exec/a.c '#include "nowhere/a.h"\n' 'no folder of src'
finds layers src/odd/a.c '#include "base/err.h"\n' 'has no layer'
finds layers kernels/cpu/a.c '#include "base/err.h"\n' 'know nothing of src'
passes layers src/plan/a.c '#include "comm/mesh.h"\n#include "comm/reduce_bytes.h"\n#include "model/model.h"\n#include "plan/b.h"\n#include "b.h"\n'
passes layers src/comm/a.c '#include <mpi.h>\n#include <string.h>\n#include "base/err.h"\n'
passes layers src/main.c '#include "train/train.h"\n'

finds sizes src/base/a.c "$(repeat 601 '\n')" 'more than 600 lines'
finds sizes tests/unit/a.c "$(repeat 601 '\n')" 'more than 600 lines'
finds sizes src/base/a.c "int f(void) {\n$(repeat 99 ' g();\n')}\n" '101 lines, at most 100: int f(void)'
finds sizes src/base/a.c "static int f(int a,\n  int b)\n{\n$(repeat 97 ' if (a) { b++; }\n')}\nint h(void) { return 0; }\n" '101 lines'
passes sizes src/base/a.c "$(repeat 600 '\n')"
passes sizes src/base/a.c "int f(void) {\n$(repeat 98 ' g();\n')}\n"
passes sizes src/base/a.c "static const int a[] = {\n$(repeat 200 ' 1,\n')};\nstatic const char c = '{';\n/* { */ // {\nint f(void) { return \"{\"[0]; }\n"

for word in malloc calloc realloc free strdup exit abort assert _exit; do
  finds words src/exec/a.c "void f(void) {\n  $word(1);\n}\n" 'a.c:2'
done
finds words src/exec/a.c 'void f(void) { MPI_Abort(w, 1); }\n' 'only comm ends'
finds words src/exec/a.c 'void f(void) { if (rank == 0) g(); }\n' 'no rank is special'
finds words src/exec/a.c 'void f(void) { if (w->rank == 0) g(); }\n' 'no rank is special'
finds words src/exec/a.c 'void f(void) { if (!w->rank) g(); }\n' 'no rank is special'
finds words src/exec/a.c 'void f(void) { if (!rank) g(); }\n' 'no rank is special'
finds words src/model/a.c 'void f(void) { if (tp > 1) g(); }\n' 'a group of one'
finds words kernels/a.c 'void f(void) { if (m->ep.size != 1) g(); }\n' 'a group of one'
finds words src/exec/a.c 'void f(void) { if (recompute) g(); }\n' 'policies are rows'
finds words src/exec/a.c 'void f(void) { switch (i->op) {} }\n' 'ops are rows'
finds words src/comm/a.c 'void f(void) { MPI_Allreduce(a, b, n, MPI_FLOAT,\n   MPI_SUM, c); }\n' 'floats are added'
finds words src/comm/a.c 'void f(void) { ncclAllReduce(a, b, n, ncclFloat32, ncclSum, c, s); }\n' 'floats are added'
finds words src/exec/a.c 'static int counter;\n' 'no globals'
finds words src/exec/a.c 'int counter = 3;\n' 'no globals'
finds words src/exec/a.h 'extern int counter;\n' 'no globals'
finds words src/exec/a.c 'static _Thread_local double x[4];\n' 'no globals'
finds words src/exec/a.c 'static const char *names[] = {"a", "b"};\n' 'no globals'
finds words src/exec/a.c 'static void (*hook)(int) = g;\n' 'no globals'
finds words src/exec/a.c 'static struct { int a; } state;\n' 'no globals'
finds words src/exec/a.c 'DEFINE_SUM(float, f)\nstatic struct { int a; } state = {1};\n' 'no globals'
finds words kernels/a.c 'int f(void) {\n  static int calls;\n  return calls++;\n}\n' 'no static variable'
finds words src/exec/a.c 'int f(void) {\n#ifdef X\n  g();\n#endif\n}\n' 'inside a function'
finds words src/exec/a.c '/* TO''DO: later */\n' 'put off'
finds words tests/a.c '// FIX''ME\n' 'put off'
passes words src/base/err.c 'static struct { int a; } hook;\nvoid f(void) { _exit(70); }\n'
passes words src/comm/a.c 'void f(void) { if (rank == 0) g(); MPI_Abort(w, 1); MPI_Allreduce(a, b, n, MPI_UINT64_T, MPI_SUM, c); }\n'
passes words src/exec/a.c '/* malloc( is not here, rank == 0 */ // exit(1)\nconst char *f(void) { return "free(x); if (rank == 0)"; }\n'
passes words src/exec/a.c 'void f(void) { d->free(x); arena_free(y); at_exit(z); if (rank == 03 || n_rank == 1 || step > 1) g(); }\n'
passes words src/exec/a.c 'typedef struct A { int x; } A;\nstruct B { int y; };\nenum { C = 1 };\nint f(void (*g)(int), int b);\nextern const int t[];\n'
passes words src/exec/a.c 'static const char *const n[] = {"a"};\nstatic bool (*const ops[])(void *p) = {f};\nstatic const struct { int a; } t[] = {{1}};\n'
passes words src/exec/a.c 'static const int t[] = {\n#ifdef X\n 1,\n#endif\n 2};\nint f(void) { static const int a[] = {1}; return a[0]; }\n'
passes words src/exec/a.h '#ifndef A\n#ifdef __cplusplus\nextern "C" {\n#endif\nextern const int t;\n#ifdef __cplusplus\n}\n#endif\n#endif\n'
exit "$bad"
