#!/usr/bin/env python3
"""PyTorch's figures on the CPU for the operators of `tern-bench ops --device cpu`, in rows that join.py reads.

usage: peer_ops_cpu.py OUT.jsonl [THREADS]
Appends rows. Needs PyTorch; eager only.
"""
import sys

import torch
import torch.nn.functional as F

from peer_timing import add_eager_row, measure

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
out = open(sys.argv[1], "a", encoding="utf-8")


def both_ways(op, shape, dtype, f, leaves):
    y = f()
    g = torch.randn_like(y)
    for direction, call in (("fwd", f), ("bwd", lambda: torch.autograd.grad(y, leaves, g, retain_graph=True))):
        add_eager_row(out, f"{op}_{direction}", shape, dtype, measure(call, 0.5, warmup=3, least=7))


for dtype in (torch.float32, torch.bfloat16):
    for shape in ((32, 8, 40, 40), (8, 8, 128, 128), (8, 8, 256, 256), (4, 8, 512, 512), (2, 8, 1024, 1024), (1, 8, 2048, 2048)):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        mask = torch.zeros(shape[0], 1, 1, shape[3], dtype=dtype)
        mask[..., -3:] = -1e30
        both_ways("softmax", shape, dtype, lambda: torch.softmax(x + mask, -1), [x])
    for rows, columns in ((1280, 256), (2048, 768), (2048, 1024), (2048, 1600), (2048, 4096), (1024, 8192)):
        x, w, b = (torch.randn(s, dtype=dtype, requires_grad=True) for s in ((rows, columns), (columns,), (columns,)))
        both_ways("layernorm", (rows, columns), dtype, lambda: F.layer_norm(x, (columns,), w, b, 1e-5), [x, w, b])
