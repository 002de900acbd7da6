#!/bin/sh
# blocks.sh PAGE...: the blocks of C++ of pages as functions, each of a struct with the names that its page takes as given (Page_checkpoints of
# docs/checkpoints.md). A block's own functions become members; `...` becomes nothing, in brackets a value or a loop of one round.
set -eu
awk '
  function finish() {
    printf "struct Block%d : Page_%s {\n%s  void run() {\n%s  }\n};\n", ++count, name, functions, body
    rows = rows sprintf("    {\"%s:%d\", [] { try_block<Block%d, %s>(); }},\n", page, first, count, has_thread ? "false" : "true")
  }
  FNR == 1 {
    page = FILENAME
    sub(/.*\//, "", page)
    name = substr(page, 1, length(page) - 3)
    gsub(/-/, "_", name)
    inside = 0
  }
  /^```cpp$/ { inside = 1; in_function = 0; has_thread = 0; first = FNR; functions = body = ""; next }
  /^```/ { if (inside) finish(); inside = 0; next }
  !inside { next }
  {
    line = $0
    if (line ~ /^ *\.\.\.$/) line = ""
    sub(/for \(\.\.\.\)/, "for (int round = 0; round < 1; ++round)", line)
    gsub(/\(\.\.\.\)/, "(anything)", line)
    if (line ~ /std::thread /) has_thread = 1  # nobody joins it
    if (line ~ /^[A-Za-z].*\) \{$/ && line !~ /^(for|while|if|struct) /) in_function = 1
    line = sprintf("#line %d \"%s\"\n%s\n", FNR, FILENAME, line)
    if (in_function) functions = functions line
    else body = body line
    if ($0 == "}") in_function = 0
  }
  END { printf "const std::vector<Block> blocks = {\n%s};\n", rows }
' "$@"
