#!/usr/bin/env bash
# The fault harness (tests/faults) at length: scripts/faults.sh [PRESET] [KILLS] [RESUMES] [SIGNALS] [STEP] [RANKS]. Every STEP-th system call
# fails in every way, and RANKS times one of several processes fails; with the defaults, which are 1000 200 100 1 500, some 70 minutes.
# `scripts/faults.sh ranks [PRESET] [RANKS] [SEED]` does the last alone.
set -euo pipefail
cd "$(dirname "$0")/.."
fail_ranks() {  # PRESET COUNT SEED
  OMP_NUM_THREADS=1 "build/$1/tests/faults/rank-faults" "build/$1/apps/tern-launch" "build/$1/apps/tern-recall" \
    "$PWD/build/$1/tests/faults/libcut-shim.so" "$2" "$3"
}
if [ "${1:-}" = ranks ]; then
  scripts/build.sh "${2:-cpu}" rank-faults
  fail_ranks "${2:-cpu}" "${3:-500}" "${4:-1}"
  exit
fi
preset=${1:-cpu} kills=${2:-1000} resumes=${3:-200} signals=${4:-100} step=${5:-1} ranks=${6:-500}
scripts/build.sh "$preset" faults rank-faults
build=build/$preset
export OMP_NUM_THREADS=1
faults=$build/tests/faults/faults program=$build/apps/tern-translate shim=$PWD/$build/tests/faults/libfault-shim.so
"$faults" resumes "$program" "$resumes"
"$faults" signals "$program" "$signals"
"$faults" signals "$program" "$signals" 256 "${shim/fault-shim/timer-shim}"
"$faults" signals "$program" "$signals" 256 "${shim/fault-shim/timer-shim}" "$build/apps/tern-launch"
"$faults" calls "$program" "$shim" "$step"
"$faults" again "$program" "$shim" "$step"
"$faults" kills "$program" "$kills"
fail_ranks "$preset" "$ranks" 1
