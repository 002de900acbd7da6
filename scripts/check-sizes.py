#!/usr/bin/env python3
"""Fails on a source file that is too long to be read as one, and on a function that is too long for a page.

    scripts/check-sizes.py               src, apps, tests, examples and study
    scripts/check-sizes.py --longest 20  beside that, the longest functions
    scripts/check-sizes.py --self-test   shows on planted text that it finds such functions, and their ends

A file has at most 500 lines; one that holds a kernel may have 800, so that the kernel is read from its picture to its launcher in one file:
a file of src/cuda with a `__global__` function, or one of src/ops/cpu. A function has at most 120, from its name to its closing brace; a
kernel's tile loop, which lives in registers from the first tile to the last, may have 200: a function of src/cuda that is `__global__` or
`__device__`. A lambda belongs to the function around it. Ends with 1 where a file or a function is longer.
"""
import argparse
import re
import sys

import tree

ROOMS = ["src", "apps", "tests", "examples", "study"]
FILE_LINES = 500
KERNEL_FILE_LINES = 800
FUNCTION_LINES = 120
TILE_LOOP_LINES = 200

# What can hold a brace that is none: comments, raw strings, strings, characters (not the ' of 1'000), preprocessor lines.
NOT_CODE = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE,
)
LABEL = re.compile(r"^\s*(?:(?:public|private|protected):\s*)+")
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
# `struct Cut make() {` is a function all the same.
FUNCTION_OF_CLASS = re.compile(r"\b(?:struct|class|enum)\s+\w+\s+[\w:]+\s*\(\)")
NO_NAMES = {"__launch_bounds__", "__cluster_dims__", "requires", "noexcept", "alignas", "decltype", "sizeof"}


def blanked(text):
    """The text with as many lines, and blanks for all that is not code."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def functions(text):
    """(first line, lines, heading) of each function of the text, in order."""
    code = blanked(text)
    found = []
    opened = []  # of each brace that is open: "scope", "function" or "list"
    parentheses = 0
    start = 0  # where the declaration at hand begins
    for at in re.finditer(r"[;{}()]", code):
        mark = at.group()
        inside = "function" in opened
        if mark in "()":
            parentheses += 1 if mark == "(" else -1
        elif mark == "{":
            heading = LABEL.sub("", code[start : at.start()])
            kind = "list" if inside or parentheses else kind_of(heading)
            opened.append(kind)
            if kind == "function":
                function = at.start() - len(heading.lstrip()), " ".join(heading.split())
            if kind == "scope":
                start = at.end()
        elif mark == "}":
            kind = opened.pop()
            if kind == "function":
                first = code.count("\n", 0, function[0]) + 1
                found.append((first, code.count("\n", 0, at.start()) + 2 - first, function[1]))
            if kind != "list":
                start = at.end()
        elif mark == ";" and not inside and "list" not in opened:
            start = at.end()
    return found


def kind_of(heading):
    """What a brace opens: a class or a namespace, a function's body, or a list of values."""
    flat = flattened(heading)
    if SCOPE.search(flat) and not FUNCTION_OF_CLASS.search(flat):
        return "scope"
    in_constructor = re.search(r"\)[^:]*(?<!:):(?!:)", flat) and re.search(r"[\w>]\s*$", flat)
    if ")" not in flat or in_constructor or re.search(r"=\s*$", flat):
        return "list"
    return "function"


def flattened(heading):
    """The heading with () for each pair of parentheses and <> for each list of a template's."""
    flat = heading.replace("->", "  ")
    for inner in (r"\([^()]+\)", r"<[^<>]+>"):
        while (shorter := re.sub(inner, lambda found: "()" if found.group()[0] == "(" else "<>", flat)) != flat:
            flat = shorter
            if re.search(r"\(\(\)|<<>>", flat):
                flat = flat.replace("(())", "()").replace("<<>>", "<>")
    return flat


def file_limit_of(path, text):
    holds_kernel = path.startswith("src/ops/cpu/") or (path.startswith("src/cuda/") and "__global__" in blanked(text))
    return KERNEL_FILE_LINES if holds_kernel else FILE_LINES


def limit_of(path, heading):
    kernel = path.startswith("src/cuda/") and re.search(r"__(global|device)__", heading)
    return TILE_LOOP_LINES if kernel else FUNCTION_LINES


def name_of(heading):
    names = [name for name in re.findall(r"([\w:~]+)\s*\(\)", flattened(heading)) if name not in NO_NAMES]
    return names[0] if names else heading[:60]


def check(sources, longest):
    faults = []
    all_functions = []
    for path in sources:
        text = (tree.ROOT / path).read_text()
        lines = text.count("\n")
        if lines > (limit := file_limit_of(path, text)):
            faults.append(f"{path}:1: has {lines} lines, and may have {limit}: give one of its ideas a file of its own")
        for first, length, heading in functions(text):
            all_functions.append((length, path, first, name_of(heading)))
            if length > (limit := limit_of(path, heading)):
                faults.append(f"{path}:{first}: {name_of(heading)} has {length} lines, and may have {limit}: name its parts")
    for length, path, first, name in sorted(all_functions, reverse=True)[:longest]:
        print(f"{length:4} {path}:{first} {name}")
    return faults, len(all_functions)


def self_test():
    body = "  step();\n" * 3
    planted = {
        f"int plain() {{\n{body}}}\n": [(1, 5)],
        f"namespace a {{\n\nclass B : public C {{\n public:\n  B() : c_{{1}}, d_(2) {{\n{body}  }}\n}};\n\n}}  // namespace a\n": [(5, 5)],
        f"// {{\nvoid f(const char* text = \"}}\") {{\n  char c = '{{';\n{body}}}\n": [(2, 6)],
        'const char* page = R"(\n{\n)";\nvoid g() {\n}\n': [(4, 2)],
        f"template <class T>\nstruct Cut {{\n  void each(auto f) const {{\n{body}  }}\n}};\n": [(3, 5)],
        f"template <class T, bool (*f)(struct X)>\n__global__ void kernel(T t)\n{{\n{body}}}\n": [(1, 7)],
        "struct Cut make(X x = {}, Y y = Y{3}) {\n}\n": [(1, 2)],
        "enum class Kind { one, two };\nstruct A {\n  int i = f(2);\n  A& operator()(int) { return *this; }\n};\nint g() {\n}\n": [(4, 1), (6, 2)],
        "constexpr int table[] = {1, 2, (3)};\nint one() { return 1'000; }\n": [(2, 1)],
        "#define OPEN {\nint two() {\n  auto inner = [](int x) {\n    return x;\n  };\n  return inner(2);\n}\n": [(2, 6)],
    }
    for text, want in planted.items():
        got = [(first, length) for first, length, _ in functions(text)]
        if got != want:
            sys.exit(f"error: expected functions {want} but got {got} in\n{text}")
    files = {
        ("src/cuda/rows/sum.cu", "__global__ void sum() {}\n"): KERNEL_FILE_LINES,
        ("src/cuda/rows/sum.h", "// __global__\n"): FILE_LINES,
        ("src/ops/cpu/sum.cpp", ""): KERNEL_FILE_LINES,
        ("src/ops/sum.cpp", "__global__ void sum() {}\n"): FILE_LINES,
    }
    for (path, text), want in files.items():
        if (got := file_limit_of(path, text)) != want:
            sys.exit(f"error: expected {path} to have at most {want} lines but got {got}")
    print(f"check-sizes finds the functions of {len(planted)} planted texts, and the limits of {len(files)} files")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--longest", type=int, default=0, metavar="N")
    options.add_argument("--self-test", action="store_true")
    chosen = options.parse_args()
    if chosen.self_test:
        return self_test()
    sources = tree.sources(ROOMS)
    faults, count = check(sources, chosen.longest)
    tree.end(
        faults,
        f"files and functions within the sizes that scripts/check-sizes.py names, but {len(faults)} are longer",
        f"{len(sources)} files and {count} functions are within their sizes",
    )


if __name__ == "__main__":
    main()
