#!/usr/bin/env python3
"""Compares two builds of tern-bench on one machine: every row of `ops`, `conv1d` and of the steps in bench/README.md, alternating.

usage: compare_builds.py OLD/tern-bench NEW/tern-bench [--device cuda|cpu] [--suites steps,ops,conv1d] [--repeats N] [--seconds X]
                         [--steps N] [--limit PERCENT] [--rows OUT.jsonl]

Each command runs with the old build, then with the new one, and so on; a row's time is the least of its repeats, which is what the device
takes when nothing disturbs it. Prints the rows whose time differs by more than the limit and a summary, and exits with 1 where one is slower.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict

STEPS = {
    "cuda": [
        ["mt", 128, 40, 10000, mode, 0.1, flags]
        for mode, flags in [("fp32", []), ("fp32", ["fused"])] + [(m, ["fused", "capture"]) for m in ("fp32", "tf32x3", "tf32", "bf16")]
    ] + [
        ["ar", 64, 64, 64, "bf16", 0, ["fused", "capture"]],
        ["ar", 64, 64, 64, "bf16", 0.1, ["fused", "capture"]],
        ["ar", 64, 64, 64, "fp32", 0.1, ["fused", "capture"]],
        ["small", 4, 512, 10000, "bf16", 0, ["fused", "capture"]],
        ["small", 4, 512, 10000, "bf16", 0.1, ["fused", "capture"]],
        ["small", 4, 512, 10000, "tf32", 0, ["fused", "capture"]],
        ["small", 8, 1024, 50304, "bf16", 0, ["fused", "capture"]],
        ["xl", 8, 1024, 50304, "bf16", 0, ["fused", "capture"]],
    ],
    "cpu": [["mt", 32, 40, 10000, "fp32", 0.1, flags] for flags in ([], ["fused"])],
}
OPS = {
    "cuda": ["softmax", "layernorm", "rmsnorm", "residual_layernorm", "xent", "linear_xent", "adamw", "grad_norm"],
    "cpu": ["softmax", "layernorm"],
}
FLAGS = {"fused": "--use-fused-kernel", "capture": "--capture"}


def commands(device, suites, seconds, measured):
    if "steps" in suites:
        for model, batch, length, vocab, mode, dropout, flags in STEPS[device]:
            yield ["step", "--model", model, "--batch", batch, "--length", length, "--vocab", vocab, "--precision", mode, "--dropout", dropout,
                   "--warmup", 10 if device == "cuda" else 2, "--steps", measured] + [FLAGS[flag] for flag in flags]
    if "ops" in suites:
        for op in OPS[device]:
            yield ["ops", "--op", op, "--seconds", seconds]
    if "conv1d" in suites:
        for layout in ("last", "first"):
            yield ["conv1d", "--layout", layout, "--seconds", seconds]


def key_of(row, command):
    names = ("model", "B", "T", "V", "p", "op", "pass", "layout", "shape", "dtype", "precision", "impl", "K", "k", "direction")
    key = tuple(f"{row[name]}" for name in names if row.get(name) is not None)
    return key + tuple(word for word in command if word in FLAGS.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--device", default="cuda", choices=STEPS)
    parser.add_argument("--suites", default="steps,ops,conv1d")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("--rows")
    arguments = parser.parse_args()
    builds = {"old": arguments.old, "new": arguments.new}
    times = defaultdict(lambda: defaultdict(list))
    for command in commands(arguments.device, arguments.suites.split(","), arguments.seconds, arguments.steps):
        words = [str(word) for word in command]
        for _ in range(arguments.repeats):
            for build, program in builds.items():
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "rows.jsonl")
                    run = subprocess.run([program, *words, "--device", arguments.device, "--json", path], capture_output=True, text=True)
                    if run.returncode != 0:
                        print(f"{build}: {' '.join(words)}: exit code {run.returncode}: {run.stderr.strip()[-300:]}", file=sys.stderr)
                        continue
                    for line in open(path, encoding="utf-8"):
                        row = json.loads(line)
                        if arguments.rows:
                            with open(arguments.rows, "a", encoding="utf-8") as out:
                                out.write(json.dumps({"build": build, **row}) + "\n")
                        time = row.get("burst_ms", row.get("ms"))
                        if time is not None and row.get("impl") != "copy":
                            times[key_of(row, words)][build].append(time)
    slower, ratios = 0, []
    print(f"{'old us':>12} {'new us':>12} {'new/old':>8}  row")
    for key, both in times.items():
        if len(both) < 2:
            print(f"{'':34} {' '.join(key)}: measured by one build alone: {', '.join(both)}")
            continue
        old, new = min(both["old"]), min(both["new"])
        ratios.append(new / old)
        if abs(new / old - 1) * 100 > arguments.limit or "steps" == arguments.suites:
            print(f"{old * 1e3:12.2f} {new * 1e3:12.2f} {new / old:8.3f}  {' '.join(key)}")
        slower += new / old > 1 + arguments.limit / 100
    ratios.sort()
    if ratios:
        print(f"{len(ratios)} rows: new/old least {ratios[0]:.3f}, median {ratios[len(ratios) // 2]:.3f}, most {ratios[-1]:.3f}; "
              f"{slower} slower by more than {arguments.limit:g}%")
    return 1 if slower or not ratios else 0


if __name__ == "__main__":
    sys.exit(main())
