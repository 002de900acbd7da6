#!/bin/sh
# blocks.sh PAGE...: the blocks of C++ of pages as functions, each of a struct with the names that its page takes as given (Page_checkpoints of
# docs/checkpoints.md). A block's own functions become members; `...` becomes nothing, in brackets a value or a loop of one round. A block with
# a main is a program, in a namespace of its own: the plain blocks from there to the next program or heading are what its first run prints, its
# second one, and so on.
set -eu
awk '
  function finish() {
    places[++count] = page ":" first
    if (is_program) {
      printf "namespace program%d {\n%s}\n", count, program
      attempts[count] = sprintf("[] { program%d::main(); }", count)
      last_program = count
      return
    }
    printf "struct Block%d : Page_%s {\n%s  void run() {\n%s  }\n};\n", count, name, functions, body
    attempts[count] = sprintf("[] { try_block<Block%d, %s>(); }", count, has_thread ? "false" : "true")
  }
  FNR == 1 {
    page = FILENAME
    sub(/.*\//, "", page)
    name = substr(page, 1, length(page) - 3)
    gsub(/-/, "_", name)
    inside = last_program = 0
  }
  /^```cpp$/ { inside = 1; in_function = has_thread = is_program = last_program = 0; first = FNR; functions = body = program = ""; next }
  /^```$/ && in_printed { in_printed = 0; printed[last_program] = printed[last_program] ")___\", "; next }
  /^```$/ && !inside && !in_other && last_program { in_printed = 1; printed[last_program] = printed[last_program] "R\"___("; next }
  in_printed { printed[last_program] = printed[last_program] $0 "\n"; next }
  /^```/ { if (inside) finish(); else in_other = !in_other; inside = 0; next }
  !inside { if (!in_other && /^#/) last_program = 0; next }
  {
    line = $0
    if (line ~ /^ *\.\.\.$/) line = ""
    sub(/for \(\.\.\.\)/, "for (int round = 0; round < 1; ++round)", line)
    gsub(/\(\.\.\.\)/, "(anything)", line)
    if (line ~ /^#include/) next  # the test has them
    if (line ~ /^int main\(/) is_program = 1
    program = program sprintf("#line %d \"%s\"\n%s%s\n", FNR, FILENAME, is_program && line == "}" ? "return 0; " : "", line)
    if (line ~ /std::thread /) has_thread = 1  # nobody joins it
    if (line ~ /^[A-Za-z].*\) \{$/ && line !~ /^(for|while|if|struct) /) in_function = 1
    line = sprintf("#line %d \"%s\"\n%s\n", FNR, FILENAME, line)
    if (in_function) functions = functions line
    else body = body line
    if ($0 == "}") in_function = 0
  }
  END {
    print "const std::vector<Block> blocks = {"
    for (i = 1; i <= count; i++) printf "    {\"%s\", %s, {%s}},\n", places[i], attempts[i], printed[i]
    print "};"
  }
' "$@"
