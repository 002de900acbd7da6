#!/usr/bin/env bash
# scripts/docs.sh [--most N]: writes the API reference of the public headers to build/docs/html, by Doxygen, and says how many public names have no
# docstring (the list is build/docs/undocumented.txt). With --most it fails where they are more than N.
set -euo pipefail
cd "$(dirname "$0")/.."
most=
if [[ ${1:-} == --most && ${2:-} =~ ^[0-9]+$ ]]; then
  most=$2
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/docs.sh [--most N]" >&2
  exit 2
fi
command -v doxygen >/dev/null || { echo "error: expected doxygen: apt-get install doxygen" >&2; exit 1; }

rm -rf build/docs
mkdir -p build/docs
cat >build/docs/headers.cmake <<END
include(cmake/install_headers.cmake)
tern_write_headers(src build/docs/headers)
END
cmake -P build/docs/headers.cmake
# tern.h's links to other documents lead to the repository's files, which are not a part of the reference.
sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g; s/^!.*//' README.md >build/docs/README.md
(cd build/docs && doxygen ../../Doxyfile)
grep -E 'is not documented' build/docs/warnings.txt | sed -E "s#^$PWD/build/docs/headers/##" | sort -u >build/docs/undocumented.txt || true
grep -vE 'is not documented|^ ' build/docs/warnings.txt | head -20 || true
count=$(wc -l <build/docs/undocumented.txt)
echo "build/docs/html/index.html: $count public names without a docstring"
if [[ -n $most && $count -gt $most ]]; then
  cut -d: -f1 build/docs/undocumented.txt | sort | uniq -c | sort -rn | head -20 >&2
  echo "error: expected at most $most public names without a docstring but got $count: see build/docs/undocumented.txt" >&2
  exit 1
fi
