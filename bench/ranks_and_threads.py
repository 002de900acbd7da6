#!/usr/bin/env python3
"""A training step in one process of N threads beside N processes of one thread, with the same global batch, in turn on one machine.

bench/ranks_and_threads.py --bench BUILD/apps/tern-bench --out ROWS.jsonl [--runs 5] [--ranks 2] -- --model mt --length 40 ...
Appends tern-bench's rows, and prints medians of burst_ms and of the ratio of neighbouring runs. The steps' options follow the --.
"""
import argparse
import json
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bench", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--batch", type=int, default=32, help="of all ranks together")
parser.add_argument("step", nargs="*", help="further options of tern-bench step")
options = parser.parse_args()

ways = {
    "threads": ["--threads", str(options.ranks), "--batch", str(options.batch)],
    "ranks": ["--ranks", str(options.ranks), "--threads", "1", "--batch", str(options.batch // options.ranks)],
}


def measure(way):
    command = [options.bench, "step", "--device", "cpu", "--json", options.out, *ways[way], *options.step]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    with open(options.out) as rows:
        return json.loads(rows.readlines()[-1])


found = {way: [] for way in ways}
for run in range(options.runs):
    for way in ways if run % 2 == 0 else reversed(list(ways)):
        found[way].append(measure(way))
for way, rows in found.items():
    print(f"{way}: {statistics.median(row['burst_ms'] for row in rows):.1f} ms", [row["burst_ms"] for row in rows])
print(f"without communication: {statistics.median(row['alone_ms'] for row in found['ranks']):.1f} ms")
ratios = [a["burst_ms"] / b["burst_ms"] for a, b in zip(found["ranks"], found["threads"])]
print(f"ranks / threads: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
