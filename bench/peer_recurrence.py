#!/usr/bin/env python3
"""flash-linear-attention beside `tern-bench ops --op gla,gated_deltanet`: its Triton kernels, in rows that join.py reads.

usage: peer_recurrence.py PEERS.jsonl [TOKENS,...]
Appends rows, for B 8, 16 heads of 64, bf16; 4096 tokens without TOKENS. Needs PyTorch with Triton, and the package fla-core.
"""
import sys

import torch
import torch.nn.functional as F
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gla import chunk_gla

from peer_ops import Rows, leaf

BATCH, HEADS, WIDTH = 8, 16, 64


def both_ways(rows, op, call, leaves):
    """Forward and backward of call(), with the gradients of all leaves."""
    shape = list(leaves[0].shape)
    rows.add(op + "_fwd", shape, torch.bfloat16, "fla", call)
    y = call()
    dy = torch.randn_like(y)
    rows.add(op + "_bwd", shape, torch.bfloat16, "fla", lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True))


def leaf_of(x):
    return x.detach().requires_grad_()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rows = Rows(sys.argv[1])
    for tokens in map(int, sys.argv[2].split(",") if len(sys.argv) > 2 else ["4096"]):
        shape = (BATCH, tokens, HEADS, WIDTH)
        q, v = leaf(*shape, dtype=torch.bfloat16), leaf(*shape, dtype=torch.bfloat16)
        k = leaf_of(F.normalize(leaf(*shape, dtype=torch.bfloat16), dim=-1))
        by_channel = leaf_of(F.logsigmoid(leaf(*shape, dtype=torch.bfloat16)) / 16)
        by_token = leaf_of(F.logsigmoid(leaf(*shape[:3], dtype=torch.float32)) / 16)
        beta = leaf_of(torch.sigmoid(leaf(*shape[:3], dtype=torch.float32)))
        both_ways(rows, "gla", lambda: chunk_gla(q, k, v, by_channel, scale=1.0)[0], (q, k, v, by_channel))
        both_ways(rows, "gated_deltanet", lambda: chunk_gated_delta_rule(q, k, v, by_token, beta, scale=1.0)[0], (q, k, v, by_token, beta))


if __name__ == "__main__":
    main()
