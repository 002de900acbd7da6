#!/usr/bin/env python3
"""Holds the kernel times of our profile beside another reader's, kernel by kernel.

usage: kernel_compare.py --traces TRACE.json ... --times TIMES.tsv ... [--ncu NCU.csv] [--top N] [--rows ROWS.jsonl]

TRACE.json is of `tern-bench step --capture --profile`, TIMES.tsv of kernel_times.cpp for the same command without --profile: only one program at
a time may read CUPTI's records. NCU.csv is of `ncu --csv --print-kernel-base mangled --metrics gpu__time_duration.sum` for steps that are not captured.
A step ends with the optimizer's kernel (update_all). Of steps with the commonest list of kernels, each position counts by its median, and
positions of equal names are added up: so the counts are exact, and what lies between kernels is in no figure. The total is of kernels alone,
without copies and fills. Every file's own total is printed as well: by how much one reader's runs differ bounds what the comparison can show.
Exits with 1 if the two have different kernels or counts, or totals that differ by more than 2%.
"""
import argparse
import collections
import csv
import ctypes
import json
import re
import statistics
import sys

_cxx = ctypes.CDLL("libstdc++.so.6")
_cxx.__cxa_demangle.restype = ctypes.c_void_p


def readable(name, known={}):
    """As readable_kernel_name in src/profile/kernel_name.cpp, written again here: two readers of the name, too."""
    if name not in known:
        status = ctypes.c_int()
        text = _cxx.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
        function = name
        if text:
            function = ctypes.string_at(text).decode().replace("(anonymous namespace)::", "")
            function = re.split(r"[(<]", function)[0].split(" ")[-1]
            file = re.search(r"_GLOBAL__N__[0-9a-f]+_[0-9]+_([A-Za-z0-9_]+?)_cu_", name)
            if file:
                function = f"{file[1]}.cu: {function.split('::')[-1]}"
        known[name] = function
    return known[name]


def steps_of(records, begins_with_step):
    """Lists of (name, us), a step each; what stands before the first end of a step is one only where told so."""
    updates = [i for i, (_, name, _) in enumerate(records) if "update_all" in name]
    ends = [i + 1 for i, after in zip(updates, updates[1:] + [len(records) + 99]) if after - i > 20]
    starts = ([0] if begins_with_step else []) + ends
    return [[(name, us) for _, name, us in records[a:b]] for a, b in zip(starts, ends if begins_with_step else ends[1:])]


def of_trace(path):
    with open(path, encoding="utf-8") as text:
        events = json.load(text)["traceEvents"]
    records = [(e["ts"], e["name"], e["dur"]) for e in events if e["ph"] == "X" and e.get("cat") in ("kernel", "copy", "fill") and e["pid"] == 2]
    return steps_of(sorted(records), True)


def of_times(path, in_graph):
    with open(path, encoding="utf-8") as lines:
        fields = [line.rstrip("\n").split("\t") for line in lines]
    records = sorted((int(f[0]), readable(f[4]), (int(f[1]) - int(f[0])) / 1e3, f[5] == "1") for f in fields)
    steps, at = [], 0
    for step in steps_of([r[:3] for r in records], True):
        if sum(r[3] for r in records[at:at + len(step)]) * 2 > len(step) or not in_graph:
            steps.append(step)
        at += len(step)
    return steps


def of_ncu(path):
    with open(path, encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
    records = [(i, readable(row["Kernel Name"]), float(row["Metric Value"].replace(",", "")) * scale[row["Metric Unit"]])
               for i, row in enumerate(row for row in rows if row.get("Metric Name") == "gpu__time_duration.sum")]
    return steps_of(records, False)


def is_kernel(name):
    return name not in ("copy", "fill")


def median_step(steps):
    """{name: [count, us]} of the steps with the commonest list of kernels, and how many of them there are."""
    lists = collections.Counter(tuple(sorted(name for name, _ in step if is_kernel(name))) for step in steps)
    if not lists:
        sys.exit("kernel_compare: expected records of whole steps but found none")
    common, count = lists.most_common(1)[0]
    kernels = collections.defaultdict(list)
    for step in steps:
        if tuple(sorted(name for name, _ in step if is_kernel(name))) != common:
            continue
        position = collections.Counter()
        for name, us in step:
            if is_kernel(name):
                kernels[name, position[name]].append(us)
                position[name] += 1
    result = collections.defaultdict(lambda: [0, 0.0])
    for (name, _), times in kernels.items():
        result[name][0] += 1
        result[name][1] += statistics.median(times)
    return dict(result), count


def total(step):
    return sum(us for _, us in step.values())


def main():
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2][7:])
    parser.add_argument("--traces", nargs="+", required=True)
    parser.add_argument("--times", nargs="+", required=True)
    parser.add_argument("--ncu")
    parser.add_argument("--as-written", action="store_true", help="the steps are not captured")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--rows")
    arguments = parser.parse_args()
    traces = [of_trace(path) for path in arguments.traces]
    times = [of_times(path, not arguments.as_written) for path in arguments.times]
    for kind, runs in (("profile", traces), ("other reader", times)):
        for run in runs:
            step, count = median_step(run)
            print(f"{kind}: a run's total {total(step):.1f} us a step, {sum(n for n, _ in step.values())} kernels, {count} steps alike of {len(run)}")
    ours, _ = median_step(sum(traces, []))
    theirs, _ = median_step(sum(times, []))
    third = of_ncu(arguments.ncu) if arguments.ncu else []
    if arguments.ncu and not third:
        print(f"{arguments.ncu}: no whole step, and so no figures of ncu's")
    ncu = median_step(third)[0] if third else {}
    names = sorted(ours.keys() | theirs.keys(), key=lambda name: -max(ours.get(name, [0, 0])[1], theirs.get(name, [0, 0])[1]))
    print("| kernel | calls | profile us | other us | ratio |" + (" ncu us | ratio to ncu |" if ncu else ""))
    print("|---|---|---|---|---|" + ("---|---|" if ncu else ""))
    is_same = True
    for i, name in enumerate(names):
        a, b, c = (step.get(name, [0, 0.0]) for step in (ours, theirs, ncu))
        is_same = is_same and a[0] == b[0]
        row = {"kernel": name, "profile_count": a[0], "profile_us": round(a[1], 2), "other_count": b[0], "other_us": round(b[1], 2)}
        if ncu:
            row |= {"ncu_count": c[0], "ncu_us": round(c[1], 2)}
        if arguments.rows:
            with open(arguments.rows, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
        if i < arguments.top or a[0] != b[0]:
            calls = str(a[0]) if a[0] == b[0] else f"{a[0]} and {b[0]}"
            line = f"| {name[:60]} | {calls} | {a[1]:.1f} | {b[1]:.1f} | {a[1] / b[1] if b[1] else float('nan'):.4f} |"
            print(line + (f" {c[1]:.1f} | {a[1] / c[1] if c[1] else float('nan'):.4f} |" if ncu else ""))
    ratio = total(ours) / total(theirs)
    line = f"| all {len(names)} kinds | {sum(n for n, _ in ours.values())} | {total(ours):.1f} | {total(theirs):.1f} | {ratio:.4f} |"
    print(line + (f" {total(ncu):.1f} | {total(ours) / total(ncu):.4f} |" if ncu else ""))
    worst = max((abs(ours[n][1] / theirs[n][1] - 1), n) for n in ours if n in theirs and ours[n][1] >= total(ours) / 100)
    print(f"of kernels with 1% of the time and more, the largest difference is {100 * worst[0]:.2f}% ({worst[1][:60]})")
    print("kernels and counts are " + ("the same" if is_same else "NOT the same") + f"; totals differ by {100 * (ratio - 1):+.2f}%")
    return 0 if is_same and abs(ratio - 1) <= 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
