#!/usr/bin/env python3
"""PyTorch beside `tern-bench mixers --mixer attention,retnet,gla` on the CPU: a layer's norm, mixer and residual sum, without a loop over tokens.

usage: peer_mixers.py PEERS.jsonl [BATCH LENGTH WIDTH HEADS [THREADS]]
Appends rows of both passes, f32. RetNet and GLA are products with a masked matrix of scores, GLA's with decays as exp(b_i) exp(-b_j) of sums
b, which floats hold at the decays of an untrained layer.
"""
import sys

import torch
import torch.nn.functional as F
from torch import nn

from peer_timing import add_eager_row, measure


def rotated(x, angles):
    """Pairs of neighbours of x (B, H, T, D) turned by angles (T, D / 2)."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, kind, length, width, heads):
        super().__init__()
        self.kind, self.heads, dim = kind, heads, width // heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv, self.proj = (nn.Linear(width, n * width, kind == "attention") for n in (3, 1))
        self.angles = torch.arange(length)[:, None] * 10000 ** (-2 * torch.arange(dim // 2) / dim)
        if kind == "attention":
            return
        self.gate, self.norm2 = nn.Linear(width, width, False), nn.RMSNorm(dim)
        if kind == "gla":
            self.down, self.up = nn.Linear(width, 16, False), nn.Linear(16, width)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        decay = 1 - 2.0 ** (-5 - torch.arange(heads))[:, None, None]
        self.mask = torch.where(distance >= 0, decay ** distance.clamp(min=0), 0) if kind == "retnet" else distance >= 0

    def forward(self, residual):
        x = self.norm1(residual)
        batch, length, width = x.shape
        in_heads = lambda z: z.view(batch, length, self.heads, -1).transpose(1, 2)
        q, k, v = map(in_heads, self.qkv(x).chunk(3, -1))
        if self.kind != "gla":
            q, k = rotated(q, self.angles), rotated(k, self.angles)
        if self.kind == "attention":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return residual + self.proj(y.transpose(1, 2).flatten(2))
        k = k * q.shape[-1] ** -0.5
        if self.kind == "gla":
            sums = in_heads(F.logsigmoid(self.up(self.down(x))) / 16).cumsum(2)
            q, k = q * sums.exp(), k * (-sums).exp()
        y = (q @ k.transpose(-1, -2) * self.mask) @ v
        return residual + self.proj(self.norm2(y).transpose(1, 2).flatten(2) * F.silu(self.gate(x)))


def main():
    if len(sys.argv) not in (2, 6, 7):
        sys.exit(__doc__)
    batch, length, width, heads = map(int, sys.argv[2:6] or (4, 1024, 256, 4))
    torch.set_num_threads(int(sys.argv[6]) if len(sys.argv) == 7 else torch.get_num_threads())
    with open(sys.argv[1], "a", encoding="utf-8") as out:
        for kind in ("attention", "retnet", "gla"):
            layer, x = Layer(kind, length, width, heads), torch.randn(batch, length, width, requires_grad=True)
            dy, leaves = torch.randn_like(x), [*layer.parameters(), x]
            with torch.no_grad():
                add_eager_row(out, f"mixer_{kind}_fwd", (batch, length, width, heads), x.dtype, measure(lambda: layer(x), 2))
            both = measure(lambda: torch.autograd.grad(layer(x), leaves, dy), 2)
            add_eager_row(out, f"mixer_{kind}_fwd_bwd", (batch, length, width, heads), x.dtype, both)


if __name__ == "__main__":
    main()
