#!/usr/bin/env python3
"""Loads memory snapshots with PyTorch's own reader, torch/cuda/_memory_viz.py, and checks that its totals are ours.

    python=$(scripts/reference-packages.sh torch)
    $python scripts/memory-viz.py [--program build/cpu/apps/tern-bench] [SNAPSHOT...]

Without a SNAPSHOT it lets the bench write some, and compares with the bench's rows. Ends with 1 where a total differs.
"""
import argparse
import json
import pathlib
import pickle
import pickletools
import subprocess
import sys
import tempfile

# What the page's reader, unpickle in torch/utils/viz/MemoryViz.js, knows, of which we write these.
OPCODES = {"PROTO", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "EMPTY_LIST", "EMPTY_DICT", "MARK", "APPENDS", "SETITEMS", "STOP"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"}


def replay(trace):
    """The highest sum of live blocks above what there was before the trace, and what lives at its end."""
    live, total, peak = {}, 0, 0
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in live, "a block is given out twice"
            live[event["addr"]] = event["size"]
            total += event["size"]
            peak = max(peak, total)
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
            total -= event["size"]
    return peak, live


def check(path, viz, row):
    data = path.read_bytes()
    unknown = {opcode.name for opcode, _, _ in pickletools.genops(data)} - OPCODES
    assert not unknown, f"opcodes that the page does not know: {unknown}"
    snapshot = pickle.loads(data)
    actions = {event["action"] for trace in snapshot["device_traces"] for event in trace}
    assert actions <= ACTIONS, actions
    sign = {"alloc": 1, "free_completed": -1, "free_requested": 0, "segment_alloc": 0, "segment_free": 0, "oom": 0, "snapshot": 0}
    active = sum(block["size"] for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated")
    for trace in snapshot["device_traces"]:
        peak, live = replay(trace)
        blocks = {b["address"]: b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"}
        assert all(blocks.get(address) == size for address, size in live.items()), "a live block is in no segment"
    summary = viz.segsum(snapshot)  # asserts that each segment is the sum of its blocks
    assert f"segments: {len(snapshot['segments'])}\n" in summary
    lines = viz.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(s["total_size"] for s in snapshot["segments"]), "the flame graph's bytes"
    text = viz.trace(snapshot)
    entries = sum(len(trace) for trace in snapshot["device_traces"])
    assert f"{entries} entries" in text
    assert "MemoryViz.js" in viz.trace_plot(snapshot)  # the page, with the snapshot in it
    if row:
        # Parameters and the like that stay from begin to end are in no trace: the peak is theirs and the trace's.
        assert row["begin_bytes"] + peak == row["peak_bytes"], "the peak"
        assert row["begin_bytes"] + sum(sign[e["action"]] * e["size"] for e in trace) == row["end_bytes"], "the end"
        assert active + row["before_bytes"] == row["end_bytes"], "the blocks of the end"
    print(f"{path.name}: {entries} events, {len(snapshot['segments'])} segments, {viz.Bytes(active)} active: as the history says")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/cpu/apps/tern-bench")
    parser.add_argument("snapshots", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    import torch.cuda._memory_viz as viz

    if arguments.snapshots:
        for path in arguments.snapshots:
            check(path, viz, None)
        return
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory)
        subprocess.run([arguments.program, "memory", "--model", "ar", "--length", "64", "--vocab", "500", "--precision", "fp32,bf16",
                        "--device", "cpu", "--out", out, "--json", out / "rows"], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (out / "rows").read_text().splitlines()]
        assert len(rows) == 4
        for row in rows:
            name = f"{row['model']}-T{row['T']}-{row['dtype']}-{row['pass']}.pickle"
            check(out / name, viz, row)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"error: {error}")
