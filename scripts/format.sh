#!/usr/bin/env bash
# scripts/format.sh [--check]: lays the source out by .clang-format, or only says which files it would change.
# Versions of clang-format disagree, so one is pinned: its wheel is installed under build/tools, away from the system's.
set -euo pipefail
cd "$(dirname "$0")/.."

version=21.1.8
tool=build/tools/clang-format-$version
program=$tool/clang_format/data/bin/clang-format
if [[ ! -x $program ]]; then
  echo "Installing clang-format $version in $tool"
  if ! log=$(python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$tool" "clang-format==$version" 2>&1); then
    printf '%s\n' "$log" >&2
    echo "error: expected to install clang-format $version from PyPI but pip failed: install python3-pip, or put the program at $program" >&2
    exit 1
  fi
fi

mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
present=()
for source in "${sources[@]}"; do [[ -e $source ]] && present+=("$source"); done
if [[ ${1:-} == --check ]]; then
  changed=$("$program" --dry-run --Werror "${present[@]}" 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error: .*//p' | sort -u) || true
  if [[ -n $changed ]]; then
    printf '%s\n' "$changed" >&2
    echo "error: expected the layout of .clang-format in the files above: run scripts/format.sh" >&2
    exit 1
  fi
  echo "${#present[@]} files have the layout of .clang-format"
else
  "$program" -i "${present[@]}"
fi
