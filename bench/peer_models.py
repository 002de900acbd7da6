#!/usr/bin/env python3
"""PyTorch's training steps of the small models of models.cpp, in rows of the same form, for models.md.

usage: peer_models.py [lstm,gru,cnn,gpt] [THREADS] [STEPS] [cpu] >> ROWS.jsonl
Needs PyTorch. Eager, fp32, forward, backward and AdamW with its usual (foreach) form; "cpu" as there.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(96, 96, batch_first=True), nn.Linear(96, 96)

    def forward(self, x):
        return self.head(self.cell(x)[0])


class Layer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(96, 64), nn.Embedding(48, 64)
        self.blocks = nn.Sequential(*(Layer(64, 4, 256) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 96)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        return self.head(self.norm(self.blocks(x)))


def cnn():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 4 * 4, 10))


def case(name):
    """The model, and a function that gives the loss of a step."""
    if name in ("lstm", "gru"):
        model = Recurrent(nn.LSTM if name == "lstm" else nn.GRU)
        x, following = torch.randn(16, 32, 96), torch.randn(16, 32, 96)
        return model, lambda: F.mse_loss(model(x), following)
    if name == "cnn":
        model = cnn()
        x, labels = torch.randn(64, 3, 16, 16), torch.arange(64) % 10
        return model, lambda: F.cross_entropy(model(x), labels)
    model = Gpt()
    ids = (torch.arange(16 * 48) * 7 % 96).view(16, 48)
    return model, lambda: F.cross_entropy(model(ids).view(-1, 96), ids.view(-1))


def main():
    names = (sys.argv[1] if len(sys.argv) > 1 else "lstm,gru,cnn,gpt").split(",")
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    clock = "cpu" if sys.argv[4:5] == ["cpu"] else "wall"
    now = time.process_time if clock == "cpu" else time.perf_counter
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    for name in names:
        model, loss = case(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        times = []
        for step in range(steps + 5):
            start = now()
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            if step >= 5:
                times.append(1000 * (now() - start))
        print(json.dumps({"impl": f"torch {torch.__version__}", "model": name, "threads": threads, "clock": clock,
                          "parameters": sum(p.numel() for p in model.parameters()), "least_ms": round(min(times), 3),
                          "median_ms": round(statistics.median(times), 3)}), flush=True)


if __name__ == "__main__":
    main()
