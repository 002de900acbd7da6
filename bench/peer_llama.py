#!/usr/bin/env python3
"""bench/peer_llama.py TERN_LM LLAMA_BENCH MODEL.gguf... [--threads 2] [--tokens 64] [--rounds 5]: decoding of one text on the CPU by
`tern-lm sample --temperature 0` and by llama.cpp's llama-bench in turn, on the same file. A token's time is the difference of a run with
so many tokens and one with a single token, each the least of the rounds, so that loading does not count; wall time, and CPU time, which
other programs of a busy machine disturb less."""
import argparse
import json
import os
import subprocess
import time


def run(command):
    begin = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.monotonic() - begin, usage.ru_utime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tern_lm")
    parser.add_argument("llama_bench")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for model in options.models:
        commands = {
            "tern": lambda n: [options.tern_lm, "sample", model, "--prompt", "a", "--temperature", 0, "--threads", options.threads, "--tokens", n],
            "llama.cpp": lambda n: [options.llama_bench, "-m", model, "-t", options.threads, "-p", 0, "-r", 1, "--no-warmup", "-n", n],
        }
        least = {}
        for _ in range(options.rounds):
            for name, command in commands.items():
                for n in (1, 1 + options.tokens):
                    times = run(command(n))
                    least[name, n] = tuple(map(min, times, least.get((name, n), times)))
        row = {"model": os.path.basename(model), "threads": options.threads, "tokens": options.tokens, "rounds": options.rounds}
        for name in commands:
            wall, cpu = ((least[name, 1 + options.tokens][i] - least[name, 1][i]) / options.tokens for i in (0, 1))
            row[name] = {"tokens/s": round(1 / wall, 2), "ms of CPU time a token": round(1e3 * cpu, 1)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
