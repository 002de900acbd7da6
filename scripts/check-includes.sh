#!/usr/bin/env bash
# scripts/check-includes.sh [--self-test]: a room is a directory of src, and rooms stand on each other (docs/architecture.md). Fails on an
# include that points up, or into a room that the file's own may not use, and names it: `src/tensor/tensor.h:9: includes ops/factory.h, which is above: tensor may include backend`.
# With --self-test it shows on planted files that it finds such includes, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

# A line for each room: the rooms and single headers that its files may include beside those of its own. A file belongs to the deepest
# room here that holds it. Rooms stand from the lowest to the highest.
rooms='
backend:
tensor:         backend
ops/kernels:    backend tensor
ops/cpu:        backend tensor ops/kernels
text:

# nvcc and NVRTC both take the device library: no host header reaches it.
cuda/device:    tensor/sizes.h tensor/dtype.h tensor/random.h
# The runtime is a part of the backend, below tensor: of tensor it takes plain structs alone, which have no code to link.
cuda/runtime:   backend cuda/device tensor/sizes.h tensor/dtype.h tensor/view.h
# The families of kernels do not know each other, but for the sums and folds of reduce, and the handles of cuBLAS.
cuda/pointwise: backend tensor ops/kernels cuda/runtime cuda/device
cuda/reduce:    backend tensor ops/kernels cuda/runtime cuda/device
cuda/rows:      backend tensor ops/kernels cuda/runtime cuda/device cuda/reduce
cuda/gemm:      backend tensor ops/kernels cuda/runtime cuda/device cuda/reduce
cuda/attention: backend tensor ops/kernels cuda/runtime cuda/device
cuda/recurrence: backend tensor ops/kernels cuda/runtime cuda/device
cuda/conv:      backend tensor ops/kernels cuda/runtime cuda/device
cuda/index:     backend tensor ops/kernels cuda/runtime cuda/device
cuda/optim:     backend tensor ops/kernels cuda/runtime cuda/device
cuda/linalg:    backend tensor ops/kernels cuda/runtime cuda/device cuda/gemm/cublas.h

autodiff:       backend tensor ops/kernels
ops:            backend tensor ops/kernels autodiff
compile:        backend tensor ops/kernels autodiff ops
compile/device: ops/kernels cuda/device
nn:             backend tensor autodiff ops
train:          backend tensor ops/kernels autodiff ops nn
io:             backend tensor ops text
data:           backend tensor ops text io
models:         backend tensor ops nn text io
profile:        backend tensor autodiff ops nn train io
parallel:       backend tensor ops/kernels autodiff ops nn train
parallel/gloo:  backend tensor parallel
parallel/nccl:  backend tensor ops parallel cuda/runtime cuda/device
trainer:        backend tensor autodiff ops compile nn train text io profile parallel
'
# tern.h and the programs stand above all rooms. Kernels are reached through ops/kernels.
top='backend tensor autodiff ops compile nn train text io data models profile parallel trainer'

# check ROOT: prints the faults of the tree under ROOT, and fails if there are any.
check() (
  cd "$1"
  find src apps \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null | sort -z |
    ROOMS=$rooms TOP=$top xargs -0 -r awk '
      # The deepest room that holds a path, or "".
      function room_of(path) {
        while (sub(/\/[^\/]*$/, "", path)) if (path in may) return path
        return ""
      }
      BEGIN {
        top = ENVIRON["TOP"]
        count = split(ENVIRON["ROOMS"], lines, "\n")
        for (i = 1; i <= count; ++i)
          if (match(lines[i], /^[a-z][a-z\/]*:/)) {
            room = substr(lines[i], 1, RLENGTH - 1)
            may[room] = substr(lines[i], RLENGTH + 1)
            gsub(/ +/, " ", may[room])
            sub(/^ /, "", may[room])
            height[room] = ++rank
          }
      }
      FNR == 1 {
        is_app = FILENAME ~ /^apps\//
        path = FILENAME
        sub(/^src\//, "", path)
        is_top = is_app || path !~ /\//
        here = is_top ? "" : room_of(path)
        allowed = " " (is_top ? top : may[here]) " "
        if (!is_top && here == "") {
          printf "%s:1: stands in no room that scripts/check-includes.sh knows\n", FILENAME
          failed = 1
        }
      }
      /^[ \t]*#[ \t]*include[ \t]*"/ && (is_top || here != "") {
        split($0, quoted, "\"")
        header = quoted[2]
        there = room_of(header)
        if (there == "" && is_app) next  # a header of the programs
        if (there == here && there != "") next
        if (index(allowed, " " there " ") && there != "") next
        if (index(allowed, " " header " ")) next
        name = is_app ? "a program" : here == "" ? "tern.h" : here
        where = there == "" ? "in no room" : height[there] > height[here] && here != "" ? "above" : "out of its reach"
        may_text = allowed
        gsub(/^ +| +$/, "", may_text)
        printf "%s:%d: includes %s, which is %s: %s may include %s\n", FILENAME, FNR, header, where, name, may_text == "" ? "nothing" : may_text
        failed = 1
      }
      END { exit failed }'
)

# Files with one fault each, and some without: every fault must be found, and nothing beside.
self_test() {
  local root got want
  root=$(mktemp -d)
  trap 'rm -rf "$root"' RETURN
  plant() {
    mkdir -p "$root/$(dirname "$1")"
    printf '#pragma once\n#include <vector>\n%s\n' "$2" >"$root/$1"
  }
  plant src/tensor/up.h '#include "ops/factory.h"'
  plant src/backend/up.cpp '#include "tensor/tensor.h"'
  plant src/autodiff/up.cpp '#include "ops/factory.h"'
  plant src/ops/cpu/up.cpp '  #  include "ops/factory.h"  // indented'
  plant src/nn/up.h '#include "train/optimizer.h"'
  plant src/nn/beside.h '#include "ops/kernels/copy.h"'
  plant src/text/beside.h '#include "tensor/tensor.h"'
  plant src/cuda/rows/beside.cu '#include "cuda/gemm/gemm.h"'
  plant src/cuda/device/host.cuh '#include "cuda/runtime/launch.h"'
  plant src/attic/lost.h '#include "tensor/tensor.h"'
  plant apps/bench/beside.cpp '#include "cuda/gemm/gemm.h"'
  plant src/ops/right.cpp '#include "autodiff/node.h"
#include "ops/kernels/copy.h"
// #include "nn/nn.h"'
  plant src/cuda/rows/right.cu '#include "cuda/reduce/reduce.h"'
  plant src/tern.h '#include "train/train.h"'
  plant apps/bench/right.cpp '#include "common/program.h"
#include "train/train.h"'
  want='apps/bench/beside.cpp:3 src/attic/lost.h:1 src/autodiff/up.cpp:3 src/backend/up.cpp:3 src/cuda/device/host.cuh:3'
  want+=' src/cuda/rows/beside.cu:3 src/nn/beside.h:3 src/nn/up.h:3 src/ops/cpu/up.cpp:3 src/tensor/up.h:3 src/text/beside.h:3'
  if got=$(check "$root"); then
    echo "error: expected check-includes to fail on planted faults but it passed" >&2
    return 1
  fi
  if [[ $(cut -d: -f1,2 <<<"$got" | sort | paste -sd ' ') != "$want" ]]; then
    printf 'error: expected faults at %s but got\n%s\n' "$want" "$got" >&2
    return 1
  fi
  rm -r "$root"/src/*/up.* "$root"/src/ops/cpu "$root"/src/*/beside.* "$root"/src/cuda/*/beside.* "$root/src/cuda/device" "$root/src/attic" \
    "$root/apps/bench/beside.cpp"
  if ! got=$(check "$root"); then
    printf 'error: expected check-includes to pass without the planted faults but got\n%s\n' "$got" >&2
    return 1
  fi
  echo "check-includes finds $(wc -w <<<"$want") planted faults, and nothing else"
}

case ${1:-} in
  --self-test) self_test ;;
  '')
    if ! check . >&2; then
      echo "error: expected includes that point down: scripts/check-includes.sh lists which room may include which" >&2
      exit 1
    fi
    echo "Includes point down"
    ;;
  *)
    echo "usage: scripts/check-includes.sh [--self-test]" >&2
    exit 2
    ;;
esac
