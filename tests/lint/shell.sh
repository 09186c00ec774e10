#!/usr/bin/env bash
# The scripts pass shellcheck; without it the test is skipped. usage: shell.sh ROOT
set -euo pipefail
cd "$1"
command -v shellcheck >/dev/null || { echo "shellcheck is not installed"; exit 77; }
find run .ci tests configs -path tests/fuzz/seeds -prune -o -type f \( -name run -o -name '*.sh' \) -print0 | xargs -0 shellcheck
