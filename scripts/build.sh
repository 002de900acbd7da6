#!/usr/bin/env bash
# scripts/build.sh PRESET TARGET...: configures build/PRESET where that is needed, and builds. CMake's own output is
# shown only when it fails. JOBS is the number of jobs, by default one a processor.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
build=build/$preset
jobs=${JOBS:-$(nproc)}

# CMake does not look where NVIDIA's installer puts nvcc.
if [[ -z "${CUDACXX:-}" ]] && ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  export CUDACXX=/usr/local/cuda/bin/nvcc
fi

if [[ ! -e $build/build.ninja || CMakePresets.json -nt $build/build.ninja ]]; then
  echo "Configuring $build"
  mkdir -p "$build"
  if ! cmake --preset "$preset" >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    echo "error: configuring failed; if packages changed since the last time, remove $build and try again" >&2
    exit 1
  fi
fi

# `programs` stands for the directory of the programs: everything but the tests.
targets=()
for target in "$@"; do
  if [[ $target == programs ]]; then targets+=(apps/all); else targets+=("$target"); fi
done
echo "Building $* in $build, $jobs jobs"
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
ninja -C "$build" -j "$jobs" "${quiet[@]}" "${targets[@]}"
