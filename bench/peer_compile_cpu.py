#!/usr/bin/env python3
"""PyTorch beside compile_models.cpp on a CPU: the same functions in plain ops, eager and by torch.compile. Prints a line of JSON for each.

usage: peer_compile_cpu.py THREADS [chains lstm char]
"""
import json
import math
import sys
import time

import torch
from torch import nn


def milliseconds(f, count):
    start = time.perf_counter()
    for _ in range(count):
        f()
    return (time.perf_counter() - start) / count * 1e3


def compare(name, f, count, warm=12):
    compiled = torch.compile(f)
    begin = time.perf_counter()
    compiled()
    first = time.perf_counter() - begin
    for _ in range(warm):
        f(), compiled()
    eager, fast = (min(milliseconds(g, count) for _ in range(7)) for g in (f, compiled))
    print(json.dumps({"bench": "compile", "impl": f"torch {torch.__version__}", "model": name, "device": "cpu", "eager_ms": round(eager, 4),
                      "compiled_ms": round(fast, 4), "first_call_s": round(first, 1)}), flush=True)


def norm(x, gamma, beta):
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5) * gamma + beta


def gelu(x):
    return x * 0.5 * (torch.tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1)


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.proj, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.g1, self.b1, self.g2, self.b2 = (nn.Parameter(torch.full((d,), float(i % 2 == 0))) for i in range(4))

    def forward(self, x, mask, heads):
        batch, length, d = x.shape
        q, k, v = self.qkv(norm(x, self.g1, self.b1)).view(batch, length, 3 * heads, d // heads).transpose(1, 2).split(heads, 1)
        mixed = softmax(q @ k.transpose(-1, -2) * (1 / math.sqrt(d // heads)) + mask) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, d))
        return x + self.down(gelu(self.up(norm(x, self.g2, self.b2))))


class LM(nn.Module):
    def __init__(self, vocab, length, d, count):
        super().__init__()
        self.tokens, self.positions, self.head = nn.Embedding(vocab, d), nn.Embedding(length, d), nn.Linear(d, vocab)
        self.layers = nn.ModuleList(Layer(d) for _ in range(count))
        self.gamma, self.beta = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), 1))

    def loss(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, self.mask, x.shape[-1] // 64)
        logits = self.head(norm(x, self.gamma, self.beta)).flatten(0, 1)
        return (torch.logsumexp(logits, 1) - logits.gather(1, targets.flatten()[:, None])[:, 0]).mean()


def step_of(loss, optimizer):
    def step():
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return value

    return step


def compare_steps(name, loss, parameters, make, count):
    compiled_loss = torch.compile(loss)
    eager, fast = (step_of(f, make(parameters)) for f in (loss, compiled_loss))
    begin = time.perf_counter()
    fast()
    first = time.perf_counter() - begin
    for _ in range(12):
        eager(), fast()
    times = [min(milliseconds(g, count) for _ in range(7)) for g in (eager, fast)]
    print(json.dumps({"bench": "compile", "impl": f"torch {torch.__version__}", "model": name, "device": "cpu", "eager_ms": round(times[0], 4),
                      "compiled_ms": round(times[1], 4), "first_call_s": round(first, 1)}), flush=True)


def main():
    torch.set_num_threads(int(sys.argv[1]))
    wanted = sys.argv[2:] or ["chains", "lstm", "char"]
    torch.manual_seed(1)
    if "chains" in wanted:
        a, b = torch.rand(8 << 20), torch.rand(8 << 20)
        compare("9 cheap ops, 8M f32", lambda: torch.relu((((a * b + 0.5) * a - b) * 0.25 + a) * b - 0.125), 3)
        compare("10 ops with tanh, 8M f32", lambda: torch.tanh((((a * b + 0.5) * a - b) * 0.25 + a) * b - 0.125) * a, 3)
    if "lstm" in wanted:
        parts = nn.ModuleList([nn.Linear(96, 4 * 96), nn.Linear(96, 4 * 96), nn.Linear(96, 96)])
        x, following = torch.randn(16, 32, 96), torch.randn(16, 32, 96)

        def loss():
            h = c = torch.zeros(16, 96)
            outputs = []
            for t in range(32):
                gates = (parts[0](x[:, t]) + parts[1](h)).split(96, 1)
                c = torch.sigmoid(gates[1]) * c + torch.sigmoid(gates[0]) * torch.tanh(gates[2])
                h = torch.sigmoid(gates[3]) * torch.tanh(c)
                outputs.append(parts[2](h))
            distance = torch.stack(outputs, 1) - following
            return (distance * distance).mean()

        compare_steps("LSTM of ops, B 16 T 32 width 96, step", loss, list(parts.parameters()), lambda p: torch.optim.Adam(p, fused=True), 10)
    if "char" in wanted:
        model = LM(10000, 64, 128, 4)
        ids, targets = torch.randint(10000, (8, 64)), torch.randint(10000, (8, 64))
        compare_steps("char model, 4 x 128, B 8 T 64 fp32 step", lambda: model.loss(ids, targets), list(model.parameters()),
                      lambda p: torch.optim.AdamW(p, fused=True), 1)


main()
