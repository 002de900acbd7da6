#!/usr/bin/env python3
"""Counts the files that one training step goes through: the sources that docs/one-step.md lists, and the headers of src that they include.

    scripts/step-files.py                          by directory, with their lines
    scripts/step-files.py --list FILE --src DIR    of another list (a path a line), and of another tree, to compare
"""
import argparse
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


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


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", type=pathlib.Path, default=ROOT / "docs" / "one-step.md")
    options.add_argument("--src", type=pathlib.Path, default=ROOT / "src")
    chosen = options.parse_args()
    text = chosen.list.read_text()
    rows = re.findall(r"^\|[^|]*\| `([^`]+)` \|", text, re.MULTILINE) if chosen.list.suffix == ".md" else text.split()
    sources = list(dict.fromkeys(rows))
    files = closure(chosen.src, sources)
    counts = collections.Counter(path.split("/")[0] for path in files)
    lines = sum((chosen.src / path).read_text().count("\n") for path in files)
    print(f"{len(sources)} sources, {len(files)} files with their headers, {lines} lines")
    print(", ".join(f"{room} {count}" for room, count in counts.most_common()))


if __name__ == "__main__":
    main()
