#!/usr/bin/env python3
"""PyTorch's figures for several GPUs, beside `tern-bench comm` and `tern-bench step --ranks`: all_reduce, and training steps alone, with one
flat all_reduce after backward, under DistributedDataParallel, and with ZeroRedundancyOptimizer.

usage: NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 peer_ddp.py OUT.jsonl [MODEL:B ...]      (small:8 xl:4)
Each rank has B sequences of 1024 tokens, V 50304; bf16 autocast over float32 weights and gradients, torch.compile. A row a line: ms of a step
on rank 0 by the host's clock over several steps, the ranks having begun together; peak_gb of its memory.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from peer_train import MODELS, Model

LENGTH, VOCAB = 1024, 50304


def measured(call, count):
    """Milliseconds of a call, of `count` in a row."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3 / count


def reduce_rows(add):
    ranks = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        for mb in (1, 10, 100, 1000):
            x = torch.zeros(mb * 1_000_000 // dtype.itemsize, dtype=dtype, device="cuda")
            ms = measured(lambda: dist.all_reduce(x), 8 if mb == 1000 else 20)
            add({"what": "all_reduce", "dtype": str(dtype).removeprefix("torch."), "mb": mb, "ms": ms, "bus_gbs": mb / ms * 2 * (ranks - 1) / ranks})


def step_of(way, model, local):
    """One training step, as the way has it, and the loss that it takes."""
    is_ddp = way in ("ddp", "ddp+zero1")
    net = torch.compile(DistributedDataParallel(model, device_ids=[local], gradient_as_bucket_view=True) if is_ddp else model)
    settings = {"lr": 1e-4, "weight_decay": 0.01, "fused": True}
    optimizer = (ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings) if way == "ddp+zero1"
                 else torch.optim.AdamW(model.parameters(), **settings))
    loss_of = torch.compile(lambda logits, labels: F.cross_entropy(logits.float().flatten(0, 1), labels.flatten()))

    def average():
        gradients = [x.grad for x in model.parameters()]
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
            gradient.copy_(mean)

    def step(ids, labels):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(ids)
        loss_of(logits, labels).backward()
        if way == "flat":
            average()
        optimizer.step()

    return step


def step_rows(add, name, batch, local):
    for way in ("single", "flat", "ddp", "ddp+zero1"):
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        step = step_of(way, Model(MODELS[name], VOCAB, LENGTH, False, 0.0).cuda(), local)
        ids, labels = (torch.randint(VOCAB, (batch, LENGTH), device="cuda") for _ in range(2))
        ms = measured(lambda: step(ids, labels), 15 if name == "small" else 8)
        add({"what": "step", "model": name, "B": batch, "T": LENGTH, "V": VOCAB, "dtype": "autocast-bf16", "way": way, "ms": ms,
             "peak_gb": torch.cuda.max_memory_allocated() / 2**30})


def main():
    if len(sys.argv) < 2 or "RANK" not in os.environ:
        sys.exit(__doc__)
    cases = [case.split(":") for case in sys.argv[2:] or ["small:8", "xl:4"]]
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))

    def add(row):
        if dist.get_rank() == 0:
            line = json.dumps({"impl": f"torch-{torch.__version__}", "ranks": dist.get_world_size()} | row)
            print(line, flush=True)
            with open(sys.argv[1], "a") as out:
                out.write(line + "\n")

    reduce_rows(add)
    for name, batch in cases:
        step_rows(add, name, int(batch), local)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
