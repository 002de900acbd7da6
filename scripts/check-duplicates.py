#!/usr/bin/env python3
"""Fails where two source files have a run of the same lines: an idea has one place.

    scripts/check-duplicates.py               src, python, apps and scripts
    scripts/check-duplicates.py --least 5     runs of five lines and more
    scripts/check-duplicates.py --self-test   shows on planted texts which runs it finds, and which are none

A run is six or more lines in a row that both files have, but for their blanks. Lines that say nothing neither count nor end a run: comments,
includes, braces and other signs alone, `else`, lines of namespaces, access labels. Runs within one file are left to its reader. ALLOWED has
the runs that stay, each with the reason; an entry without a run is a fault as well.
"""
import argparse
import collections
import re
import sys

import tree

ROOMS = ["src", "python", "apps", "scripts"]
LEAST = 6
COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+')|//[^\n]*|/\*.*?\*/""", re.DOTALL)
SAYS_NOTHING = re.compile(r"\W*|#.*|(?:import|from) .*|\W*else\W*|(?:inline )?namespace\b.*|using namespace\b.*|(?:public|private|protected):")

# (one file, another, a piece of the run without its blanks): the reason why both have it.
ALLOWED = {}


def significant(text):
    """(number, line without its blanks) of each line that counts."""
    bare = COMMENT.sub(lambda found: found.group(1) or re.sub(r"[^\n]", " ", found.group()), text)
    lines = ((number, re.sub(r"\s+", "", line), line.strip()) for number, line in enumerate(bare.split("\n"), 1))
    return [(number, squeezed) for number, squeezed, line in lines if not SAYS_NOTHING.fullmatch(line)]


def runs(texts, least):
    """(lines, file, its first line, other file, its first line there, the run as one text) of each run, longest first."""
    lines = {path: significant(text) for path, text in texts.items()}
    windows = collections.defaultdict(list)
    for path, found in lines.items():
        for at in range(len(found) - least + 1):
            windows[tuple(line for _, line in found[at : at + least])].append((path, at))
    seen = set()
    got = []
    for places in windows.values():
        for index, (one, at) in enumerate(places):
            for other, there in places[index + 1 :]:
                if one == other or (one, at, other, there) in seen:
                    continue
                a, b = lines[one], lines[other]
                before = 0
                while min(at, there) > before and a[at - before - 1][1] == b[there - before - 1][1]:
                    before += 1
                begin, length = at - before, before + least
                while begin + length < len(a) and there - before + length < len(b) and a[begin + length][1] == b[there - before + length][1]:
                    length += 1
                seen.update((one, begin + step, other, there - before + step) for step in range(length))
                run = "\n".join(line for _, line in a[begin : begin + length])
                got.append((length, one, a[begin][0], other, b[there - before][0], run))
    return sorted(got, key=lambda run: (-run[0], *run[1:]))


def faults_of(texts, least, allowed):
    used = set()
    for length, one, first, other, second, run in runs(texts, least):
        entries = {entry for entry in allowed if entry[:2] == (one, other) and entry[2] in run}
        used |= entries
        if not entries:
            yield f"{one}:{first}: has {length} lines that {other}:{second} has too: give them one place"
    for one, other, _ in sorted(allowed.keys() - used):
        yield f"scripts/check-duplicates.py: allows a run of {one} and {other} that is gone: take the entry out"


def self_test():
    six = "".join(f"  step({i});\n" for i in range(6))
    wider = six.replace("(", "( ").replace("\n", "\n\n") + "}\n"
    commented = six.replace(";\n", ";  // does it\n/* and\n waits */\n}\n#include <a>\n")
    ended = six.replace("step(3)", "leap(3)")
    a = "void a() {\n" + six + "}\n"
    expected = [
        ({"a.h": a, "b.h": "int b;\n" + wider}, {}, ["a.h:2: has 6 lines that b.h:2 has too"]),
        ({"a.h": a, "b.h": commented}, {}, ["a.h:2: has 6 lines that b.h:1 has too"]),
        ({"a.h": a, "b.h": a + "x();\n", "c.h": a + "x();\n"}, {}, ["b.h:1: has 8 lines that c.h:1", "a.h:1: has 7 lines that b.h:1", "a.h:1: has 7 lines that c.h:1"]),
        ({"a.h": a, "b.h": ended}, {}, []),
        ({"a.h": a + "other();\n" + a}, {}, []),
        ({"a.h": a.replace("2", '"// 2"'), "b.h": a.replace("2", '"// 3"')}, {}, []),
        ({"a.h": a, "b.h": a}, {("a.h", "b.h", "step(2);"): "it must"}, []),
        ({"a.h": a, "b.h": a}, {("a.h", "b.h", "step(6);"): "it must"}, ["a.h:1: has 7 lines", "scripts/check-duplicates.py: allows a run of a.h and b.h"]),
    ]
    for texts, allowed, want in expected:
        got = list(faults_of(texts, LEAST, allowed))
        if len(got) != len(want) or not all(fault.startswith(text) for fault, text in zip(got, want)):
            sys.exit(f"error: expected the faults {want} but got {got} in {texts}")
    print(f"check-duplicates finds the runs of {len(expected)} planted sets of files")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--least", type=int, default=LEAST, metavar="N")
    options.add_argument("--self-test", action="store_true")
    chosen = options.parse_args()
    if chosen.self_test:
        return self_test()
    texts = {path: (tree.ROOT / path).read_text() for path in tree.sources(ROOMS, (*tree.CPP, ".py"))}
    faults = list(faults_of(texts, chosen.least, ALLOWED))
    tree.end(
        faults,
        f"no {chosen.least} lines in a row that two files have, but there are {len(faults)} such runs",
        f"{len(texts)} files have no {chosen.least} lines in a row in common, but for {len(ALLOWED)} allowed",
    )


if __name__ == "__main__":
    main()
