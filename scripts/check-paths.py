#!/usr/bin/env python3
"""Fails where a page names a file that is not there.

    scripts/check-paths.py               README.md, CONTRIBUTING.md, docs/*.md, bench/*.md and the pages of examples
    scripts/check-paths.py --self-test   shows on planted text which names it takes for paths, and which of them it misses

A path is what stands in backquotes with a source file's ending (`ops/copy.h`, `gemm.h`, `text/bpe_*`, `ops/{copy,view}.h`), or with a slash
and no ending (`cuda/device`, `nn/decoder_lm`), and the target of a link. It is looked for from the root, from src, src/cuda and the other
rooms, and beside the page; a bare name may stand anywhere. What a user's own tree has (build/, runs/, <family>.h) is passed over.
"""
import argparse
import fnmatch
import pathlib
import posixpath
import re
import sys

import tree

PAGES = ["README.md", "CONTRIBUTING.md", "docs/*.md", "bench/*.md", "examples/*.md", "examples/*/*.md"]
BASES = ["", "src/", "src/cuda/", "src/ops/", "apps/", "tests/", "bench/", "docs/", "examples/"]
ENDINGS = r"\.(?:h|cpp|cu|cuh|cuh?|py|sh|toml|md|svg|js|cmake)"
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FILE = re.compile(rf"^[\w./*{{}},+-]+{ENDINGS}$|^[\w./*{{}},+-]+\.{{[\w,]+}}$")
ROOM = re.compile(r"^(?!build\b|runs\b|out\b|tmp\b)\.?[a-z][a-z_0-9-]*(?:/[a-z_0-9*-]+)+/?$")
A_USERS = re.compile(r"^(?:build|runs?|out|prefix|/|~|\.\./)|include/|/usr|main\.cpp$|\bRUN/|MODEL-")
# What a run writes, and a file of another project that a page speaks of.
ELSEWHERE = {"curves.svg"}


def expanded(name):
    """`a.{h,cpp}` as a.h and a.cpp."""
    found = re.search(r"\{([^{}]*)\}", name)
    if not found:
        return [name]
    return [path for part in found.group(1).split(",") for path in expanded(name[: found.start()] + part + name[found.end() :])]


def is_there(name, page, files, directories):
    name = name.rstrip("/")
    bases = [*BASES, posixpath.dirname(page) + "/"]
    if "/" not in name and any(fnmatch.fnmatchcase(posixpath.basename(path), name) for path in files):
        return True
    for base in bases:
        path = posixpath.normpath(base + name)
        if path in files or path in directories:
            return True
        # nn/decoder_lm stands for both files of it
        if any(fnmatch.fnmatchcase(known, path) or fnmatch.fnmatchcase(known, path + ".*") for known in files if known.startswith(path.split("*")[0])):
            return True
    return False


def rooms_of(directories):
    """The first parts of paths without an ending that count as such: `cuda/device` does, `and/or` does not."""
    return {posixpath.basename(path) for path in directories if path.count("/") <= 1} | set(directories)


def faults_of(page, text, files, directories):
    rooms = rooms_of(directories)
    text = FENCED.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    for number, line in enumerate(text.split("\n"), 1):
        names = [name for name in QUOTED.findall(line) if FILE.match(name) or (ROOM.match(name) and name.split("/")[0] in rooms)]
        for name in names:
            if name in ELSEWHERE or A_USERS.search(name):
                continue
            for path in expanded(name):
                if not is_there(path, page, files, directories):
                    yield f"{page}:{number}: names `{name}`, which is not there"
                    break
        for target in LINK.findall(line):
            if "://" in target or target.startswith("mailto:"):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if path not in files and path not in directories:
                yield f"{page}:{number}: links to {target}, which is not there"


def directories_of(files):
    return {str(parent) for path in files for parent in pathlib.PurePosixPath(path).parents if str(parent) != "."}


def self_test():
    files = {"src/ops/copy.h", "src/ops/copy.cpp", "src/nn/decoder_lm.cpp", "src/cuda/device/row.cuh", "docs/a.md", "docs/b.svg"}
    planted = """`ops/copy.h` `ops/copy.{h,cpp}` `copy.h` `nn/decoder_lm` `cuda/device` `row.cuh` `nn/decoder_*` [page](b.svg) and/or `and/or`
`ops/gone.h` `ops/copy.{h,cu}` `gone.cpp` `nn/gone` `cuda/gone/` `ops/gone_*` [gone](c.svg) `build/cpu/x.h` `<family>.h` `x.backward()`
```
`ops/gone.h`
```
"""
    got = list(faults_of("docs/a.md", planted, files, directories_of(files)))
    if len(got) != 7 or not all(fault.startswith("docs/a.md:2: ") for fault in got):
        sys.exit("error: expected the seven faults of line 2 but got\n" + "\n".join(got))
    print("check-paths finds 7 planted faults, and nothing else")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--self-test", action="store_true")
    if options.parse_args().self_test:
        return self_test()
    files = set(tree.files())
    directories = directories_of(files)
    pages = sorted(path for path in files if any(fnmatch.fnmatchcase(path, pattern) for pattern in PAGES))
    faults = [fault for page in pages for fault in faults_of(page, (tree.ROOT / page).read_text(), files, directories)]
    tree.end(faults, f"pages to name files that are there, but {len(faults)} names are not", f"{len(pages)} pages name files that are there")


if __name__ == "__main__":
    main()
