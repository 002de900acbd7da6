#!/usr/bin/env python3
"""PyTorch's figures on the GPU for `tern-bench ops` and `conv1d`, in rows that join.py reads: eager, and compiled by torch.compile.

usage: peer_ops.py PEERS.jsonl [ceil,softmax,layernorm,xent,adamw,conv1d]
Appends rows. Needs PyTorch with Triton. Each figure is a median of calls that find the second cache full of something else.
"""
import json
import sys

import torch
import torch.nn.functional as F
from triton.testing import do_bench

GROUPS = ("ceil", "softmax", "layernorm", "xent", "adamw", "conv1d")
torch.backends.cuda.matmul.allow_tf32 = False


def ms_of(call):
    for _ in range(3):
        call()
    return do_bench(call, warmup=10, rep=60, return_mode="median")


class Rows:
    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")

    def add(self, op, shape, dtype, impl, call, moved=None, flops=None):
        row = dict(op=op, shape=shape, dtype=str(dtype).removeprefix("torch."), impl=impl)
        try:
            ms = ms_of(call)
            row["ms"] = round(ms, 5)
            if moved:
                row["gbs"] = round(moved / ms / 1e6, 1)
            if flops:
                row["tflops"] = round(flops / ms / 1e9, 1)
        except RuntimeError as error:  # out of memory is one
            row["error"] = str(error).splitlines()[0][:150]
        print(json.dumps(row), file=self.file, flush=True)
        print(json.dumps(row), flush=True)

    def both_ways(self, op, shape, dtype, f, leaves, moved):
        """Forward and backward of f, eager and compiled; `moved` has the bytes that each must read and write."""
        torch._dynamo.reset()
        for impl, g in (("eager", f), ("compile", torch.compile(f))):
            self.add(op + "_fwd", shape, dtype, impl, g, moved[0])
            y = g()
            dy = torch.randn_like(y)
            self.add(op + "_bwd", shape, dtype, impl, lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True), moved[1])


def leaf(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def ceilings(rows):
    """What the machine can do: a copy of 4 GiB, and large products in each mode."""
    x = torch.randn(1 << 30, device="cuda")
    y = torch.empty_like(x)
    rows.add("copy", "1Gi", x.dtype, "torch", lambda: y.copy_(x), 2 * x.nbytes)
    del x, y
    for n in (4096, 8192):
        a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
        for mode in ("fp32", "tf32"):
            torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
            rows.add("matmul", f"{n}^3", a.dtype, mode, lambda: a @ b, flops=2 * n**3)
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = a.bfloat16(), b.bfloat16()
        rows.add("matmul", f"{n}^3", a.dtype, "bf16", lambda: a @ b, flops=2 * n**3)


def softmax(rows):
    """Of attention: (B, 8, L, L) scores with padding of three keys, at most 2^27 of them."""
    for length in (32, 64, 128, 256, 512, 1024, 2048):
        batch = max(1, min(64, (1 << 27) // (8 * length * length)))
        for dtype in (torch.float32, torch.bfloat16):
            x = leaf(batch, 8, length, length, dtype=dtype)
            mask = torch.zeros(batch, 1, 1, length, device="cuda", dtype=dtype)
            mask[..., -3:] = -1e30
            rows.both_ways("softmax", list(x.shape), dtype, lambda: torch.softmax(x + mask, -1), [x], (2 * x.nbytes, 3 * x.nbytes))


def layernorm(rows):
    for columns in (256, 768, 1024, 1600, 2560, 4096, 8192):
        for dtype in (torch.float32, torch.bfloat16):
            x, w, b = leaf(8192, columns, dtype=dtype), leaf(columns, dtype=dtype), leaf(columns, dtype=dtype)
            rows.both_ways("layernorm", [8192, columns], dtype, lambda: F.layer_norm(x, (columns,), w, b, 1e-5), [x, w, b],
                           (2 * x.nbytes, 3 * x.nbytes))


def xent(rows):
    for count, vocab in ((4992, 10000), (8192, 32000), (8192, 50257), (8192, 50304)):
        targets = torch.randint(0, vocab, (count,), device="cuda")
        for dtype in (torch.float32, torch.bfloat16):
            x = leaf(count, vocab, dtype=dtype)
            rows.both_ways("xent", [count, vocab], dtype, lambda: F.cross_entropy(x.float(), targets), [x], (x.nbytes, 2 * x.nbytes))


def adamw(rows):
    for count in (10_000_000, 124_000_000, 1_000_000_000):
        parameters = [leaf(count // 100, dtype=torch.float32) for _ in range(100)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        for impl in ("fused", "foreach"):
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **{impl: True})
            rows.add("adamw", [count], torch.float32, impl, optimizer.step, 7 * 4 * count)


def conv1d(rows):
    """Depthwise, over (B, L, D), as the library's operator and as a sum of shifted products that the compiler fuses."""
    for batch, length, width in ((1, 1024, 1024), (1, 8192, 1024), (1, 8192, 8192), (16, 1024, 768), (16, 2048, 2048), (1, 131072, 1024)):
        for dtype in (torch.float16, torch.float32):
            for taps in (3, 4, 7):
                x = torch.randn(batch, length, width, device="cuda", dtype=dtype)
                w = torch.randn(width, 1, taps, device="cuda", dtype=dtype)
                b = torch.randn(width, device="cuda", dtype=dtype)

                def operator():
                    return F.conv1d(x.transpose(1, 2), w, b, padding=taps // 2, groups=width).transpose(1, 2)

                def shifted():
                    padded = F.pad(x, (0, 0, taps // 2, taps // 2))
                    return b + sum(padded[:, k : k + length] * w[:, 0, k] for k in range(taps))

                torch._dynamo.reset()
                shape = [batch, length, width, taps]
                rows.add("conv1d_fwd", shape, dtype, "eager", operator, 2 * x.nbytes)
                rows.add("conv1d_fwd", shape, dtype, "compile-shifted", torch.compile(shifted), 2 * x.nbytes)


def main():
    groups = sys.argv[2].split(",") if len(sys.argv) > 2 else GROUPS
    if len(sys.argv) < 2 or not set(groups) <= set(GROUPS):
        sys.exit(__doc__)
    rows = Rows(sys.argv[1])
    for group in groups:
        {"ceil": ceilings}.get(group, globals().get(group))(rows)


if __name__ == "__main__":
    main()
