#!/usr/bin/env python3
"""Joins rows of tern-bench with rows of a peer's script from the same run into Markdown tables of ratios.

usage: join.py OURS.jsonl PEERS.jsonl
Rows of `tern-bench step` match where model, B, T, V, p, dtype and device are equal, and count by burst_ms, the time of a step without a
wait in between. Rows of `tern-bench ops`, `conv1d` and `attention` match where op, shape, dtype and device are equal, and count by ms; convolutions
and attention have tables of their own. Repeated rows count by their median; the range of steps stands in brackets. The ratio is the peer's time over ours:
above 1 tern is faster.
"""
import json
import statistics
import sys
from collections import defaultdict

STEP = ("model", "B", "T", "V", "p", "dtype", "device")
MODES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
COMPILED = ("compile", "compile-shifted")  # the operator, and a convolution as a sum of shifted products
BEYOND_CACHE = 240e6  # bytes: four times the L2 cache of an H200


def rows_of(path):
    with open(path, encoding="utf-8") as lines:
        return list(map(json.loads, filter(str.strip, lines)))


def step_times(rows):
    """{(key, impl): the burst_ms of its rows}, in the order of the file."""
    found = defaultdict(list)
    for row in rows:
        if "burst_ms" in row:
            found[tuple(row.get(name) for name in STEP), row["impl"]].append(row["burst_ms"])
    return found


def shown(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def join_steps(ours, peers):
    print("| model | B | T | mode | device | tern | ms a step | peer | ms a step | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (key, impl), mine in ours.items():
        for (other, peer), theirs in peers.items():
            if other == key:
                model, batch, length, _, _, mode, device = key
                ratio = statistics.median(theirs) / statistics.median(mine)
                print(f"| {model} | {batch} | {length} | {mode} | {device} | {impl} | {shown(mine)} | PyTorch {peer} | {shown(theirs)} | {ratio:.2f} |")


def op_times(rows):
    """{(op, shape, dtype, device): {impl: median us}}, and the bytes and share of a copy of our fused rows."""
    found, notes = defaultdict(lambda: defaultdict(list)), {}
    for row in rows:
        if "ms" not in row or "op" not in row or not isinstance(row["shape"], list) or row["op"].startswith("attention_"):
            continue
        key = (row["op"], tuple(row["shape"]), row["dtype"], row.get("device", "cuda"))
        found[key][row["impl"]].append(row["ms"] * 1e3)
        if row["impl"] == "tern-fused":
            notes[key] = (row["gbs"] * row["ms"] * 1e6, row.get("of_copy"))
    return {key: {impl: statistics.median(times) for impl, times in impls.items()} for key, impls in found.items()}, notes


def number(value):
    return "" if value is None else f"{value:.1f}"


def ratio(above, below):
    return "" if above is None or below is None else f"{above / below:.2f}"


def compiled_time(theirs):
    return min((theirs[impl] for impl in COMPILED if impl in theirs), default=None)


def best_time(theirs):
    return min((time for time in (theirs.get("eager"), compiled_time(theirs)) if time is not None), default=None)


def join_convolutions(ours, notes, peers):
    print("| pass | layout | mode | B | L | D | K | tern us | composed us | eager us | compile us | best peer / tern | GB/s | TFLOP/s | of copy | of equal copy |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for key, mine in ours.items():
        op, (batch, length, channels, taps), dtype, _ = key
        theirs, fused, (size, of_copy) = peers.get(key, {}), mine["tern-fused"], notes[key]
        flops = 2 * taps * batch * length * channels * (2 if op.endswith("_bwd") else 1)
        print(f"| {op[-3:]} | {'B, D, L' if 'first' in op else 'B, L, D'} | {MODES[dtype]} | {batch} | {length} | {channels} | {taps} | {number(fused)} "
              f"| {number(mine.get('tern-plain'))} | {number(theirs.get('eager'))} | {number(compiled_time(theirs))} | {ratio(best_time(theirs), fused)} "
              f"| {size / fused / 1e3:.0f} | {flops / fused / 1e6:.3f} | {100 * of_copy:.0f}% | {100 * mine['copy'] / fused:.0f}% |")


def join_ops(ours, notes, peers):
    print("| op | shape | mode | device | plain us | fused us | plain / fused | of copy | eager us | compile us | best peer / fused |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for key, mine in ours.items():
        op, shape, dtype, device = key
        theirs, fused, (_, of_copy) = peers.get(key, {}), mine["tern-fused"], notes[key]
        share = "" if of_copy is None else f"{100 * of_copy:.0f}%"
        print(f"| {op} | {'x'.join(map(str, shape))} | {MODES[dtype]} | {device} | {number(mine.get('tern-plain'))} | {number(fused)} "
              f"| {ratio(mine.get('tern-plain'), fused)} | {share} | {number(theirs.get('eager'))} | {number(compiled_time(theirs))} "
              f"| {ratio(best_time(theirs), fused)} |")


def attention_times(rows):
    """{(shape, causal, dtype, device): {impl: {op: median ms}}}; nothing in it for an impl that failed. TF32 is a dtype of its own."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        if str(row.get("op")).startswith("attention_") and row.get("mask", "causal") in ("causal", "full"):  # peers have no other forms
            mode = row["precision"] if row.get("precision", "fp32") != "fp32" else MODES[row["dtype"]]
            times = found[tuple(row["shape"]), row["causal"], mode, row["device"]][row["impl"]]
            if "ms" in row:
                times[row["op"]].append(row["ms"])
    return {key: {impl: {op: statistics.median(ms) for op, ms in ops.items()} for impl, ops in impls.items()} for key, impls in found.items()}


def join_attention(ours, peers):
    """Forward + backward of each, and forward alone in brackets; PyTorch has no products like tf32x3, so those stand beside its fp32."""
    names = list(dict.fromkeys(impl for impls in peers.values() for impl in impls))
    print("| B, H, N, d | mask | mode | device | plain ms | fused ms | TFLOP/s | " + " | ".join(f"{name} ms | / fused" for name in names) + " |")
    print("|---" * (7 + 2 * len(names)) + "|")

    def both(times):
        if times is None:
            return ""
        return f"{times['attention_fwd_bwd']:.3f} ({times['attention_fwd']:.3f})" if times else "failed"

    for (shape, causal, mode, device), impls in ours.items():
        batch, heads, length, width = shape
        fused = impls["tern-fused"]
        flops = 3.5 * 4 * batch * heads * width * length * length / (2 if causal else 1)
        theirs = peers.get((shape, causal, "fp32" if mode.startswith("tf32") else mode, device), {})
        ratios = [f"{theirs[name]['attention_fwd_bwd'] / fused['attention_fwd_bwd']:.2f}" if theirs.get(name) else "" for name in names]
        cells = [f"{both(theirs.get(name))} | {ratio}" for name, ratio in zip(names, ratios)]
        print(f"| {', '.join(map(str, shape))} | {'causal' if causal else 'full'} | {mode} | {device} | {both(impls.get('tern-plain'))} | {both(fused)} "
              f"| {flops / fused['attention_fwd_bwd'] / 1e9:.1f} | {' | '.join(cells)} |")


def summarise(ours, notes, peers):
    """Of each op and mode: the ratios, and the shares of a copy where the data is large."""
    summary = defaultdict(lambda: ([], []))
    for key, mine in ours.items():
        op, _, dtype, device = key
        ratios, shares = summary[op, MODES[dtype], device]
        best, (size, of_copy) = best_time(peers.get(key, {})), notes[key]
        if best is not None:
            ratios.append(best / mine["tern-fused"])
        if device == "cuda" and of_copy is not None and size >= BEYOND_CACHE:
            shares.append(of_copy)
    print("\n| op | mode | device | best peer / fused: least, median | of copy beyond 240 MB: least, median |")
    print("|---|---|---|---|---|")
    for (op, mode, device), (ratios, shares) in summary.items():
        speed = f"{min(ratios):.2f}, {statistics.median(ratios):.2f}" if ratios else ""
        share = f"{100 * min(shares):.0f}%, {100 * statistics.median(shares):.0f}%" if shares else ""
        print(f"| {op} | {mode} | {device} | {speed} | {share} |")


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    ours, peers = rows_of(sys.argv[1]), rows_of(sys.argv[2])
    if any("burst_ms" in row for row in ours):
        join_steps(step_times(ours), step_times(peers))
    attention = {key: impls for key, impls in attention_times(ours).items() if impls.get("tern-fused")}
    if attention:
        join_attention(attention, attention_times(peers))
    times, notes = op_times(ours)
    times, others = {key: mine for key, mine in times.items() if "tern-fused" in mine}, op_times(peers)[0]
    convolutions = {key: mine for key, mine in times.items() if key[0].startswith("conv1d")}
    rest = {key: mine for key, mine in times.items() if key not in convolutions}
    for join, rows in ((join_ops, rest), (join_convolutions, convolutions)):
        if rows:
            join(rows, notes, others)
            summarise(rows, notes, others)
    return 0


sys.exit(main())
