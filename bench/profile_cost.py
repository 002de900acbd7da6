#!/usr/bin/env python3
"""Says what a profiler costs a training step: nothing where it is off, by two builds in turn; and where it is on, within one build.

usage: profile_cost.py BEFORE/tern-bench AFTER/tern-bench [--pairs N] [--off-alone] [--rows OUT.jsonl] [-- OPTION ...]

BEFORE is a build without src/profile. Each pair runs `tern-bench step` with the options once with each build, in turns of order,
and takes the processor's time; the one with --profile has a step's mean under the profiler beside the burst without, of one process. Prints the median of the pairs' differences in percent with its 95% interval
(bootstrap), which a neighbour's work does not move as it does the mean.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile


def row_of(program, options, extra):
    with tempfile.TemporaryDirectory() as directory:
        rows = os.path.join(directory, "rows")
        more = [word.replace("DIR", directory) for word in extra]
        subprocess.run([program, "step", *options, *more, "--json", rows], check=True, stdout=subprocess.DEVNULL, timeout=300)
        with open(rows, encoding="utf-8") as lines:
            return json.loads(lines.readline())


def processor_seconds(program, options):
    """Of a whole run: work of neighbours that takes the processor away does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, "step", *options], check=True, stdout=subprocess.DEVNULL, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def interval(percents):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(percents, k=len(percents))) for _ in range(4000))
    return statistics.median(percents), medians[100], medians[-101]


def show(name, percents, rows, options):
    median, low, high = interval(percents)
    print(f"{name}: {median:+.2f}% ({low:+.2f} to {high:+.2f}), {len(percents)} pairs", flush=True)
    if rows:
        with open(rows, "a", encoding="utf-8") as out:
            out.write(json.dumps({"what": name, "median_percent": round(median, 3), "low": round(low, 3), "high": round(high, 3), "pairs": len(percents),
                                  "options": " ".join(options)}) + "\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2][7:])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rows")
    parser.add_argument("--off-alone", action="store_true")
    arguments, options = parser.parse_known_args()
    options = [word for word in options if word != "--"]
    off, on = [], []
    for i in range(arguments.pairs):
        builds = [arguments.before, arguments.after]
        times = {build: processor_seconds(build, options) for build in (builds if i % 2 == 0 else builds[::-1])}
        off.append(100 * (times[arguments.after] / times[arguments.before] - 1))
        if arguments.off_alone:
            continue
        row = row_of(arguments.after, options, ["--profile", "10", "--out", "DIR/out"])
        on.append(100 * (row["profiled_ms"] / row["burst_ms"] - 1))
    show("profiler off", off, arguments.rows, options)
    if on:
        show("profiler on", on, arguments.rows, options)


if __name__ == "__main__":
    sys.exit(main())
