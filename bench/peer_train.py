#!/usr/bin/env python3
"""PyTorch's figures for the steps of `tern-bench step`, in rows that join.py reads: the same models, eager and compiled.

usage: peer_train.py [--models mt,small] [--T 512] [--B 4] [--impls eager,compile,graph] [--dtypes fp32,tf32,bf16] [--forward-only] ... >> PEERS.jsonl
Needs PyTorch. bf16 is autocast with float32 weights; graph is torch.compile(mode="reduce-overhead"), which uses CUDA graphs.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

# width, inner width, layers, heads: those of apps/bench/step_case.cpp
MODELS = {"mt": (256, 256, 4, 8), "ar": (128, 512, 2, 4), "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16),
          "large": (1280, 5120, 36, 20), "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32)}
COMPILE_MODES = {"compile": None, "compile-max": "max-autotune-no-cudagraphs", "graph": "reduce-overhead"}


def rotated(x, table):
    """RoPE of neighbouring pairs: x (B, H, T, D), table (2, T, D / 2)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = table.to(x.dtype)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)), as nn::TransformerLayer."""

    def __init__(self, width, inner, heads, llama, dropout):
        super().__init__()
        self.heads, self.dropout, self.llama = heads, dropout, llama
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(width, eps=1e-5), norm(width, eps=1e-5)
        linear = lambda rows, columns: nn.Linear(rows, columns, bias=not llama)
        self.qkv, self.proj = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, inner), linear(inner, width)
        self.gate = linear(width, inner) if llama else None

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x, table):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.llama:
            q, k = rotated(q, table), rotated(k, table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, length, width)))
        z = self.norm2(x)
        hidden = F.silu(self.gate(z)) * self.up(z) if self.llama else F.gelu(self.up(z), approximate="tanh")
        return x + self.drop(self.down(hidden))


class Model(nn.Module):
    def __init__(self, size, vocab, length, llama, dropout):
        super().__init__()
        width, inner, layers, heads = size
        self.dropout = dropout
        self.tokens = nn.Embedding(vocab, width)
        self.positions = None if llama else nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, inner, heads, llama, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5) if llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        head_dim = width // heads
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())))

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, self.table[:, : ids.shape[1]])
        return self.head(self.norm(x))


def measure(options, name, length, dtype, impl):
    device, cuda = options.device, options.device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    torch._dynamo.reset()
    torch.manual_seed(0)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.backends.cuda.matmul.allow_tf32 = dtype != "fp32"
    model = Model(MODELS[name], options.V, length, options.arch == "llama", options.p).to(device)
    if options.forward_only:
        model.requires_grad_(False)
    optimizer = None if options.forward_only else torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    ids, labels = (torch.randint(0, options.V, (options.B, length), device=device) for _ in range(2))

    def cross_entropy(logits):
        return F.cross_entropy(logits.float().view(-1, options.V), labels.view(-1))

    run, criterion = model, cross_entropy
    if impl != "eager":
        run, criterion = torch.compile(model, mode=COMPILE_MODES[impl]), torch.compile(cross_entropy)

    def forward():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = run(ids)
        return criterion(logits)

    def inference():
        with torch.no_grad():
            forward()

    def step():
        loss = forward()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def timed(call):
        """Median ms of calls, each with a wait after it."""
        for _ in range(options.warmup):
            call()
        wait()
        times = []
        for _ in range(options.steps):
            start = time.perf_counter()
            call()
            wait()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    def burst(call):
        """ms a call without waits in between."""
        wait()
        start = time.perf_counter()
        for _ in range(2 * options.steps):
            call()
        wait()
        return (time.perf_counter() - start) * 1e3 / (2 * options.steps)

    call = inference if options.forward_only else step
    row = {"step_ms": round(timed(call), 3), "burst_ms": round(burst(call), 3)}
    row["inference_ms"] = round(timed(inference), 3)
    row["tok_s"] = round(options.B * length / row["burst_ms"] * 1e3)
    if cuda:
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mt,ar,small", help="of " + ", ".join(MODELS))
    parser.add_argument("--arch", default="gpt2", choices=("gpt2", "llama"))
    parser.add_argument("--T", default="512", help="tokens of a sequence, a list")
    parser.add_argument("--B", type=int, default=4, help="sequences")
    parser.add_argument("--V", type=int, default=10000, help="vocabulary")
    parser.add_argument("--p", type=float, default=0.0, help="dropout")
    parser.add_argument("--dtypes", default="fp32,tf32,bf16")
    parser.add_argument("--impls", default="eager,compile,graph", help="of eager, " + ", ".join(COMPILE_MODES))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, default=0, help="of the CPU")
    parser.add_argument("--forward-only", action="store_true", help="no gradients, no optimizer")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for name in options.models.split(","):
        for length in map(int, options.T.split(",")):
            for dtype in options.dtypes.split(","):
                for impl in options.impls.split(","):
                    row = dict(model=name, arch=options.arch, B=options.B, T=length, V=options.V, p=options.p, dtype=dtype, impl=impl,
                               device=options.device, **{"pass": "forward" if options.forward_only else "step"})
                    if options.device == "cpu":
                        row["threads"] = torch.get_num_threads()
                    try:
                        row |= measure(options, name, length, dtype, impl)
                    except (RuntimeError, MemoryError) as error:  # PyTorch's out-of-memory errors are RuntimeErrors
                        row["error"] = str(error).splitlines()[0][:150]
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
