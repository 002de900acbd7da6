"""Timing and rows that the scripts of PyTorch's figures on the CPU share."""
import json
import statistics
import time

import torch


def measure(call, seconds, warmup=1, least=5):
    """Median ms of calls that take about so many seconds together, `least` of them at least."""
    for _ in range(warmup):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < least:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def add_eager_row(out, op, shape, dtype, ms):
    """A row of an op in eager mode on the CPU, as join.py reads it."""
    row = dict(op=op, shape=list(shape), dtype=str(dtype).removeprefix("torch."), impl="eager", device="cpu", threads=torch.get_num_threads(),
               ms=round(ms, 5))
    print(json.dumps(row), file=out, flush=True)
