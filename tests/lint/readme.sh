#!/usr/bin/env bash
# The README's configuration reference is what `etalon config` prints. With --write: puts it there.
# usage: readme.sh ETALON README [--write]
set -euo pipefail
etalon=$1 readme=$2
begin='<!-- config reference -->' end='<!-- end of config reference -->'
expected=$("$etalon" config)
if [[ ${3-} == --write ]]; then
  new=$(mktemp)
  awk -v b="$begin" -v e="$end" -v text="$("$etalon" config | sed 's/\\/\\\\/g')" '$0 == b {print; print ""; print text; print ""; skip = 1} $0 == e {skip = 0} !skip || $0 == b {if ($0 != b) print}' "$readme" >"$new"
  cat "$new" >"$readme"
  rm "$new"
  exit
fi
found=$(awk -v b="$begin" -v e="$end" '$0 == e {exit} on {print} $0 == b {on = 1}' "$readme")
if [[ "$(sed '/^$/d' <<<"$found")" != "$(sed '/^$/d' <<<"$expected")" ]]; then
  diff <(sed '/^$/d' <<<"$found") <(sed '/^$/d' <<<"$expected") | head -20 || true
  echo "README.md: the configuration reference is not what etalon config prints; run tests/lint/readme.sh ETALON README.md --write"
  exit 1
fi
