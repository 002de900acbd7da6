#!/usr/bin/env bash
# scripts/fuzz.sh BUILD SECONDS [NAME...]: runs the fuzz programs of a build directory, e.g. build/asan, one after the other, each for so
# long. A finding ends it with exit code 1, and its input lies in BUILD/findings. RUNS=N stops each after N executions, SEED=N chooses others.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 2 ]]; then
  echo "usage: scripts/fuzz.sh BUILD SECONDS [NAME...]" >&2
  exit 2
fi
build=$PWD/$1
seconds=$2
shift 2
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  names=(tests/fuzz/*_fuzz.cpp)
  names=("${names[@]#tests/fuzz/}")
  names=("${names[@]%_fuzz.cpp}")
fi
mkdir -p "$build/findings"
cd "$build/findings"
failed=0
for name in "${names[@]}"; do
  # libFuzzer adds what it finds to the first directory.
  mkdir -p "$build/fuzz-corpus/$name"
  if "$build/tests/fuzz/fuzz-$name" -runs="${RUNS:-1e12}" -max_total_time="$seconds" -seed="${SEED:-1}" -max_len=20000 \
    "$build/fuzz-corpus/$name" "$OLDPWD/tests/fuzz/corpus/$name" >"$name.log" 2>&1; then
    echo "$name: $(grep -E '^Done' "$name.log" | tail -n 1)"
  else
    echo "$name: a finding: $build/findings/$name.log" >&2
    tail -n 5 "$name.log" >&2
    if [[ -e crash-input ]]; then mv crash-input "$name-input"; fi
    failed=1
  fi
done
exit $failed
