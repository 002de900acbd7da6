#!/usr/bin/env python3
"""bench/peer_lm.py DATA TERN_LM [--losses 5,4.5] [--updates 2000] [--valid-every 100] [--rounds 1] ...: seconds from the start of a process to a
validation loss, of `tern-lm train` and of the same training in PyTorch, compiled, in turn: the same tokens (that `tern-lm prepare` wrote), model,
batch, schedule and optimizer. Prints a row for each process, and their ratios. Needs PyTorch; on a CPU, give small --layers, --width and
--length."""
import argparse
import glob
import json
import math
import os
import re
import subprocess
import sys
import time


def tokens_of(path):
    """Token file in llm.c's format."""
    import numpy as np
    header = np.fromfile(path, np.int32, 256)
    kind = {20240520: np.uint16, 20240801: np.uint32}[int(header[0])]
    return np.memmap(path, kind, "r", offset=1024)


def train_in_pytorch(options):
    start = time.monotonic()
    import numpy as np
    import torch
    import torch.nn.functional as F

    import peer_train
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    with open(os.path.join(options.data, "data.json")) as file:
        vocab = json.load(file)["vocab"]
    train, valid = (np.concatenate([tokens_of(path) for path in sorted(glob.glob(os.path.join(options.data, f"{part}-*.bin")))])
                    for part in ("train", "valid"))
    length, rows = options.length, options.batch_size
    model = peer_train.Model((options.width, 4 * options.width, options.layers, options.heads), vocab, length, False, 0.0).to(device)
    model.head.weight = model.tokens.weight
    for name, x in model.named_parameters():
        if x.dim() == 2:
            torch.nn.init.normal_(x, 0, 0.02 / math.sqrt(2 * options.layers) if name.endswith(("proj.weight", "down.weight")) else 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(x)
    matrices = [x for x in model.parameters() if x.dim() == 2]
    others = [x for x in model.parameters() if x.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=options.lr,
                                  betas=(0.9, 0.95), fused=device == "cuda")

    @torch.compile(mode=options.mode or None)
    def loss_of(ids, labels):
        with torch.autocast(device, torch.bfloat16, enabled=options.precision == "bf16"):
            logits = model(ids)
        return F.cross_entropy(logits.float().view(-1, vocab), labels.view(-1))

    def batch_of(text, firsts):
        windows = torch.from_numpy(np.stack([text[i:i + length + 1] for i in firsts]).astype(np.int64))
        if device == "cuda":
            windows = windows.pin_memory().to(device, non_blocking=True)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def validate():
        windows = max(min(options.valid_tokens, len(valid) - 1) // length // rows, 1)
        with torch.no_grad():
            losses = [loss_of(*batch_of(valid, [length * (rows * i + j) for j in range(rows)])) for i in range(windows)]
            return torch.stack([x.clone() for x in losses]).mean().item()

    order, generator = [], np.random.default_rng(options.seed)
    for update in range(1, options.updates + 1):
        if len(order) < rows:
            first = int(generator.integers(length))
            order = list(first + length * generator.permutation((len(train) - 1 - first) // length))
        rising = min(update / options.warmup, 1)
        done = max(update - options.warmup, 0) / max(options.updates - options.warmup, 1)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rising * (1 + math.cos(math.pi * done)) / 2
        loss = loss_of(*batch_of(train, [order.pop() for _ in range(rows)]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if update in (3, 13):  # after these all is compiled
            loss.item()
            print(f"after {update} updates {time.monotonic() - start:.3f} s", flush=True)
        if update % options.valid_every == 0:
            print(f"update {update} valid loss {validate():.4f}", flush=True)


def run(command, losses):
    """Seconds to each loss, with its update; and of the peer, the seconds that it compiled."""
    start, reached, marks = time.monotonic(), {}, {}
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            now = time.monotonic() - start
            if match := re.search(r"after (\d+) updates ([\d.]+) s", line):
                marks[int(match[1])] = float(match[2])
            if match := re.search(r"update +(\d+) .*valid loss ([\d.]+)", line):
                last = (int(match[1]), float(match[2]))
                for loss in losses:
                    if last[1] <= loss:
                        reached.setdefault(loss, {"seconds": round(now, 2), "update": last[0]})
    assert process.returncode == 0, command
    compiled = marks[3] - 3 * (marks[13] - marks[3]) / 10 if marks else 0
    return {"reached": reached, "last": last, "seconds": round(now, 2), "compiled": round(compiled, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("tern_lm", nargs="?")
    parser.add_argument("--losses", default="5,4.5", help="validation losses to reach")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mode", default="", help="torch.compile's")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--seed", type=int, default=1)
    shared = {"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch-size": 8, "updates": 2000, "warmup": 200,
              "valid-every": 100, "valid-tokens": 1000000}
    for name, value in shared.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=6e-4)
    options = parser.parse_args()
    if not options.tern_lm:
        return train_in_pytorch(options)
    flags = ["--precision", options.precision, "--lr", options.lr]
    for name in shared:
        flags += ["--" + name, getattr(options, name.replace("-", "_"))]
    losses = [float(x) for x in options.losses.split(",")]
    for seed in range(options.seed, options.seed + options.rounds):
        tern = [options.tern_lm, "train", "--data", options.data, "--out", "peer-lm-run", "--preset", "small", "--seed", seed, *flags]
        peer = [sys.executable, __file__, options.data, "--seed", seed, "--mode", options.mode, *flags]
        results = {"tern": run(tern, losses), "pytorch": run(peer, losses)}
        for name, result in results.items():
            print(json.dumps({"impl": name, "seed": seed, "precision": options.precision, "batch": options.batch_size, **result}))
        for loss in losses:
            a, b = (results[name]["reached"].get(loss) for name in ("tern", "pytorch"))
            if a and b:
                print(f"loss {loss}: {a['seconds'] / b['seconds']:.3f} of PyTorch's time with its compilation, "
                      f"{a['seconds'] / (b['seconds'] - results['pytorch']['compiled']):.3f} without")


main()
