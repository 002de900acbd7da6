#!/usr/bin/env python3
"""PyTorch's figures for a language model's head and its loss, beside `tern-bench ops --op linear_xent`, in rows that join.py reads.

usage: peer_linear_xent.py OUT.jsonl
Appends rows. Needs PyTorch and Triton on a GPU. Forward and backward together, eager and compiled, cross-entropy in float32 as in the
usual recipes, with the memory that they take beyond their operands.
"""
import json
import sys

import torch
import torch.nn.functional as F
from triton.testing import do_bench

torch.backends.cuda.matmul.allow_tf32 = False  # as tern's float32
out = open(sys.argv[1], "a", encoding="utf-8")


def head_loss(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).float(), targets)


for rows, classes, width, dtype in ((5120, 10000, 256, torch.float32), (8192, 50257, 768, torch.bfloat16), (8192, 50304, 768, torch.bfloat16)):
    x = torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True)
    weight = (torch.randn(classes, width, device="cuda", dtype=dtype) * 0.02).requires_grad_()
    targets = torch.randint(0, classes, (rows,), device="cuda")
    torch._dynamo.reset()
    for impl, f in (("eager", head_loss), ("compile", torch.compile(head_loss))):
        call = lambda: torch.autograd.grad(f(x, weight, targets), (x, weight))
        for _ in range(3):
            call()
        ms = do_bench(call, warmup=10, rep=60, return_mode="median")
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        row = dict(op="linear_xent_fwd_bwd", shape=[rows, classes, width], dtype=str(dtype).replace("torch.", ""), impl=impl, device="cuda",
                   ms=round(ms, 5), peak_mb=round(peak / 1e6, 1))
        print(json.dumps(row), file=out, flush=True)
        print(json.dumps(row), flush=True)
