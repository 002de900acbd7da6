#!/usr/bin/env bash
# Installs the distribution packages that the build needs and that are missing, on Debian 12, Ubuntu 24.04 and later.
# A package counts as present when what the build takes from it can be found, however it came there: a machine without
# apt, or without a network, needs nothing from this script once everything is there.
set -euo pipefail

# The places where CMake looks by default, those of a user's own first.
prefixes=()
IFS=':;' read -ra own <<<"${CMAKE_PREFIX_PATH:-}"
for prefix in "${own[@]}" /usr/local /usr; do [[ -n $prefix ]] && prefixes+=("$prefix"); done

has_header() {
  local prefix sub
  for prefix in "${prefixes[@]}"; do
    for sub in include "include/$(uname -m)-linux-gnu"; do
      [[ -e $prefix/$sub/$1 ]] && return 0
    done
  done
  return 1
}
has_program() { command -v "$1" >/dev/null; }

missing=()
has_program "${CXX:-g++}" || missing+=(g++)
has_program cmake || missing+=(cmake)
has_program ninja || missing+=(ninja-build)
has_header fmt/format.h || missing+=(libfmt-dev)
has_header nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
has_header CLI/CLI.hpp || missing+=(libcli11-dev)
has_header pcre2.h || missing+=(libpcre2-dev)
has_header utf8proc.h || missing+=(libutf8proc-dev)
has_header zlib.h || missing+=(zlib1g-dev)
has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || missing+=(catch2)

# Programs that the caller needs beyond the build, each the name of its package: scripts/install-packages.sh clang-tidy.
for program in "$@"; do has_program "$program" || missing+=("$program"); done

# ccache makes the second build fast, Gloo lets several processes train together, Eigen has linear algebra, Zstandard reads its corpora: a build without them is as good otherwise.
optional=()
has_program ccache || optional+=(ccache)
has_header gloo/allreduce.h || optional+=(libgloo-dev)
has_header zstd.h || optional+=(libzstd-dev)
has_header eigen3/Eigen/Core || has_header Eigen/Core || optional+=(libeigen3-dev)
# On Intel's processors with AVX-512 products are faster by oneDNN.
if grep -q GenuineIntel /proc/cpuinfo && grep -q avx512f /proc/cpuinfo; then has_header oneapi/dnnl/dnnl.hpp || optional+=(libdnnl-dev); fi

if [[ ${#missing[@]} -gt 0 ]]; then
  hint="install what provides: ${missing[*]}"
  if ! has_program apt-get; then
    echo "error: the build needs packages that are missing, and there is no apt-get: $hint" >&2
    exit 1
  fi
  as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! has_program sudo; then
      echo "error: the build needs packages that are missing, and this is neither root nor is there sudo; as root: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "Installing ${missing[*]} ${optional[*]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" </dev/null >>"$log" 2>&1; }
  # A fresh system has no package lists; with stale ones an install may still work.
  apt update || true
  if ! apt install --no-install-recommends "${missing[@]}" "${optional[@]}" && ! apt install --no-install-recommends "${missing[@]}"; then
    tail -n 20 "$log" >&2
    echo "error: apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
fi

version=$(cmake --version | sed -n '1s/[^0-9]*//p')
if [[ $(printf '%s\n' 3.25 "$version" | sort -V | head -n 1) != 3.25 ]]; then
  echo "error: expected CMake 3.25 or later but got $version" >&2
  exit 1
fi
