#!/usr/bin/env bash
# Words that have one place, and habits that have none. usage: words.sh ROOT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
mapfile -t files < <(find src kernels -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) | LC_ALL=C sort)
((${#files[@]})) || { echo "no sources under $1"; exit 1; }
bad=0

awk -f "$here/source.awk" "${files[@]}" | awk -F '\t' '
  function rule(kind, pattern, scope, except, text) {
    n++
    rule_kind[n] = kind; rule_pattern[n] = pattern; rule_scope[n] = scope; rule_except[n] = except; rule_text[n] = text
  }
  function call(names) { return "(^|[^A-Za-z0-9_.>])(" names ") *\\(" }
  function say(text) { printf "%s:%d: %s: %s\n", $2, $3, text, $5; bad = 1 }

  # A variable that can change: no const, or const belongs to what its pointer points to.
  function mutable(text) {
    sub(/=.*/, "", text)
    if (text ~ /\(\*/) return text !~ /\(\* *const/
    if (text !~ /(^|[^A-Za-z0-9_])const([^A-Za-z0-9_]|$)/) return 1
    return text ~ /\*/ && text !~ /\* *const[^*]*$/
  }
  function is_variable(text) {
    if (text ~ /^(typedef|_Static_assert|static_assert|extern "")/) return 0
    gsub(/__attribute__ *\(\([^)]*(\([^)]*\))?[^)]*\)\)/, "", text)
    sub(/=.*/, "", text)
    if (match(text, /\(/) && substr(text, RSTART, 2) != "(*") return 0 # a prototype
    return text !~ /^(static +)?(struct|enum|union)( [A-Za-z0-9_]+)? ?(\{\})?$/
  }

  # A bug strikes, and a signal comes, where no context is at hand.
  function is_hook(file, text) { return file == "src/base/err.c" || text ~ /^static volatile sig_atomic_t / }

  BEGIN {
    rule("C", call("malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strdup|strndup|alloca"), "", "",
         "memory comes from an arena or the slab")
    rule("C", call("exit|quick_exit|abort|assert"), "", "", "use Err or CHECK (base/err.h); main returns")
    rule("C", call("_exit|_Exit"), "", "^src/(base/err|base/fault|comm/watchdog|ckpt/probe)\\.c$", "err.c and watchdog.c end the process, fault.c for a test, probe.c its child")
    rule("C", call("MPI_Abort"), "", "^src/comm/", "only comm ends the world")
    rule("C", "[^A-Za-z0-9_]rank *(==|!=|>) *0[^0-9]|! *[A-Za-z_.>-]*[^A-Za-z0-9_]?rank *(\\)|&&|[|][|])", "^(src|kernels)/",
         "^src/(comm|ckpt)/|^src/base/log\\.", "no rank is special outside comm, ckpt and log")
    rule("C", "[^A-Za-z0-9_](dp|edp|tp|etp|pp|ep|cp)(_size)?((\\.|->)size)? *(>|!=|==) *1[^0-9]", "^(src/(model|exec|program)|kernels)/", "",
         "a group of one does nothing by itself")
    rule("C", "if *\\( *!? *([a-z_]+->|[a-z_]+\\.)?recompute", "^(src/(model|exec)|kernels)/", "", "policies are rows of a table")
    rule("C", "switch *\\( *([a-z_]+->|[a-z_]+\\.)?op(_kind)? *\\)", "", "", "ops are rows of a table")
    rule("S", "MPI_SUM.*(MPI_FLOAT|MPI_DOUBLE|MPI_LONG_DOUBLE)|(MPI_FLOAT|MPI_DOUBLE|MPI_LONG_DOUBLE).*MPI_SUM", "", "",
         "floats are added across ranks nowhere but in reduce.c, by its own trees")
    rule("S", "ncclSum.*nccl(Float|Double|Half|Bfloat)|nccl(Float|Double|Half|Bfloat).*ncclSum", "", "", "floats are added across ranks by the trees of reduce.c")
  }
  {
    for (i = 1; i <= n; i++)
      if ($1 == rule_kind[i] && $5 " " ~ rule_pattern[i] && $2 ~ rule_scope[i] && !(rule_except[i] != "" && $2 ~ rule_except[i])) say(rule_text[i])
  }
  $1 == "G" && is_variable($5) && mutable($5) && !is_hook($2, $5) { say("no globals but const tables") }
  $1 == "S" && $5 ~ /^static / && mutable($5) { say("no static variable that changes") }
  $1 == "P" && $4 > 0 && $5 ~ /^# *(if|ifdef|ifndef|elif|else)([^a-z]|$)/ && $2 !~ /\.h$/ { say("no conditional compilation inside a function") }
  END { exit bad }
' || bad=1

mapfile -t all < <(find src kernels tests configs .ci run CMakeLists.txt README.md -type f 2>/dev/null |
  grep -Ev '\.(h5|png|json)$|^tests/lint/(words|selftest)\.sh$' | LC_ALL=C sort)
if grep -nIHE '(^|[^A-Za-z0-9_])(TODO|FIXME|XXX|HACK)([^A-Za-z0-9_]|$)' "${all[@]}"; then
  echo "the lines above put off what belongs done or in an issue"
  bad=1
fi
exit "$bad"
