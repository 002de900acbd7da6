#!/usr/bin/env python3
"""PyTorch's figures at the convolutions of ResNet-18, beside bench/convolution.cpp, and a table of both.

usage: peer_convolution.py [--device cuda] [--batch 32] [--modes fp32,tf32,bf16] [--shapes 1,2,11] [--threads 1] [--seconds 0.15] [ROWS.jsonl]
Needs PyTorch. Times as convolution.cpp says, which must have run on the same machine. Appends rows to ROWS and prints, for each mode, a
table of all rows there, ours among them, of that device and batch: PyTorch's in NCHW (`first`) and in NHWC (`last`), and ours beside the
faster of the two. cuDNN's algorithms are chosen by timing (`benchmark`); tf32 lets it use TF32, fp32 does not. A pass of both directions makes
the gradients of images and weights, of the first convolution of weights alone.
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

# channels, size, channels out, kernel, stride, number in a ResNet-18 for images of 224 x 224
RESNET18 = ((3, 224, 64, 7, 2, 1), (64, 56, 64, 3, 1, 4), (64, 56, 128, 3, 2, 1), (64, 56, 128, 1, 2, 1), (128, 28, 128, 3, 1, 3),
            (128, 28, 256, 3, 2, 1), (128, 28, 256, 1, 2, 1), (256, 14, 256, 3, 1, 3), (256, 14, 512, 3, 2, 1), (256, 14, 512, 1, 2, 1),
            (512, 7, 512, 3, 1, 3))
FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}


def sample(device, calls, call):
    """Milliseconds of calls in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def measure(device, seconds, call):
    """Median ms of a call."""
    for _ in range(1 if device == "cpu" else 3):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    once = max(sample(device, 1, call), 1e-3)
    calls = 1 if device == "cpu" else min(max(-int(-5 // once), 1), 200)
    times = []
    while len(times) < 5 or sum(times) * calls < seconds * 1e3:
        times.append(sample(device, calls, call) / calls)
    return statistics.median(times)


def peak_mib(call):
    """What a call adds to the memory in use, at its highest."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def rows_of(options, mode, shape, layout):
    channels, size, out, kernel, stride, count = shape
    dtype, positions = torch.bfloat16 if mode == "bf16" else torch.float32, (size + 2 * (kernel // 2) - kernel) // stride + 1

    def randn(*sizes):
        return torch.randn(sizes, device=options.device, dtype=dtype).to(memory_format=FORMATS[layout])

    torch.manual_seed(1)
    x, w, g = randn(options.batch, channels, size, size), randn(out, channels, kernel, kernel), randn(options.batch, out, positions, positions)
    leaves = [w.requires_grad_()] + ([x.requires_grad_()] if channels > 3 else [])

    def convolve():
        return F.conv2d(x, w, stride=stride, padding=kernel // 2)

    def forward():
        with torch.no_grad():
            convolve()

    def both():
        torch.autograd.grad(convolve(), leaves, g)

    flops = 2 * options.batch * channels * kernel**2 * out * positions**2
    for op, call, work in (("conv2d_fwd", forward, flops), ("conv2d_both", both, (1 + len(leaves)) * flops)):
        ms = measure(options.device, options.seconds, call)
        row = dict(op=op, shape=[options.batch, channels, size, out, kernel, stride], dtype=mode, impl=f"eager-{layout}", device=options.device,
                   threads=torch.get_num_threads(), count=count, ms=round(ms, 5), tflops=round(work / ms / 1e9, 3))
        if call is both and options.device == "cuda":
            row["peak_mib"] = round(peak_mib(both), 1)
        yield row


def table(options, mode, rows):
    """Of all rows of a mode: medians where there are several of a kind."""
    found = {}
    for row in rows:
        if row.get("dtype") == mode and row.get("device") == options.device and row["op"].startswith("conv2d_") and row["shape"][0] == options.batch:
            found.setdefault((tuple(row["shape"]), row["op"], row["impl"]), []).append(row)
    print(f"\n{options.device}, batch {options.batch}, {mode}: ms; the ratio is PyTorch's faster time over tern's\n")
    columns = [(op, impl) for op in ("conv2d_fwd", "conv2d_both") for impl in ("tern", "eager-first", "eager-last")]
    names = ("tern", "first", "last", "ratio")
    print("| channels | image | kernel | times | " + " | ".join(f"{way} {name}" for way in ("fwd", "both") for name in names) + " | MiB tern | MiB first |")
    print("|---|---|---|---|" + "---|" * 10)
    totals = dict.fromkeys(columns, 0.0)
    for channels, size, out, kernel, stride, count in RESNET18:
        shape = (options.batch, channels, size, out, kernel, stride)
        ms = {column: statistics.median(row["ms"] for row in found[shape, *column]) if (shape, *column) in found else None for column in columns}
        if not any(ms.values()):
            totals = dict.fromkeys(columns)
            continue
        for column in columns:
            totals[column] = totals[column] + count * ms[column] if totals[column] is not None and ms[column] is not None else None
        peaks = [found.get((shape, "conv2d_both", impl), [{}])[-1].get("peak_mib", "") for impl in ("tern", "eager-first")]
        print(f"| {channels} to {out} | {size} | {kernel} / {stride} | {count} | {cells(ms)} | {peaks[0]} | {peaks[1]} |")
    print(f"| network | | | 20 | {cells(totals)} | | |")


def cells(ms):
    shown = []
    for op in ("conv2d_fwd", "conv2d_both"):
        ours, peers = ms[op, "tern"], [ms[op, f"eager-{layout}"] for layout in FORMATS]
        shown += ["" if value is None else f"{value:.3f}" for value in (ours, *peers)]
        best = [value for value in peers if value is not None]
        shown.append(f"{min(best) / ours:.2f}" if ours and best else "")
    return " | ".join(shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--modes", default="fp32,tf32,bf16")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=0.15)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True
    rows, wanted = [], [int(number) for number in options.shapes.split(",") if number] or range(1, len(RESNET18) + 1)
    out = open(options.rows, "a+", encoding="utf-8") if options.rows else None
    modes = [mode for mode in ("fp32", "tf32", "bf16") if mode in options.modes.split(",") and (mode != "tf32" or options.device == "cuda")]
    for mode in modes:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        for number in wanted:
            for layout in FORMATS:
                for row in rows_of(options, mode, RESNET18[number - 1], layout):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
                    if out:
                        print(json.dumps(row), file=out, flush=True)
    if out:
        out.seek(0)
        rows = [json.loads(line) for line in out if line.strip()]
    for mode in modes:
        table(options, mode, rows)


if __name__ == "__main__":
    sys.exit(main())
