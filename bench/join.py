#!/usr/bin/env python3
"""Joins rows of tern-bench with rows of a peer's script from the same run into a Markdown table of ratios.

usage: join.py OURS.jsonl PEERS.jsonl
Rows match where model, B, T, V, p, dtype and device are equal. Repeated rows count by the median of their burst_ms, the time of a
step without a wait in between; their range stands in brackets. The ratio is the peer's time over ours: above 1 tern is faster.
"""
import json
import statistics
import sys
from collections import defaultdict

KEY = ("model", "B", "T", "V", "p", "dtype", "device")


def times(path):
    """{(key, impl): the burst_ms of its rows}, in the order of the file."""
    found = defaultdict(list)
    with open(path, encoding="utf-8") as lines:
        for row in map(json.loads, filter(str.strip, lines)):
            if "burst_ms" in row:
                found[tuple(row.get(name) for name in KEY), row["impl"]].append(row["burst_ms"])
    return found


def shown(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    ours, peers = times(sys.argv[1]), times(sys.argv[2])
    print("| model | B | T | mode | device | tern | ms a step | peer | ms a step | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (key, impl), mine in ours.items():
        for (other, peer), theirs in peers.items():
            if other == key:
                model, batch, length, _, _, mode, device = key
                ratio = statistics.median(theirs) / statistics.median(mine)
                print(f"| {model} | {batch} | {length} | {mode} | {device} | {impl} | {shown(mine)} | PyTorch {peer} | {shown(theirs)} | {ratio:.2f} |")
    return 0


sys.exit(main())
