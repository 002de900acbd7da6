#!/usr/bin/env python3
"""Says where the time of a training step goes, from what kernel_times.cpp wrote.

usage: kernel_times.py NAME TIMES.tsv [ROWS.jsonl]
A step ends with the optimizer's kernel (update_all). Of the steps with as many records as most have, but the first three, each record
counts by its median, and so does the wait before it (of the first: since the step before). Prints microseconds, waits included, and
records for each kind; appends a row for each kernel to ROWS.jsonl.
"""
import collections
import json
import re
import statistics
import sys

# A mangled name of ours holds the kernel's name and its file's, as in deferred_sums_cu: the first pattern that occurs in it decides. Names
# that earlier builds had (attend, multiply_results, partial_sums, deep_product) stay, so that their records are counted alike.
KINDS = (
    ("attention", "attend|attention|multiply_results"),
    ("norms", "layer_norm"),
    ("AdamW", "optimizer"),
    ("biases, sums", "bias_grad|partial_sums|deferred_sums"),
    ("loss", "loss|cross_entropy"),
    ("products", "nvjet|gemm|splitK|tf32|deep_product|cutlass"),
)


def kind_of(kernel):
    return next((kind for kind, pattern in KINDS if re.search(pattern, kernel)), "rest")


def median_step(records):
    """[(name, us, us waited before)] of a step."""
    ends = [i for i, (*_, name) in enumerate(records) if "update_all" in name]
    steps = [(a + 1, b + 1) for a, b in zip(ends, ends[1:]) if b - a > 20]
    if len(steps) < 5:
        sys.exit(f"kernel_times: expected five steps and more but found {len(steps)}: pass more --steps")
    length = collections.Counter(end - begin for begin, end in steps).most_common(1)[0][0]
    begins = [begin for begin, end in steps if end - begin == length][3:]
    result = []
    for i in range(length):
        us = statistics.median(records[b + i][1] - records[b + i][0] for b in begins) / 1e3
        waited = statistics.median(records[b + i][0] - records[b + i - 1][1] for b in begins) / 1e3
        result.append((records[begins[0] + i][2], us, max(waited, 0)))
    return result


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__.splitlines()[2])
    name, path = sys.argv[1:3]
    with open(path, encoding="utf-8") as lines:
        fields = [line.rstrip("\n").split("\t") for line in lines]
    step = median_step(sorted((int(f[0]), int(f[1]), f[4]) for f in fields))
    kinds, kernels = collections.defaultdict(lambda: [0, 0]), collections.defaultdict(lambda: [0, 0, 0])
    for kernel, us, waited in step:
        kinds[kind_of(kernel)][0] += us + waited
        kinds[kind_of(kernel)][1] += 1
        total = kernels[re.sub("_GLOBAL__N__[0-9a-f]+_", "", kernel)]
        total[0] += 1
        total[1] += us
        total[2] += waited
    print(f"{name}: {sum(us for us, _ in kinds.values()):.0f} us, {len(step)} records; " +
          ", ".join(f"{kind} {us:.0f} ({count})" for kind, (us, count) in sorted(kinds.items(), key=lambda entry: -entry[1][0])))
    if len(sys.argv) == 4:
        with open(sys.argv[3], "a", encoding="utf-8") as rows:
            for kernel, (count, us, waited) in sorted(kernels.items(), key=lambda entry: -entry[1][1]):
                rows.write(json.dumps({"step": name, "kernel": kernel, "count": count, "us": round(us, 1), "wait_us": round(waited, 1)}) + "\n")


main()
