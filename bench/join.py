#!/usr/bin/env python3
"""Joins rows of tern-bench with rows of a peer's script from the same run into a Markdown table of ratios.

usage: join.py OURS.jsonl PEERS.jsonl
Rows match where model, B, T, V, p, dtype and device are equal. The ratio is the peer's time over ours: above 1 tern is faster.
"""
import json
import sys

KEY = ("model", "B", "T", "V", "p", "dtype", "device")


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    ours, peers = rows(sys.argv[1]), rows(sys.argv[2])
    print("| model | B | T | mode | device | tern | ms a step | peer | ms a step | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in ours:
        key = tuple(row.get(name) for name in KEY)
        for peer in peers:
            if tuple(peer.get(name) for name in KEY) != key or "burst_ms" not in peer:
                continue
            print(
                f"| {row['model']} | {row['B']} | {row['T']} | {row['dtype']} | {row['device']} | {row['impl']} | {row['burst_ms']:.3f} "
                f"| PyTorch {peer['impl']} | {peer['burst_ms']:.3f} | {peer['burst_ms'] / row['burst_ms']:.2f} |"
            )
    return 0


sys.exit(main())
