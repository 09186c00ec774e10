#!/usr/bin/env bash
# A folder of src includes only itself and lower layers; each outside library's header has its place. usage: layers.sh ROOT
set -euo pipefail
cd "$1"
mapfile -t files < <(find src kernels -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) | LC_ALL=C sort)
((${#files[@]})) || { echo "no sources under $1"; exit 1; }

awk '
  function say(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, $0; bad = 1 }
  function place(header, where, what) { home[header] = where; home_text[header] = what }
  BEGIN {
    split("base config device comm program model schedule plan exec data ckpt train main", names, " ")
    split("0    1      1      2    3       4     4        5    5    6    6    7     8", levels, " ")
    for (i in names) level[names[i]] = levels[i]
    place("mpi.h", "^src/comm/", "src/comm")
    place("nccl.h", "^src/comm/", "src/comm")
    place("hdf5.h", "^src/ckpt/", "src/ckpt")
    place("cuda.h", "^(src/device|kernels/cuda)/", "src/device and kernels/cuda")
    place("cuda_runtime.h", "^(src/device|kernels/cuda)/", "src/device and kernels/cuda")
    place("cublas_v2.h", "^(src/device|kernels/cuda)/", "src/device and kernels/cuda")
    place("dnnl.h", "^kernels/cpu/gemm", "kernels/cpu/gemm*")
    place("yaml.h", "^src/config/", "src/config")
    place("jansson.h", "^src/(ckpt|config)/|^src/train/jsonl", "src/ckpt, src/config and src/train/jsonl.c")
    place("xxhash.h", "^src/base/", "src/base")
    place("cmocka.h", "^tests/", "tests")
    place("assert.h", "^$", "no file: CHECK is in base/err.h")
  }
  !/^[ \t]*#[ \t]*include/ { next }
  {
    match($0, /["<][^">]*[">]/)
    quoted = substr($0, RSTART, 1) == "\""
    header = substr($0, RSTART + 1, RLENGTH - 2)
    n = split(header, part, "/")
    split(FILENAME, path, "/")
    own = path[2] == "main.c" ? "main" : path[2]
    in_src = path[1] == "src"
    base = part[n]
    if (n == 1 && (base in home) && FILENAME !~ home[base]) say("<" base "> belongs in " home_text[base])
    if (!quoted) next
    if (part[1] == "..") { say("no path begins with .."); next }
    if (n == 1) {
      if (in_src && (base == "kernel.h" || base == "gemm.h") && own ~ /^(base|config|data)$/) say("src/" own " knows no kernels")
      next
    }
    target = part[1]
    if (!(target in level)) { if (in_src) say("no folder of src is called " target); next }
    if (!in_src) { say("kernels know nothing of src"); next }
    if (!(own in level)) { say("src/" own " has no layer"); next }
    if (target != own && level[target] >= level[own]) say("src/" own " (layer " level[own] ") may not see src/" target " (layer " level[target] ")")
    if (own == "data" && target !~ /^(base|data)$/) say("src/data depends on src/base alone")
    if (own == "plan" && target == "comm" && header !~ /^comm\/(mesh|[a-z_]*bytes)\.h$/) say("src/plan may see of comm only mesh.h and *bytes.h")
  }
  END { exit bad }
' "${files[@]}"
