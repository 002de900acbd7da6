#!/usr/bin/env bash
# The fault harness (tests/faults) at length: scripts/faults.sh [PRESET] [KILLS]. Every system call fails in every way; some 20 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-cpu} kills=${2:-1000}
scripts/build.sh "$preset" faults
build=build/$preset
export OMP_NUM_THREADS=1
"$build/tests/faults/faults" calls "$build/apps/tern-translate" "$PWD/$build/tests/faults/libfault-shim.so" 1
"$build/tests/faults/faults" kills "$build/apps/tern-translate" "$kills"
