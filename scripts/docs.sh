#!/usr/bin/env bash
# scripts/docs.sh [--most N]: writes the API reference, of the public headers and the pages of docs/, to build/docs/html, by Doxygen, which it
# installs if it is missing. It says how many public names have no docstring (build/docs/undocumented.txt), and which docstrings and pages
# Doxygen cannot read. With --most it fails where there are more than N such names, or anything that cannot be read.
set -euo pipefail
cd "$(dirname "$0")/.."
most=
if [[ ${1:-} == --most && ${2:-} =~ ^[0-9]+$ ]]; then
  most=$2
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/docs.sh [--most N]" >&2
  exit 2
fi
for program in cmake doxygen; do command -v "$program" >/dev/null || scripts/install-packages.sh doxygen; done

rm -rf build/docs
mkdir -p build/docs/pages
version=$(sed -nE 's/^project\(tern VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
cat >build/docs/headers.cmake <<END
include(cmake/install_headers.cmake)
tern_write_headers(src build/docs/headers)
string(REPLACE . ";" numbers $version)
list(GET numbers 0 PROJECT_VERSION_MAJOR)
list(GET numbers 1 PROJECT_VERSION_MINOR)
list(GET numbers 2 PROJECT_VERSION_PATCH)
set(PROJECT_VERSION $version)
set(TERN_HAS_CUDA 1)
configure_file(cmake/version.h.in build/docs/headers/tern/version.h @ONLY)
END
cmake -P build/docs/headers.cmake
# Pages link to each other and to pictures of docs/ by their names. Links to other files of the repository, which are no part of the
# reference, become their texts.
pages=$(cd docs && printf '%s|' *.md *.svg)
for page in README.md docs/*.md; do
  sed -E -e "s@\]\((docs/)?(${pages%|})(#[^)]*)?\)@](=\2)@g" -e 's@(^|[^!])\[([^]]*)\]\([^=h][^) ]*\)@\1\2@g' -e 's@\]\(=@](@g' \
    "$page" >"build/docs/pages/${page##*/}"
done
(cd build/docs && { cat ../../Doxyfile && echo "PROJECT_NUMBER = $version"; } | doxygen -)

# Doxygen 1.9.8 takes `module = nullptr;` in a struct for a module of C++20.
faults=$(grep -vE 'is not documented|^ |it has no primary interface unit' build/docs/warnings.txt |
  sed -E "s#^$PWD/build/docs/headers/tern/#src/#; s#^$PWD/build/docs/pages/#docs/#" || true)
{ grep -E 'is not documented' build/docs/warnings.txt || true; } |
  sed -E "s#^$PWD/build/docs/headers/tern/([^:]*:[0-9]*): warning: (Member|Compound) #src/\1: #; s/ is not documented\.\$//" |
  sort -u >build/docs/undocumented.txt
count=$(wc -l <build/docs/undocumented.txt)
[[ -z $faults ]] || printf '%s\n' "$faults"
echo "build/docs/html/index.html: $count public names without a docstring"
if [[ -n $most && $count -gt $most ]]; then
  head -20 build/docs/undocumented.txt >&2
  echo "error: expected at most $most public names without a docstring but got $count, listed above and in build/docs/undocumented.txt:" \
    "write /// before a declaration or ///< behind it, or move what is not for users into a namespace detail" >&2
  exit 1
fi
if [[ -n $most && -n $faults ]]; then
  echo "error: expected docstrings and pages that Doxygen can read but got the warnings above" >&2
  exit 1
fi
