#!/usr/bin/env python3
"""Compares decoding with quantised weights to decoding with those of the run, on a CPU.

usage: quantised_decoding.py TERN_TRANSLATE RUN LINES [--batch-size 1,64] [--rounds N] [--threads N] [--formats int8,...] [--copies N]
                             [--short-lines N] [--cpu-time] [--rows OUT.jsonl]

Quantises the run into a directory of its own that is removed at the end, and decodes the file's lines (--copies times over, the first
--short-lines of them for batches of one) greedily with float32, int8, dynamic-int8, q8_0 and q4_0 in turn, --rounds times. A format's ratio
is the median over the rounds of its tokens a second over float32's of the same round, so that what other programs take from the machine
hits both. Prints a table, with each round's tokens a second. On a machine that is not quiet, --threads 1 --cpu-time counts the seconds
that the processor worked for the program (its start among them), which others change least.
"""
import argparse
import json
import re
import resource
import statistics
import subprocess
import tempfile

FORMATS = ["int8", "dynamic-int8", "q8_0", "q4_0"]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def decode(program, run, lines, batch_size, threads, counts_cpu_time):
    command = [program, "decode", "--model", run, "--device", "cpu", "--threads", threads, "--batch-size", batch_size, "--statistics"]
    before = cpu_seconds()
    result = subprocess.run([str(word) for word in command], input="".join(lines), capture_output=True, text=True)
    said = re.search(r"with (\d+) target tokens in .*: (\d+) tokens/s", result.stderr)
    if result.returncode != 0 or not said:
        raise SystemExit(f"error: expected {run} to decode but got: {result.stderr.strip()}")
    return round(int(said.group(1)) / (cpu_seconds() - before)) if counts_cpu_time else int(said.group(2))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("run")
    parser.add_argument("lines")
    parser.add_argument("--batch-size", default="1,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--copies", type=int, default=6)
    parser.add_argument("--short-lines", type=int, default=150)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--rows")
    options = parser.parse_args()
    with open(options.lines, encoding="utf-8") as file:
        lines = file.readlines() * options.copies
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        runs = {"float32": options.run}
        for name in options.formats.split(","):
            runs[name] = f"{directory}/{name}"
            subprocess.run([options.program, "quantise", options.run, "--format", name, "--out", runs[name]], check=True, capture_output=True)
        print("| batch | format | tokens a second (median) | of float32 | each round |\n|---|---|---|---|---|")
        for batch_size in map(int, options.batch_size.split(",")):
            rates = {name: [] for name in runs}
            for _ in range(options.rounds):
                for name, run in runs.items():
                    given = lines[: options.short_lines] if batch_size == 1 else lines
                    rates[name].append(decode(options.program, run, given, batch_size, options.threads, options.cpu_time))
            for name, values in rates.items():
                ratio = statistics.median(mine / base for mine, base in zip(values, rates["float32"]))
                print(f"| {batch_size} | {name} | {statistics.median(values):,.0f} | {ratio:.2f}x | {', '.join(f'{v:,}' for v in values)} |",
                      flush=True)
                kind = "tokens_per_cpu_second" if options.cpu_time else "tokens_per_second"
                rows += [{"device": "cpu", "threads": options.threads, "format": name, "run": i + 1, "batch": batch_size, kind: value}
                         for i, value in enumerate(values)]
    if options.rows:
        with open(options.rows, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
