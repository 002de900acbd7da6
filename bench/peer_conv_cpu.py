#!/usr/bin/env python3
"""PyTorch's figures on the CPU for `tern-bench conv1d --device cpu`, in rows that join.py reads.

usage: peer_conv_cpu.py OUT.jsonl [THREADS]
Appends rows. Needs PyTorch; eager only. conv1d: the signal is (B, L, D), transposed for PyTorch and back, as its users have to;
conv1d_first: (B, D, L), which PyTorch takes as it is.
"""
import sys

import torch
import torch.nn.functional as F

from peer_timing import add_eager_row, measure

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
out = open(sys.argv[1], "a", encoding="utf-8")


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
                    add_eager_row(out, f"{op}_{direction}", (B, L, D, K), dtype, measure(call, 0.4))
