#!/usr/bin/env python3
"""Counts what there is to read: the table of sizes in docs/architecture.md, and the rooms of src in README.md.

    scripts/step-files.py                          files and lines of src, of one training step, and of three ops from the call to the kernel
    scripts/step-files.py --list FILE --src DIR    the step alone, of another list (a page's tables, or a path a line), and of another tree

A step's files are the sources in the tables of the page, and the headers of src that they include. An op's files are its own: the device
library and what all ops share do not count.
"""
import argparse
import collections
import pathlib
import re

import tree

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
OPS = {
    "layer_norm": ["ops/normalize.*", "ops/kernels/normalize.h", "ops/kernels/reduce.h", "cuda/rows/layer_norm*", "cuda/rows/row_launch.h"],
    "attention": ["ops/attention.*", "ops/attention.h", "ops/composed_attention.*", "ops/kernels/attention.h",
                  "cuda/attention/*"],
    "matmul": ["ops/matmul.*", "ops/kernels/matmul.h", "cuda/gemm/[!q]*"],
}


def closure(src, sources):
    """The sources, and all headers of src that they reach."""
    reached, waiting = set(), list(sources)
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        waiting += [header for header in INCLUDE.findall((src / path).read_text()) if (src / header).exists()]
    return reached


def lines_of(paths):
    return sum(path.read_text().count("\n") for path in paths)


def sources_of(page):
    """The sources that stand in the tables of a page."""
    rows = re.findall(r"^\|.*$", page.read_text(), re.MULTILINE)
    return list(dict.fromkeys(name for row in rows for name in re.findall(r"`([\w/]+\.(?:cpp|cu))`", row)))


def step(listed, src):
    sources = sources_of(listed) if listed.suffix == ".md" else listed.read_text().split()
    return sources, closure(src, sources)


def room_of(path):
    parts = path.split("/")
    return "/".join(parts[1:3]) if len(parts) > 3 and parts[1] in ("cuda", "ops") else parts[1]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", type=pathlib.Path)
    options.add_argument("--src", type=pathlib.Path, default=tree.ROOT / "src")
    chosen = options.parse_args()
    sources, files = step(chosen.list or tree.ROOT / "docs" / "architecture.md", chosen.src)
    of_step = len(files), lines_of(chosen.src / path for path in files)
    if chosen.list:
        print(f"{len(sources)} sources, {of_step[0]} files with their headers, {of_step[1]} lines")
        return
    print("| what | files | lines |\n|---|---|---|")
    for name, rooms in (("`src`", ["src"]), ("`src/cuda`", ["src/cuda"]), ("`apps`", ["apps"]), ("`tests`", ["tests"])):
        paths = tree.sources(rooms)
        print(f"| {name} | {len(paths)} | {lines_of(tree.ROOT / path for path in paths):,} |")
    print(f"| one training step, with the headers that it includes | {of_step[0]} | {of_step[1]:,} |")
    in_src = [path[len("src/") :] for path in tree.sources(["src"])]
    for op, patterns in OPS.items():
        paths = {path for path in in_src for pattern in patterns if pathlib.PurePosixPath(path).match(pattern)}
        print(f"| `{op}`, from the call to the kernel and back | {len(paths)} | {lines_of(chosen.src / path for path in paths):,} |")
    for room in ("docs", "bench"):
        print(f"words of {room}/*.md: {sum(len((tree.ROOT / path).read_text().split()) for path in tree.files(f'{room}/*.md')):,}")
    counts = collections.defaultdict(list)
    for path in tree.sources(["src"]):
        counts[room_of(path)].append(path)
    print("by room: " + ", ".join(f"{room} {lines_of(tree.ROOT / path for path in paths):,} / {len(paths)}" for room, paths in counts.items()))


if __name__ == "__main__":
    main()
