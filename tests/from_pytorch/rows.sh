#!/bin/sh
# rows.sh FILE: the middle column of the tables of docs/from-pytorch.md as C++, each code span a statement of a row's function.
set -eu
awk -v file="$1" '
  /^## / { section = substr($0, 4) }
  /^\| `/ {
    line = $0
    gsub(/\\\|/, "\001", line)  # a bar within code
    split(line, column, "|")
    code = column[3]
    gsub(/\001/, "|", code)
    body = ""
    while (match(code, /`[^`]*`/)) {
      body = body "    { " substr(code, RSTART + 1, RLENGTH - 2) "; }\n"
      code = substr(code, RSTART + RLENGTH)
    }
    ++count
    printf "struct Row%d : Fixture {\n  void run() {\n#line %d \"%s\"\n%s  }\n};\n", count, NR, file, body
    rows = rows sprintf("    {%d, \"%s\", [] { Row%d().run(); }},\n", NR, section, count)
  }
  END { printf "const std::vector<Row> rows = {\n%s};\n", rows }
' "$1"
