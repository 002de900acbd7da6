#!/usr/bin/env bash
# The fault harness (tests/faults) at length: scripts/faults.sh [PRESET] [KILLS] [RESUMES] [SIGNALS] [STEP]. Every STEP-th system call fails
# in every way; with the defaults, which are 1000 200 100 1, some 40 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-cpu} kills=${2:-1000} resumes=${3:-200} signals=${4:-100} step=${5:-1}
scripts/build.sh "$preset" faults
build=build/$preset
export OMP_NUM_THREADS=1
faults=$build/tests/faults/faults program=$build/apps/tern-translate shim=$PWD/$build/tests/faults/libfault-shim.so
"$faults" resumes "$program" "$resumes"
"$faults" signals "$program" "$signals"
"$faults" calls "$program" "$shim" "$step"
"$faults" again "$program" "$shim" "$step"
"$faults" kills "$program" "$kills"
