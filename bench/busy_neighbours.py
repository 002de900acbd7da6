#!/usr/bin/env python3
"""Times training steps on one and on two threads, alone and beside processes that keep every processor busy.

usage: busy_neighbours.py --bench BUILD/apps/tern-bench [--lstm ./lstm_step] [--old OLD/tern-bench] [--neighbours 2] [--repeats 3] [--rows OUT.jsonl]

Prints the median step of each case, and two threads' as a multiple of one thread's. `recall` is tern-bench's model ar at the size of
tern-recall's default; lstm_step.cpp says how to build the other.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

SPIN = [sys.executable, "-c", "while True: pass"]


def recall(bench, threads):
    out = subprocess.run([bench, "step", "--model", "ar", "--batch", "32", "--length", "32", "--vocab", "64", "--use-fused-kernel", "--threads",
                          str(threads), "--warmup", "3", "--steps", "40"], capture_output=True, text=True, check=True).stdout
    return float(re.search(r"step\s+([\d.]+) ms", out).group(1))


def lstm(program, threads):
    out = subprocess.run([program, str(threads), "40"], capture_output=True, text=True, check=True).stdout
    return statistics.median(map(float, out.split()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--old")
    parser.add_argument("--lstm")
    parser.add_argument("--neighbours", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows")
    args = parser.parse_args()
    cases = [("recall", lambda n: recall(args.bench, n))]
    if args.old:
        cases.append(("recall, old", lambda n: recall(args.old, n)))
    if args.lstm:
        cases.append(("lstm", lambda n: lstm(args.lstm, n)))
    rows = []
    print(f"{'':16}{'neighbours':>11}{'1 thread ms':>13}{'2 threads ms':>14}{'ratio':>8}")
    for neighbours in (0, args.neighbours):
        busy = [subprocess.Popen(SPIN) for _ in range(neighbours)]
        try:
            for name, run in cases:
                times = {1: [], 2: []}
                for _ in range(args.repeats):
                    for threads in times:
                        times[threads].append(run(threads))
                one, two = (statistics.median(times[n]) for n in times)
                print(f"{name:16}{neighbours:11}{one:13.3f}{two:14.3f}{two / one:8.2f}", flush=True)
                rows.append({"case": name, "neighbours": neighbours, "one_thread_ms": times[1], "two_threads_ms": times[2]})
        finally:
            for process in busy:
                process.kill()
    if args.rows:
        with open(args.rows, "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
