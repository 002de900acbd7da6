#!/usr/bin/env bash
# scripts/tidy.sh [COMMIT]: runs clang-tidy on the lines of C++ sources that changed since a commit: by default since the branch left
# origin/main, or where that is not known or is this commit itself, since the commit before. A finding is a failure; .clang-tidy says what is
# looked for.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not run: it is not installed (package clang-tidy)"
  exit 0
fi
since=${1:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
if [[ -z $since || $since == "$(git rev-parse HEAD)" ]]; then since=$(git rev-parse --verify --quiet HEAD~1 || true); fi
if [[ -z $since ]]; then
  echo "clang-tidy is not run: there is no commit to compare with"
  exit 0
fi
# Tests are left out: Catch2's macros alone fill pages.
mapfile -t changed < <(git diff --name-only --diff-filter=d "$since" -- 'src/*.cpp' 'apps/*.cpp')
scripts/build.sh ci help >/dev/null  # configures: clang-tidy reads there how each file is compiled

# "FILE [[first,last],...]": hunks of no lines are those that only take away.
ranges() {
  git diff -U0 "$since" -- "$1" | sed -nE 's/^@@ [^+]*\+([0-9]+),?([0-9]*) @@.*/\1 \2/p' |
    awk '{ n = $2 == "" ? 1 : $2; if (n > 0) printf "%s[%d,%d]", (c++ ? "," : ""), $1, $1 + n - 1 }'
}
filters=()
for file in "${changed[@]}"; do
  lines=$(ranges "$file")
  if [[ -n $lines ]] && grep -qF "/$file\"" build/ci/compile_commands.json; then
    filters+=("$file" "[{\"name\":\"$file\",\"lines\":[$lines]}]")
  fi
done
echo "$((${#filters[@]} / 2)) C++ sources have lines that changed since $(git rev-parse --short "$since")"
[[ ${#filters[@]} -gt 0 ]] || exit 0
printf '%s\0' "${filters[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -n 2 \
  sh -c 'clang-tidy -p build/ci --quiet --warnings-as-errors="*" --line-filter="$2" "$1" 2>/dev/null' tidy
