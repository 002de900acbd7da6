#!/usr/bin/env python3
"""PyTorch's attention beside `tern-bench attention`: the same shapes, in rows that join.py reads. Needs PyTorch.

usage: peer_attention.py OUT.jsonl [--device cuda] [--sweep models] [--dtype bfloat16] [--impl flash,cudnn] [--lengths 512,1024] [--seconds 0.2] [--threads 2]

Shapes are (B, H, N, d); q, k and v are views of one projection (B, N, 3, H, d), as a model has them. On a GPU each call finds the second
cache full of something else, and the median counts; impl is a backend of F.scaled_dot_product_attention, or `plain`, the composition by
products and a softmax, or `compile`, the same compiled. On the CPU PyTorch chooses.
"""
import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
MODELS = {
    "cuda": [(128, 8, 40, 32, True), (64, 4, 64, 32, True), (4, 12, 1024, 64, True), (8, 12, 1024, 64, True), (1, 16, 4096, 64, True),
             (1, 16, 16384, 64, True), (4, 16, 4096, 128, True), (8, 1, 16384, 128, True), (8, 1, 16384, 128, False), (1, 1, 65536, 128, True)],
    "cpu": [(32, 8, 40, 32, True), (8, 8, 512, 64, True), (8, 8, 512, 64, False), (4, 8, 1024, 64, True), (2, 8, 2048, 64, True),
            (1, 8, 4096, 64, True), (1, 8, 4096, 64, False)],
}


def cases(args):
    """The sweeps of `tern-bench attention`."""
    if args.sweep == "models" and not args.lengths:
        return MODELS[args.device]
    batch = args.sweep == "batch"
    lengths = args.lengths or ([256, 1024, 4096, 8192, 16384] if batch else [2**i for i in range(7, 17)])
    return [(8 if batch else 1, 1, length, width, not batch) for width in (16, 32, 64, 128) for length in lengths]


class Clock:
    def __init__(self, device, seconds):
        self.cuda, self.seconds = device == "cuda", seconds
        self.flush = torch.empty(1 << 26, device=device) if self.cuda else None

    def once(self, f):
        if not self.cuda:
            start = time.perf_counter()
            f()
            return (time.perf_counter() - start) * 1e3
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        begin.record()
        f()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def measure(self, f):
        """The median ms of about so many seconds of calls."""
        self.once(f)
        repeats = int(min(max(self.seconds * 1e3 / max(self.once(f), 1e-3), 3), 200))
        return statistics.median(self.once(f) for _ in range(repeats))


def plain(q, k, v, causal):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


def run(args, clock, case, dtype, impl, add):
    batch, heads, length, width, causal = case
    qkv = torch.randn(batch, length, 3, heads, width, dtype=dtype, device=args.device, requires_grad=True)
    g = torch.randn(batch, heads, length, width, dtype=dtype, device=args.device)
    composed = torch.compile(plain) if impl == "compile" else plain

    def forward():
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        if impl in ("plain", "compile"):
            return composed(q, k, v, causal)
        if impl == "default":
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with sdpa_kernel(BACKENDS[impl]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def both():
        qkv.grad = None
        forward().backward(g)

    y = forward()
    backward = clock.measure(lambda: torch.autograd.grad(y, qkv, g, retain_graph=True))
    del y
    with torch.no_grad():
        add("attention_fwd", clock.measure(forward))
    add("attention_bwd", backward)
    add("attention_fwd_bwd", clock.measure(both))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--sweep", default="models", choices=("models", "batch", "length"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--impl")
    parser.add_argument("--lengths", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = Clock(args.device, args.seconds)
    with open(args.out, "a", encoding="utf-8") as out:
        for case in cases(args):
            for name in args.dtype.split(","):
                for impl in (args.impl or ("flash,cudnn,efficient" if args.device == "cuda" else "default")).split(","):
                    about = {"shape": list(case[:4]), "causal": case[4], "dtype": name, "impl": impl, "device": args.device}
                    if args.device == "cpu":
                        about["threads"] = args.threads

                    def add(op, ms):
                        print(json.dumps({"op": op, **about, "ms": round(ms, 5)}), file=out, flush=True)

                    try:
                        run(args, clock, case, getattr(torch, name), impl, add)
                    except torch.OutOfMemoryError:
                        print(json.dumps({"op": "attention_fwd_bwd", **about, "error": "out of memory"}), file=out, flush=True)
                    except RuntimeError as error:  # a backend without a kernel for the dtype
                        print(json.dumps({"op": "attention_fwd_bwd", **about, "error": str(error).splitlines()[0]}), file=out, flush=True)
                    if args.device == "cuda":
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
