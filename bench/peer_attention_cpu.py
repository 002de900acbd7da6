#!/usr/bin/env python3
"""PyTorch's own attention on the CPU, forward and forward with backward, in rows that join.py reads.

usage: peer_attention_cpu.py OUT.jsonl [THREADS [SECONDS]]
Appends rows: the least of the calls of about SECONDS, for machines that others use too. Needs PyTorch. Shapes are (B, H, N, d); q, k and v are
views of one projection (B, N, 3, H, d), as a model has them.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 2
out = open(sys.argv[1], "a", encoding="utf-8")


def measure(f):
    """The least ms of about so many seconds of calls."""
    f()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        f()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


for dtype in (torch.float32, torch.bfloat16):
    for batch, heads, length, width in ((8, 8, 512, 64), (4, 8, 1024, 64), (2, 8, 2048, 64), (1, 8, 4096, 64)):
        for causal in (True, False):
            qkv = torch.randn(batch, length, 3, heads, width, dtype=dtype, requires_grad=True)
            g = torch.randn(batch, heads, length, width, dtype=dtype)

            def forward():
                q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def both():
                qkv.grad = None
                forward().backward(g)

            with torch.no_grad():
                times = {"attention_fwd": measure(forward)}
            times["attention_fwd_bwd"] = measure(both)
            for op, ms in times.items():
                row = dict(op=op, shape=[batch, heads, length, width], causal=causal, dtype=str(dtype).replace("torch.", ""), impl="eager",
                           device="cpu", threads=torch.get_num_threads(), ms=round(ms, 5))
                print(json.dumps(row), file=out, flush=True)
