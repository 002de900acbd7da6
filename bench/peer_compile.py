#!/usr/bin/env python3
"""PyTorch beside `tern-bench compile`: the same functions in plain ops, eager, by torch.compile, and on a GPU by it with CUDA graphs too.

usage: peer_compile.py DEVICE [--threads N] [--precision fp32,bf16] [--pass forward,step] [--way compiled,graphs] [--batch N] [--length N]
                       [--width N] [MODEL...]

MODEL is of seed6, small, char, lstm, cnn, own-adamw, chains, rows; all without one. Prints a line of JSON for each: the least of 7 times that
alternate, in ms, with the keys of tern-bench, the first call of the compiled function in seconds, and on a GPU its kernels and the peak of memory.
"""
import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDS, SECONDS = 7, 0.06


def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(call, count=1):
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - start) / count * 1e3


def kernels_of(call):
    """Number of kernels of a call on the GPU, without copies and fills."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        wait()
    on_device = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_device)


def peak_of(call):
    torch.cuda.reset_peak_memory_stats()
    call()
    wait()
    return torch.cuda.max_memory_allocated()


def compare(model, is_step, precision, sizes, make, by_hand=None):
    """make(compiling) gives the function with parameters of its own, whose parts compiling() compiles."""
    ways = {"as_written": lambda f: f, "compiled": torch.compile}
    if device.type == "cuda" and "graphs" in options.ways:
        ways["graphs"] = lambda f: torch.compile(f, mode="reduce-overhead")
    row = dict(bench="compile", impl=f"torch {torch.__version__}", model=model, **{"pass": "step" if is_step else "forward"}, dtype=precision,
               **sizes, device=device.type, threads=torch.get_num_threads())
    calls = {}
    torch.compiler.reset()
    for name, compiling in ways.items():
        call = make(compiling)
        first = milliseconds(call)
        for _ in range(4):
            call()
        if name != "as_written":
            row[f"{name}_first_s"] = round(first / 1e3, 2)
        if device.type == "cuda":
            row[f"{name}_peak_bytes"], row[f"{name}_kernels"] = peak_of(call), kernels_of(call)
        calls[name] = call
    if by_hand:
        calls["by_hand"] = by_hand
    least = {name: milliseconds(call) for name, call in calls.items()}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            least[name] = min(least[name], milliseconds(call, min(max(int(SECONDS * 1e3 / least[name]), 1), 1000)))
    row.update({f"{name}_ms": round(ms, 5) for name, ms in least.items()})
    print(json.dumps(row), flush=True)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype)


def written_softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def written_norm(x, gamma, beta):
    centered = x - x.mean(-1, keepdim=True)
    return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5) * gamma + beta


def written_gelu(x):
    return x * 0.5 * (torch.tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1)


def written_cross_entropy(x, targets):
    logits = x.float()
    return torch.logsumexp(logits, 1) - logits.gather(1, targets[:, None])[:, 0]


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return written_norm(x, self.gamma, self.beta)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(width // 64, 1)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = Norm(width), Norm(width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        head = width // self.heads
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3 * self.heads, head).transpose(1, 2).split(self.heads, 1)
        scores = (q @ k.transpose(-1, -2)).float() * (1 / math.sqrt(head)) + mask
        mixed = written_softmax(scores).to(x.dtype) @ v
        y = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return y + self.down(written_gelu(self.up(self.second(y))))


class Decoder(nn.Module):
    def __init__(self, T, width, layers, V, **_):
        super().__init__()
        self.tokens, self.positions, self.last, self.head = nn.Embedding(V, width), nn.Embedding(T, width), Norm(width), nn.Linear(width, V)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.mask = torch.triu(torch.full((T, T), -math.inf, device=device), 1)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, self.mask)
        return written_cross_entropy(self.head(self.last(x)).flatten(0, 1), targets.flatten()).mean()


class LSTM(nn.Module):
    def __init__(self, width, **_):
        super().__init__()
        self.input, self.state, self.head = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width), nn.Linear(width, width)

    def forward(self, x, following):
        h = c = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=device)
        outputs = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.input(x[:, t]) + self.state(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(self.head(h))
        distance = torch.stack(outputs, 1) - following
        return (distance * distance).mean()


class Convolution(nn.Module):
    def __init__(self, channels, out, kernel, stride):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)

    def forward(self, x):
        return self.norm(self.conv(x))


class Block(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        stride = 1 if channels == out else 2
        self.first, self.second = Convolution(channels, out, 3, stride), Convolution(out, out, 3, 1)
        self.shortcut = nn.Identity() if channels == out else Convolution(channels, out, 1, stride)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width, layers, V, **_):
        super().__init__()
        channels = [width] + [width << (4 * i // layers) for i in range(layers)]
        self.stem, self.head = Convolution(3, width, 3, 1), nn.Linear(channels[-1], V)
        self.blocks = nn.Sequential(*(Block(*pair) for pair in zip(channels, channels[1:])))

    def forward(self, images, targets):
        x = self.blocks(torch.relu(self.stem(images)))
        return written_cross_entropy(self.head(x.mean((2, 3))), targets).mean()


def compare_model(name, kind, sizes, arguments, is_step, precision):
    def make(compiling):
        torch.manual_seed(1)
        model = kind(**sizes).to(device, DTYPES[precision])
        if kind is ResNet:
            model = model.to(memory_format=torch.channels_last)
        loss = compiling(model)
        if not is_step:
            return lambda: forward(loss)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=device.type == "cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            value = loss(*arguments)
            value.backward()
            optimizer.step()
            return value

        return step

    def forward(loss):
        with torch.no_grad():
            return loss(*arguments)

    compare(name, is_step, precision, sizes, make)


def compare_adamw(sizes, precision):
    """AdamW of ops, all of which is compiled."""

    def make(compiling):
        shape = (sizes["layers"], sizes["width"], sizes["width"])
        x, gradient = normal(*shape, dtype=DTYPES[precision]).unbind(0), normal(*shape, dtype=DTYPES[precision]).unbind(0)
        m, v = [torch.zeros_like(p) for p in x], [torch.zeros_like(p) for p in x]

        @torch.no_grad()
        def update(x, gradient, m, v):
            for p, g, first, second in zip(x, gradient, m, v):
                first.copy_(first * 0.9 + g * 0.1)
                second.copy_(second * 0.999 + g * g * 0.001)
                p.copy_(p * (1 - 1e-5) - first / (torch.sqrt(second) + 1e-8) * 1e-3)

        compiled = compiling(update)
        return lambda: compiled(x, gradient, m, v)

    compare("own-adamw", True, precision, sizes, make)


def formulas(gamma, beta):
    """Each as written, and by PyTorch's own function; of x, another tensor of its shape, and targets."""
    width = gamma.shape[0]
    return {
        "chains": {
            "chain of 9": (lambda a, b, _: torch.relu((((a * b + 0.5) * a - b) * 0.25 + a) * b - 0.125), None),
            "chain of 10 with tanh": (lambda a, b, _: torch.tanh((((a * b + 0.5) * a - b) * 0.25 + a) * b - 0.125) * a, None)},
        "rows": {
            "copy": (lambda x, *_: x.clone(), None),
            "softmax": (lambda x, *_: written_softmax(x), lambda x, *_: F.softmax(x, -1)),
            "layer norm": (lambda x, *_: written_norm(x, gamma, beta), lambda x, *_: F.layer_norm(x, (width,), gamma, beta)),
            "rms norm": (lambda x, *_: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gamma, lambda x, *_: F.rms_norm(x, (width,), gamma, 1e-5)),
            "gelu": (lambda x, *_: written_gelu(x), lambda x, *_: F.gelu(x, approximate="tanh")),
            "cross entropy": (lambda x, _, targets: written_cross_entropy(x, targets),
                              lambda x, _, targets: F.cross_entropy(x.float(), targets, reduction="none")),
            "residual norm": (lambda x, y, _: written_norm(y + F.dropout(x, 0.1), gamma, beta),
                              lambda x, y, _: F.layer_norm(y + F.dropout(x, 0.1), (width,), gamma, beta))}}


def compare_formula(name, written, by_hand, sizes, arguments, is_step, precision):
    x, other, targets = arguments

    def call_of(f):
        def forward():
            with torch.no_grad():
                return f(x, other, targets)

        def gradient():
            leaf = x.detach().requires_grad_()
            y = f(leaf, other, targets)
            return torch.autograd.grad(y, leaf, other[:, 0].to(y.dtype) if y.dim() == 1 else other)[0]

        return gradient if is_step else forward

    compare(name, is_step, precision, sizes, lambda compiling: call_of(compiling(written)), by_hand and call_of(by_hand))


SIZES = {"seed6": dict(B=4, T=512, width=512, layers=6, V=10000), "small": dict(B=4, T=512, width=768, layers=12, V=10000),
         "char": dict(B=8, T=64, width=128, layers=4, V=10000), "lstm": dict(B=16, T=32, width=96),
         "cnn": dict(B=32, T=32, width=64, layers=8, V=10), "own-adamw": dict(width=768, layers=100),
         "chains": dict(B=8, T=1024, width=1024), "rows": dict(B=32, T=1024, width=1024)}


def compare_all(name, is_step, precision):
    sizes, dtype = SIZES[name] | options.sizes, DTYPES[precision]
    if name == "own-adamw":
        if is_step:
            compare_adamw(sizes, precision)
    elif name in ("chains", "rows"):
        rows, width = sizes["B"] * sizes["T"], sizes["width"]
        arguments = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype), torch.randint(width, (rows,), device=device)
        for formula, (written, by_hand) in formulas(torch.rand(width, device=device).to(dtype), normal(width, dtype=dtype))[name].items():
            compare_formula(formula, written, by_hand, sizes, arguments, is_step, precision)
    elif name == "lstm":
        arguments = [normal(sizes["B"], sizes["T"], sizes["width"], dtype=dtype) for _ in range(2)]
        compare_model(name, LSTM, sizes, arguments, is_step, precision)
    elif name == "cnn":
        images = normal(sizes["B"], 3, sizes["T"], sizes["T"], dtype=dtype).to(memory_format=torch.channels_last)
        compare_model(name, ResNet, sizes, [images, torch.randint(sizes["V"], (sizes["B"],), device=device)], is_step, precision)
    else:
        arguments = [torch.randint(sizes["V"], (sizes["B"], sizes["T"]), device=device) for _ in range(2)]
        compare_model(name, Decoder, sizes, arguments, is_step, precision)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("device")
parser.add_argument("models", nargs="*", metavar="MODEL")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--pass", dest="passes", default="forward,step")
parser.add_argument("--way", dest="ways", default="compiled,graphs")
for size, key in (("batch", "B"), ("length", "T"), ("width", "width")):
    parser.add_argument(f"--{size}", dest=key, type=int)
options = parser.parse_intermixed_args()
options.sizes = {key: value for key in ("B", "T", "width") if (value := getattr(options, key))}
device = torch.device(options.device)
if options.threads:
    torch.set_num_threads(options.threads)
torch.manual_seed(1)
for model in options.models or SIZES:
    for precision in options.precision.split(","):
        for each in options.passes.split(","):
            compare_all(model, each == "step", precision)
