#!/usr/bin/env python3
"""PyTorch's figures on the CPU for `tern-bench conv1d --device cpu`, in rows that join.py reads.

usage: peer_conv_cpu.py OUT.jsonl [THREADS]
Appends rows. Needs PyTorch; eager only. conv1d: the signal is (B, L, D), transposed for PyTorch and back, as its users have to;
conv1d_first: (B, D, L), which PyTorch takes as it is.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
out = open(sys.argv[1], "a", encoding="utf-8")


def measure(f, seconds=0.4):
    """Median ms of about so many seconds of calls."""
    f()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        f()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for B, L, D in ((1, 1024, 1024), (1, 8192, 1024), (4, 2048, 768)):
        for K in (3, 4, 7):
            w, b = torch.randn(D, 1, K, dtype=dtype, requires_grad=True), torch.randn(D, dtype=dtype, requires_grad=True)
            last, first = torch.randn(B, L, D, dtype=dtype, requires_grad=True), torch.randn(B, D, L, dtype=dtype, requires_grad=True)

            def conv_last():
                return F.conv1d(last.transpose(1, 2), w, b, padding=K // 2, groups=D).transpose(1, 2)

            def conv_first():
                return F.conv1d(first, w, b, padding=K // 2, groups=D)

            for op, f, u in (("conv1d", conv_last, last), ("conv1d_first", conv_first, first)):
                y = f()
                g = torch.randn_like(y)

                def forward():
                    with torch.no_grad():
                        f()

                for direction, call in (("fwd", forward), ("bwd", lambda: torch.autograd.grad(y, (u, w, b), g, retain_graph=True))):
                    row = dict(op=f"{op}_{direction}", shape=[B, L, D, K], dtype=str(dtype).replace("torch.", ""), impl="eager", device="cpu",
                               threads=torch.get_num_threads(), ms=round(measure(call), 5))
                    print(json.dumps(row), file=out, flush=True)
