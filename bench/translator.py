#!/usr/bin/env python3
"""Trains and times the translator, with one command for all its figures: quality over seeds and directions, speed of decoding, latency,
whether what is decoded depends on the batch, and what several models give together: as one, and as the teachers of another.

usage: translator.py PROGRAM DATA OUT [--src de --tgt en] [--seeds 1,2,3] [--both] [--rows FILE] [-- options of `tern-translate train`]
PROGRAM is tern-translate, DATA a directory as docs/data.md has it, OUT is where the runs go. Runs that are there already are kept, so that a
measurement that was cut short goes on. Prints a Markdown table for each part, and appends rows to FILE, one JSON object a line.
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

STATISTICS = re.compile(r"(\d+) lines? with (\d+) target tokens in ([\d.]+) s: (\d+) tokens/s; a line took ([\d.]+) ms \(median\), ([\d.]+) ms")


class Fault(Exception):
    """What is wrong with the user's input or with a run, in one line."""


def lines_of(directory, split, language):
    """The lines of DIR/SPLIT.LANGUAGE, plain or gzip."""
    for name in (split, "val" if split == "valid" else split):
        for path in (directory / f"{name}.{language}", directory / f"{name}.{language}.gz"):
            if path.exists():
                with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
                    return [line.rstrip("\n") for line in file]
    raise Fault(f"{directory}: expected {split}.{language}, plain or .gz")


def test_sets(directory, language):
    """The names of the test sets, the first one first."""
    names = {path.name.split(".")[0] for path in directory.glob(f"test*.{language}*")}
    if not names:
        raise Fault(f"{directory}: expected a test set, test*.{language}")
    return sorted(names)


def call(arguments, text=None):
    result = subprocess.run([str(a) for a in arguments], input=text, capture_output=True, text=True, encoding="utf-8", check=False)
    if result.returncode != 0:
        raise Fault(f"{' '.join(map(str, arguments[:2]))}: {result.stderr.strip().splitlines()[-1] if result.stderr else result.returncode}")
    return result.stdout, result.stderr


def train(options, src, tgt, seed, teachers=()):
    """The run with that seed and its summary; it is trained unless it is there."""
    out = options.out / (f"{src}-{tgt}-{seed}" + (f"-of-{len(teachers)}" if teachers else ""))
    if not (out / "summary.json").exists():
        began = time.monotonic()
        more = ["--teacher", ",".join(map(str, teachers))] if teachers else []
        call([options.program, "train", "--data", options.data, "--src", src, "--tgt", tgt, "--out", out, "--seed", seed, *options.train, *more])
        print(f"trained {out} in {time.monotonic() - began:.1f} s", file=sys.stderr)
    return out, json.loads((out / "summary.json").read_text(encoding="utf-8"))


def quality(options, directions, seeds, rows):
    print("| pair | seed | validation BLEU (greedy) | test BLEU | test chrF2 | seconds in all | updates |\n|---|---|---|---|---|---|---|")
    for src, tgt in directions:
        found = []
        for seed in seeds:
            _, summary = train(options, src, tgt, seed)
            found.append((summary["valid_bleu"], summary["test_bleu"], summary["test_chrf"]))
            print(f"| {src}->{tgt} | {seed} | {found[-1][0]:.2f} | {found[-1][1]:.2f} | {found[-1][2]:.2f} | {summary['total_seconds']:.1f} "
                  f"| {summary['updates']} |", flush=True)
            rows.append(dict(part="quality", src=src, tgt=tgt, seed=seed, **summary))
        means = [statistics.mean(values) for values in zip(*found)]
        print(f"| {src}->{tgt} | mean of {len(found)} | {means[0]:.2f} | {means[1]:.2f} | {means[2]:.2f} | | |")


def decode(options, models, text, *flags):
    """What was decoded, and the program's own statistics."""
    arguments = [options.program, "decode", "--statistics", *flags]
    for model in models:
        arguments += ["--model", model]
    began = time.monotonic()
    out, err = call(arguments, text)
    found = STATISTICS.search(err)
    if not found:
        raise Fault(f"decode --statistics printed no statistics: {err.strip()[-200:]}")
    return out, dict(lines=int(found[1]), tokens=int(found[2]), seconds=float(found[3]), tokens_per_second=int(found[4]),
                     median_ms=float(found[5]), p99_ms=float(found[6]), with_start_seconds=round(time.monotonic() - began, 3))


def speed(options, src, tgt, seed, rows):
    run, _ = train(options, src, tgt, seed)
    everything = "".join(line + "\n" for line in lines_of(options.data, "train", src))
    test = "".join(line + "\n" for line in lines_of(options.data, test_sets(options.data, src)[0], src))
    print("\n| decoded | search | batch | target tokens/s | seconds | with start-up | a line, ms: median, p99 |\n|---|---|---|---|---|---|---|")
    for what, text, flags in (
        ("training sources", everything, ("--batch-size", options.batch)),
        ("training sources", everything, ("--batch-size", options.batch // 2 or 1, "--beam", 5)),
        ("test set", test, ("--batch-size", options.batch)),
        ("test set, line by line", test, ("--batch-size", 1)),
    ):
        _, row = decode(options, [run], text, *flags)
        search = "beam 5" if "--beam" in flags else "greedy"
        print(f"| {what}, {row['lines']} lines | {search} | {flags[1]} | {row['tokens_per_second']:,} | {row['seconds']:.3f} "
              f"| {row['with_start_seconds']:.2f} | {row['median_ms']:.2f}, {row['p99_ms']:.2f} |", flush=True)
        rows.append(dict(part="speed", decoded=what, search=search, batch=flags[1], **row))


def invariance(options, src, tgt, seed, rows):
    """Whether batches of 1, 8 and 256 give the same text."""
    run, _ = train(options, src, tgt, seed)
    test = "".join(line + "\n" for line in lines_of(options.data, test_sets(options.data, src)[0], src))
    print("\n| search | lines that differ from batch 1: batch 8 | batch 256 |\n|---|---|---|")
    for search in ((), ("--beam", "5")):
        texts = [decode(options, [run], test, "--batch-size", size, *search)[0].splitlines() for size in (1, 8, 256)]
        differ = [sum(a != b for a, b in zip(texts[0], other)) for other in texts[1:]]
        print(f"| {' '.join(search) or 'greedy'} | {differ[0]} | {differ[1]} |", flush=True)
        rows.append(dict(part="invariance", search=" ".join(search) or "greedy", batch_8=differ[0], batch_256=differ[1]))


def ensemble(options, src, tgt, seeds, rows):
    runs = [train(options, src, tgt, seed)[0] for seed in seeds]
    name = test_sets(options.data, src)[0]
    text = "".join(line + "\n" for line in lines_of(options.data, name, src))
    reference = options.out / f"{name}.{tgt}"
    reference.write_text("".join(line + "\n" for line in lines_of(options.data, name, tgt)), encoding="utf-8")
    hypotheses = options.out / f"{name}.ensemble.{tgt}"
    hypotheses.write_text(decode(options, runs, text, "--beam", 5, "--batch-size", 256)[0], encoding="utf-8")
    score = json.loads(call([options.program, "score", "--hyp", hypotheses, "--ref", reference, "--json"])[0])
    print(f"\nAn ensemble of {len(runs)} by beam 5 on {name}: {json.dumps(score)}")
    rows.append(dict(part="ensemble", models=len(runs), test=name, score=score))


def distill(options, src, tgt, seeds, rows):
    """A model that learns from the targets and from what the models of all seeds translate the sources to, together and by --beam."""
    teachers = [train(options, src, tgt, seed)[0] for seed in seeds]
    print("\n| teachers | seed | validation BLEU (greedy) | by beam | test BLEU | test chrF2 | seconds in all | updates |\n" + "|---" * 8 + "|")
    for seed in options.students.split(","):
        _, summary = train(options, src, tgt, seed, teachers)
        beam = summary.get("valid_beam_bleu", summary["valid_bleu"])
        print(f"| {len(teachers)} | {seed} | {summary['valid_bleu']:.2f} | {beam:.2f} | {summary['test_bleu']:.2f} "
              f"| {summary['test_chrf']:.2f} | {summary['total_seconds']:.1f} | {summary['updates']} |", flush=True)
        rows.append(dict(part="distill", src=src, tgt=tgt, seed=seed, teachers=len(teachers), **summary))


def main():
    arguments, train_options = sys.argv[1:], []
    if "--" in arguments:
        train_options = arguments[arguments.index("--") + 1 :]
        arguments = arguments[: arguments.index("--")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--src", default="de")
    parser.add_argument("--tgt", default="en")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--both", action="store_true", help="the other direction as well")
    parser.add_argument("--parts", default="quality,speed,invariance,ensemble", help="and distill, where the models of all seeds teach another")
    parser.add_argument("--students", default="4", help="seeds of the models that are taught")
    parser.add_argument("--batch", type=int, default=2048, help="sentences of a batch where speed is measured, half of them for a beam")
    parser.add_argument("--rows", type=pathlib.Path)
    options = parser.parse_args(arguments)
    options.train = train_options
    options.program = options.program.resolve()  # a name alone would be looked up in PATH
    os.makedirs(options.out, exist_ok=True)
    seeds, rows = options.seeds.split(","), []
    directions = [(options.src, options.tgt)] + ([(options.tgt, options.src)] if options.both else [])
    try:
        for part in options.parts.split(","):
            if part == "quality":
                quality(options, directions, seeds, rows)
            elif part == "speed":
                speed(options, options.src, options.tgt, seeds[0], rows)
            elif part == "invariance":
                invariance(options, options.src, options.tgt, seeds[0], rows)
            elif part == "ensemble":
                ensemble(options, options.src, options.tgt, seeds, rows)
            elif part == "distill":
                distill(options, options.src, options.tgt, seeds, rows)
            else:
                raise Fault(f"--parts: expected quality, speed, invariance, ensemble or distill but got {part}")
    except Fault as fault:
        sys.exit(f"translator.py: {fault}")
    finally:
        if options.rows:
            with open(options.rows, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
