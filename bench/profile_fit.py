#!/usr/bin/env python3
"""Splits what a profile costs into what each step pays and what each profile pays once.

usage: profile_fit.py ROWS.jsonl TRACES-DIRECTORY

Each row is of `tern-bench step --steps N/2 --profile N --json ROWS.jsonl`, so that its burst has as many steps as its profile. By least squares
over all rows, the milliseconds of N steps are fixed + N * each, with the profiler and without. Where the fixed part lies is read from traces
named N.json in the directory: before the GPU's first work, after its last, and in steps at the beginning that take longer than later ones.
"""
import collections
import json
import pathlib
import statistics
import sys


def fit(points):
    """(fixed, each) of ms = fixed + each * steps."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    each = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - each * mean_x, each


def show_trace(path):
    with open(path, encoding="utf-8") as text:
        events = [e for e in json.load(text)["traceEvents"] if e["ph"] == "X"]
    steps = sorted((e["ts"], e["dur"]) for e in events if e.get("cat") == "step")
    work = sorted((e["ts"], e["dur"]) for e in events if e["pid"] == 2)
    if not work or len(work) % len(steps):
        print(f"{path.name}: {len(work)} records in {len(steps)} steps, which is not the same number in each")
        return
    per = len(work) // len(steps)
    starts = [work[i][0] for i in range(0, len(work), per)]
    gaps = [(b - a) / 1e3 for a, b in zip(starts, starts[1:])]
    last = max(ts + dur for ts, dur in work)
    later = statistics.median(gaps[len(gaps) // 2:])
    print(f"{path.name}: {per} records a step; {(work[0][0] - steps[0][0]) / 1e3:.3f} ms before the GPU begins, "
          f"{(steps[-1][0] + steps[-1][1] - last) / 1e3:.3f} ms after it ends; steps by the GPU's clock "
          f"{', '.join(f'{gap:.3f}' for gap in gaps[:4])}, ..., median of the later half {later:.3f} ms, "
          f"sum above that median {sum(gaps) - later * len(gaps):+.3f} ms")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[2])
    with open(sys.argv[1], encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    by_steps = collections.defaultdict(list)
    for row in rows:
        by_steps[2 * row["steps"]].append(row)
    print("| steps | without, ms each | profiled, ms each | cost |\n|---|---|---|---|")
    for steps, group in sorted(by_steps.items()):
        burst, profiled = (statistics.median(row[key] for row in group) for key in ("burst_ms", "profiled_ms"))
        print(f"| {steps} | {burst:.4f} | {profiled:.4f} | {100 * (profiled / burst - 1):+.2f}% |")
    without = fit([(2 * row["steps"], 2 * row["steps"] * row["burst_ms"]) for row in rows])
    with_it = fit([(2 * row["steps"], 2 * row["steps"] * row["profiled_ms"]) for row in rows])
    print(f"without: {without[0]:.3f} ms once and {without[1]:.4f} ms a step; profiled: {with_it[0]:.3f} ms once and {with_it[1]:.4f} ms a step")
    print(f"so a profile costs {with_it[0] - without[0]:.3f} ms once and {100 * (with_it[1] / without[1] - 1):+.2f}% a step")
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.json"), key=lambda path: int(path.stem)):
        show_trace(path)


if __name__ == "__main__":
    main()
