#!/usr/bin/env bash
# scripts/check-variants.sh BIN [DATA]: shows that the loader takes the shared library of each level of x86-64 that this processor has, for the
# programs in the directory BIN: of build/package/apps, or of an installed tree. It hides the higher levels from the loader (GLIBC_TUNABLES), reads
# the level from `--version`, and trains the same small model with each on the corpus in DATA. Losses agree, often to the last digit of a float32, so
# that they do not show whose kernels ran; weights do: one level gives the same ones each time, and another level others in their last bits.
set -euo pipefail
bin=${1:?usage: scripts/check-variants.sh BIN [DATA]}
data=${2:-$(dirname "$0")/../data/embedded}
[[ -x $bin/tern-translate ]] || { echo "error: expected tern-translate in $bin: scripts/build.sh package all builds build/package/apps" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The levels that the processor has, as the loader sees them, and what hides those above each.
loader=/lib64/ld-linux-x86-64.so.2
[[ -x $loader ]] || { echo "error: expected the loader $loader, which glibc on x86-64 has: other processors have one level" >&2; exit 1; }
levels=$("$loader" --help | awk '/x86-64-v[34] \(supported/ {print $1}')
declare -A hides=([x86-64]=-AVX512F,-AVX2 [x86-64-v3]=-AVX512F [x86-64-v4]=)
losses=() sums=()
for level in x86-64 x86-64-v3 x86-64-v4; do
  if [[ $level != x86-64 && " ${levels//$'\n'/ } " != *" $level "* ]]; then
    echo "$level: skipped, this processor has it not"
    continue
  fi
  export GLIBC_TUNABLES=glibc.cpu.hwcaps=${hides[$level]}
  [[ -n ${hides[$level]} ]] || unset GLIBC_TUNABLES
  version=$(timeout 20 "$bin/tern-translate" --version)
  if [[ $version != *", $level" ]]; then
    echo "error: expected the library for $level but got: $version" >&2
    exit 1
  fi
  OMP_NUM_THREADS=2 timeout 200 "$bin/tern-translate" train --data "$data" --src de --tgt en --preset quick --updates 40 --vocab 600 --layers 1 --width 64 \
    --test none --device cpu --out "$work/$level" >"$work/$level.out" 2>&1 || { cat "$work/$level.out" >&2; exit 1; }
  loss=$(grep -o '"valid_loss": *[0-9.]*' "$work/$level/log.jsonl" | tail -1 | grep -o '[0-9.]*$')
  echo "$level: $version; validation loss $loss"
  losses+=("$loss")
  sums+=("$(sha256sum <"$work/$level/model.safetensors")")
done
if [[ $(printf '%s\n' "${sums[@]}" | sort -u | wc -l) -ne ${#sums[@]} ]]; then
  echo "error: expected other weights from each level but two have the same to the last bit: one library's kernels ran for both" >&2
  exit 1
fi
awk 'BEGIN {for (i = 2; i < ARGC; ++i) if (ARGV[i] / ARGV[1] > 1.001 || ARGV[i] / ARGV[1] < 0.999) exit 1}' "${losses[@]}" || {
  echo "error: expected losses within a thousandth of each other but got ${losses[*]}" >&2
  exit 1
}
