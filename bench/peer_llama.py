#!/usr/bin/env python3
"""bench/peer_llama.py TERN_LM LLAMA_BENCH MODEL.gguf... [--threads 2] [--tokens 128] [--rounds 5]: decoding of one text on the CPU by
`tern-lm sample --temperature 0` and by llama.cpp's llama-bench in turn, on the same file. Tokens a second: of tern from its first piece of
output to its last, so that loading does not count, of llama.cpp as it says. Prints the median of the rounds, and each."""
import argparse
import json
import os
import statistics
import subprocess
import time


def rate_of_tern(command, tokens):
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        first = last = 0
        while os.read(process.stdout.fileno(), 65536):
            last = time.monotonic()
            first = first or last
    assert process.returncode == 0, command
    return (tokens - 1) / (last - first)


def rate_of_llama(command):
    rows = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout)
    return rows[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tern_lm")
    parser.add_argument("llama_bench")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for model in options.models:
        tern = [options.tern_lm, "sample", model, "--prompt", "a", "--temperature", 0, "--threads", options.threads, "--tokens", options.tokens]
        llama = [options.llama_bench, "-m", model, "-t", options.threads, "-p", 0, "-r", 1, "-n", options.tokens, "-o", "json"]
        rates = {"tern": [], "llama.cpp": []}
        for _ in range(options.rounds):
            rates["tern"].append(rate_of_tern(tern, options.tokens))
            rates["llama.cpp"].append(rate_of_llama(llama))
        row = {"model": os.path.basename(model), "threads": options.threads, "tokens": options.tokens}
        for name, values in rates.items():
            row[name] = {"tokens/s": round(statistics.median(values), 2), "rounds": [round(value, 2) for value in values]}
        print(json.dumps(row))


main()
