#!/usr/bin/env bash
# Files of at most 600 lines, functions of at most 100. usage: sizes.sh ROOT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
mapfile -t files < <(find src kernels tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.sh' \) | LC_ALL=C sort)
((${#files[@]})) || { echo "no sources under $1"; exit 1; }
mapfile -t c_files < <(printf '%s\n' "${files[@]}" | grep -v '\.sh$')

bad=0
awk 'FNR == 601 { printf "%s: more than 600 lines: split it\n", FILENAME; bad = 1 } END { exit bad }' "${files[@]}" || bad=1
awk -f "$here/source.awk" "${c_files[@]}" |
  awk -F '\t' '$1 == "F" && $4 > 100 { printf "%s:%d: %d lines, at most 100: %s\n", $2, $3, $4, $5; bad = 1 } END { exit bad }' || bad=1
exit "$bad"
