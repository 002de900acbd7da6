#!/usr/bin/env python3
"""PyTorch's figures for linear algebra on a GPU, beside bench/linalg.cpp, in rows that join.py reads.

usage: peer_linalg.py OUT.jsonl [SECONDS]
Appends rows. Needs PyTorch. Each time is the median of calls that take about SECONDS together (0.5), each between two CUDA events with
the GPU idle before it, as in bench/linalg.cpp.
"""
import json
import statistics
import sys

import torch

torch.backends.cuda.matmul.allow_tf32 = False  # as tern's float32
out = open(sys.argv[1], "a", encoding="utf-8")
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5


def measure(call):
    """Median ms of a call."""
    call()
    call()
    times = []
    while len(times) < 5 or (sum(times) < seconds * 1e3 and len(times) < 1000):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


for dtype in (torch.float32, torch.float64):
    for batch, n in ((1, 64), (1, 512), (1, 2048), (256, 32)):
        shape = (n, n) if batch == 1 else (batch, n, n)
        torch.manual_seed(1)
        unit = torch.eye(n, dtype=dtype, device="cuda")
        x, b = torch.randn(shape, dtype=dtype, device="cuda"), torch.randn(shape, dtype=dtype, device="cuda")
        a, definite = x + n * unit, x @ x.mT / n + unit
        ops = {
            "cholesky": lambda: torch.linalg.cholesky(definite),
            "solve": lambda: torch.linalg.solve(a, b),
            "inverse": lambda: torch.linalg.inv(a),
            "det": lambda: torch.linalg.det(a),
            "qr": lambda: torch.linalg.qr(x),
            "eigh": lambda: torch.linalg.eigh(definite),
            "svd": lambda: torch.linalg.svd(x, full_matrices=False),
        }
        with torch.no_grad():
            for op, call in ops.items():
                row = dict(op=op, shape=[batch, n, n], dtype=str(dtype).replace("torch.", ""), impl="eager", device="cuda",
                           ms=round(measure(call), 5))
                print(json.dumps(row), file=out, flush=True)
                print(json.dumps(row), flush=True)
