#!/usr/bin/env bash
# scripts/docs.sh [--most N]: writes the API reference, of the public headers and the pages of docs/, to build/docs/html, by Doxygen, which it
# installs if it is missing. It says how many public names have no docstring (build/docs/undocumented.txt), and which docstrings and pages
# Doxygen cannot read. With --most it fails where there are more than N such names, or anything that cannot be read.
# docs/topics.txt says which topic of the reference a header's names belong to: this puts each copied header into its group.
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

# A row of docs/topics.txt becomes a group, and its headers' namespaces are put into it: what a header's @file says is the group's text.
topic_rows() { grep -vE '^ *(#|$)' docs/topics.txt | sed -E 's/ *\| */|/g'; }
topic_rows | awk -F '|' '{
  depth = match($1, /[^ ]/)
  name = substr($1, depth)
  if (depth == 1) top = name
  printf("/** @defgroup %s %s\n%s%s */\n", name, $2, (depth > 1 ? "@ingroup " top "\n" : ""), toupper(substr($4, 1, 1)) substr($4, 2) ".")
  printf("%s- [%s](@ref %s): %s\n", (depth > 1 ? "  " : ""), $2, name, $4) >"build/docs/topics.md"
}' >build/docs/headers/topics.dox
input=(headers/topics.dox headers/tern/tern.h)
declare -A topic_of=()
while IFS='|' read -r name _ headers _; do
  for header in $headers; do
    topic_of[$header.h]=${name// /}
    input+=("headers/tern/$header.h")
  done
done < <(topic_rows)
(cd build/docs/headers/tern && find . -name '*.h' -printf '%P\n' | sort) >build/docs/headers.txt
missing=$(comm -3 <(printf '%s\n' tern.h nn/nn.h train/train.h "${!topic_of[@]}" | sort) build/docs/headers.txt)
if [[ -n $missing ]]; then
  echo "error: expected each public header in one row of docs/topics.txt but got" $missing >&2
  exit 2
fi
for header in "${!topic_of[@]}"; do
  path=build/docs/headers/tern/$header
  awk -v topic="${topic_of[$header]}" -f scripts/docs.awk "$path" "$path" >build/docs/header
  mv build/docs/header "$path"
done
# Pages link to each other and to pictures of docs/ by their names. Links to other files of the repository, which are no part of the
# reference, become their texts. Doxygen before 1.9.8 does not read bold text that begins with code.
pages=$(cd docs && printf '%s|' *.md *.svg)
for page in README.md $(sed '1,/^## Where to read on/d' README.md | grep -oE 'docs/[a-z-]+\.md'; ls docs/*.md); do   # in README's order
  [[ ! -e build/docs/pages/${page##*/} ]] || continue
  input+=("pages/${page##*/}")
  sed -E -e "s@\]\((docs/)?(${pages%|})(#[^)]*)?\)@](=\2)@g" -e 's@(^|[^!])\[([^]]*)\]\([^=h][^) ]*\)@\1\2@g' -e 's@\]\(=@](@g' \
    -e '/^```/,/^```$/!s@(^|[^`])\*\*(`[^`]+`[^*]*)\*\*@\1<b>\2</b>@g' \
    "$page" >"build/docs/pages/${page##*/}"
done
sed -i -e '/^## What it runs on/{
  i ## Names by topic
  i
  r build/docs/topics.md
  N
}' build/docs/pages/README.md
# The sidebar begins with the topics, which Doxygen calls modules before 1.9.8.
(cd build/docs && doxygen -l layout.xml)
topics=$(grep -oE 'type="topics"' build/docs/layout.xml || echo 'type="modules"')
sed -i -E -e "/<tab $topics/d" -e "s@<tab type=\"pages\"@<tab $topics visible=\"yes\" title=\"Topics\" intro=\"\"/>\n    &@" build/docs/layout.xml
(cd build/docs && { cat ../../Doxyfile && echo "PROJECT_NUMBER = $version" && echo "INPUT = ${input[*]}"; } | doxygen -)
# A bar in code in a table is escaped on a page, and Doxygen shows the backslash as well.
sed -i '/<td class="markdownTable/s@\\|@|@g' build/docs/html/md_*.html

# Doxygen 1.9.8 takes `module = nullptr;` in a struct for a module of C++20.
faults=$(grep -vE 'is not documented|^ |it has no primary interface unit' build/docs/warnings.txt |
  sed -E "s#^$PWD/build/docs/headers/tern/([^:]*):[0-9]*#src/\1#; s#^$PWD/build/docs/pages/#docs/#" || true)
# What Doxygen does not take for markup shows as it is.
raw=$(cd build/docs/html && sed -E 's/<code>[^<]*<\/code>//g; /class="line"/d; s/<[^>]*>//g' index.html md_*.html group__*.html |
  grep -E '\*\*|[a-z]\]\([a-z.]|```|^ *#+ [A-Z]' | cut -c -150 || true)
[[ -z $raw ]] || faults+=$'\n'"markdown that is shown as it is: $raw"
{ grep -E 'is not documented' build/docs/warnings.txt || true; } |
  sed -E "s#^$PWD/build/docs/headers/tern/([^:]*):[0-9]*: warning: (Member|Compound) #src/\1: #; s/ is not documented\.\$//" |
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
