#!/usr/bin/env python3
"""Calls every flag of every program with values that no user means.

    python3 tests/fuzz/flags.py PROGRAM... [--calls N] [--seed N]

Each end is to be exit code 0, 1 or 2; with 1 or 2 there is one line on stderr that begins with the program's name; no control character
reaches stdout or stderr, and no line is longer than 2,000 bytes. The flags are those that --help lists. Without --calls all pairs of flag and
value are called; with it so many of them, at random. A call that is still at work after a while had a valid value: it is ended and counted.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

VALUES = [b"", b" ", b"x", b"-1", b"0", b"1", b"-0", b"1e-320", b"-1e-320", b"1e-400", b"1e400", b"1e999", b"nan", b"-nan", b"inf", b"-inf", b"0x10",
          b"1e3", b"2.5", b"1_000", b"99999999999999999999", b"-9223372036854775809", b"9223372036854775807", b"2147483648", b"1e308", b"5e-324",
          b"True", b"maybe", b"--", b"-", b"--out", b"%s%n%x", b"{}", b"{0}", b"1,2,,3", b",", b"1;2", b"'", b'"', b"$(id)", b"\\", b"a b", b"a\nb", b"a\r\tb",
          b"\x1b[31mred\x1b]0;x\x07", b"\x7f", b"\xc2\x9b31m", b"\xe2\x80\xaex", b"\xe2\x81\xa6x", b"\xe2\x80\xa8", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80",
          "\u00fc\U0001F600".encode(), b"x" * 100_000, b"9" * 5000, b"../" * 2000, b"/", b".", b"/dev/null", b"/dev/zero", b"/dev/full", b"/proc/self/mem",
          b"/nonexistent/x", b"FIFO", b"cuda", b"cuda:99", b"cuda:-1", b"auto"]
# Enough for a call to end soon where the value is fit for use.
SMALL = {
    ("tern-translate", "train"): "--data none --src de --tgt en --out none/run",
    ("tern-translate", "decode"): "--model none",
    ("tern-translate", "score"): "--hyp none --ref none",
    ("tern-recall", "train"): "--out /proc/none --train-examples 8 --valid-examples 8 --test-examples 8 --epochs 1",
    ("tern-recall", "sweep"): "--out /proc/none --train-examples 8 --valid-examples 8 --test-examples 8 --epochs 1 --layers 1 --seeds 1",
    ("tern-recall", "plot"): "none.csv",
    ("tern-recall", "hardcoded"): "--vocab 5 --length 4 --examples 1",
    ("tern-bench", "step"): "--model ar --batch 1 --length 8 --vocab 100 --steps 1 --warmup 0",
    ("tern-bench", "compile"): "--model char --batch 1 --length 4 --width 8 --layers 1 --vocab 11 --pass forward --seconds 1e-6",
    ("tern-bench", "rules"): "--ops 1",
    ("tern-bench", "loops"): "--kernel gelu --size 9 --seconds 1e-6",
    ("tern-bench", "ops"): "--op adamw --dtype fp32 --seconds 1e-6",
    ("tern-bench", "conv1d"): "--dtype fp32 --taps 3 --seconds 1e-6",
}
SECONDS = 20


def output_of(arguments):
    return subprocess.run(arguments, capture_output=True, check=True).stdout.decode()


def flags_of(program):
    """(subcommand, flag) of all; a value stands behind a flag, or beside it with an equals sign."""
    commands = re.findall(r"^  ([a-z][a-z0-9]*) ", output_of([program, "--help"]).split("Subcommands:")[1], re.MULTILINE)
    for command in commands:
        for flag in re.findall(r"^ +(?:-\w,)?(--[a-z0-9-]+)", output_of([program, command, "--help"]), re.MULTILINE):
            if flag != "--help":
                yield command, flag
        yield command, ""


def faults_of(name, code, out, err):
    if code == "late":
        return
    if code not in (0, 1, 2):
        yield f"exit code {code}"
    for stream, text in (("stdout", out), ("stderr", err)):
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            yield f"{stream} is not UTF-8"
            continue
        controls = {c for c in decoded if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069}
        if controls:
            yield f"{stream} has the control characters {sorted(map(hex, map(ord, controls)))}"
        if any(len(line) > 2000 for line in text.split(b"\n")):
            yield f"{stream} has a line of more than 2,000 bytes"
    if code in (1, 2):
        if err.count(b"\n") != 1 or not err.endswith(b"\n"):
            yield f"{err.count(10)} lines on stderr"
        if not err.startswith(name.encode() + b": "):
            yield "the message does not begin with the program's name"
        if re.search(rb"std::|stod|stoll|nlohmann|json\.exception|basic_string|bad_alloc|terminate", err):
            yield "an exception of another library's"
    if code == 1 and not re.search(rb"out of memory|not finite|could not be written", err):
        yield "exit code 1 for a mistake of the user's"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--calls", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    calls = [(program, command, flag, value, form) for program in options.programs for command, flag in flags_of(program) for value in VALUES
             for form in ((" ", "=") if flag else ("",))]
    rnd = random.Random(options.seed)
    if options.calls is not None:
        calls = rnd.sample(calls, min(options.calls, len(calls)))
    ends, found = collections.Counter(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        os.mkfifo(f"{scratch}/FIFO")

        def call(one):
            program, command, flag, value, form = one
            name = pathlib.Path(program).name
            base = [part.encode() for part in SMALL.get((name, command), "").split()]
            more = [value] if form == "" else [flag.encode(), value] if form == " " else [flag.encode() + b"=" + value]
            try:
                # A directory of its own: a value may be the name of one that is written.
                with tempfile.TemporaryDirectory(dir=scratch) as own:
                    os.link(f"{scratch}/FIFO", f"{own}/FIFO")
                    done = subprocess.run([os.path.abspath(program).encode(), command.encode(), *base, *more], stdin=subprocess.DEVNULL, capture_output=True,
                                          timeout=SECONDS, cwd=own, env=environment)
                return one, done.returncode, list(faults_of(name, done.returncode, done.stdout, done.stderr)), done.stderr
            except subprocess.TimeoutExpired:
                return one, "late", [], b""

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for one, code, faults, err in pool.map(call, calls):
                ends[code] += 1
                if code == "late" and one[3] == b"FIFO":
                    faults = ["a FIFO was waited for"]
                if code == "late":
                    print(f"still at work: {pathlib.Path(one[0]).name} {one[1]} {one[2]} {one[3][:30]!r}")
                for fault in faults:
                    found += 1
                    print(f"{pathlib.Path(one[0]).name} {one[1]} {one[2]}{one[4]}{one[3][:40]!r}: {fault}: {err[:200]!r}")
    print(f"{len(calls)} calls: " + ", ".join(f"{count} {'still at work' if code == 'late' else f'exit code {code}'}" for code, count in sorted(ends.items(), key=str))
          + f"; {found} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
