#!/usr/bin/env python3
"""Shows that an installed wheel of tern has the library for each level of x86-64 that this processor has, and that each of them trains.

    python check-wheel.py              every level, from the baseline up; scripts/test-python.sh --wheel calls it so
    python check-wheel.py --one        the level that the loader takes now

The higher levels are hidden from the loader (GLIBC_TUNABLES), each time in a process of its own, and the level is read from `tern.cpu_variant()`
and from the file that the process has loaded. A small model is trained with each on memory of NumPy's. Losses agree to a thousandth; weights of
two levels must differ in their last bits, or one library's kernels ran for both.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

LOADER = "/lib64/ld-linux-x86-64.so.2"
# What hides the levels above each from the loader.
HIDES = {"x86-64": "-AVX512F,-AVX2", "x86-64-v3": "-AVX512F", "x86-64-v4": ""}


def train():
    """Trains with the level that is loaded, and says in a dict what came of it."""
    import numpy as np

    import tern
    from tern import nn

    points = np.random.default_rng(1).standard_normal((256, 2), dtype=np.float32)
    x = tern.from_numpy(points)
    inside = tern.from_numpy((np.square(points).sum(1) < 1.4).astype(np.int64))
    if x.data_ptr() != points.__array_interface__["data"][0] or np.from_dlpack(tern.from_dlpack(points)).tolist() != points.tolist():
        sys.exit("error: expected NumPy's memory, by its buffer and by DLPack, but got other numbers or a copy")
    tern.manual_seed(1)
    # Sums over a row, as a norm has them, are folded over registers of the level's width; those of a product may be the same for two levels.
    net = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 2))
    optimizer = tern.train.AdamW(net.parameters(), lr=0.01)
    for _ in range(50):
        loss = tern.cross_entropy(net(x), inside)
        tern.train.update(loss, optimizer)
    weights = b"".join(np.asarray(parameter.detach()).tobytes() for parameter in net.parameters())
    loaded = sorted(set(re.findall(r"/\S*/libtern\.so\S*", pathlib.Path("/proc/self/maps").read_text())))
    return {
        "level": tern.cpu_variant(),
        "loss": loss.item(),
        "weights": hashlib.sha256(weights).hexdigest(),
        "loaded": loaded,
        "package": str(pathlib.Path(tern.__file__).parent),
    }


def train_at(level):
    """As `train`, in a process from which the levels above this one are hidden."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if HIDES[level]:
        environment["GLIBC_TUNABLES"] = f"glibc.cpu.hwcaps={HIDES[level]}"
    # Isolated, so that neither the directory at hand nor PYTHONPATH gives another tern.
    done = subprocess.run([sys.executable, "-I", __file__, "--one"], env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: training with {level} ended with code {done.returncode}")
    got = json.loads(done.stdout)
    place = pathlib.Path(got["package"]) / "lib"
    expected = place / ("" if level == "x86-64" else f"glibc-hwcaps/{level}")
    if got["level"] != level or [str(pathlib.Path(path).parent) for path in got["loaded"]] != [str(expected)]:
        sys.exit(f"error: expected the library for {level} in {expected} but got {got['level']} of {', '.join(got['loaded'])}")
    print(f"{level}: {got['loaded'][0].removeprefix(got['package'])}, loss {got['loss']:.6f}", flush=True)
    return got


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--one", action="store_true", help="train with the level that the loader takes now, and print the result as JSON")
    if options.parse_args().one:
        print(json.dumps(train()))
        return
    if not pathlib.Path(LOADER).exists():
        sys.exit(f"error: expected the loader {LOADER}, which glibc on x86-64 has: other processors have one level")
    supported = subprocess.run([LOADER, "--help"], check=True, capture_output=True, text=True).stdout
    runs = []
    for level in HIDES:
        if level == "x86-64" or f"{level} (supported" in supported:
            runs.append(train_at(level))
        else:
            print(f"{level}: skipped, this processor has it not")
    losses = [run["loss"] for run in runs]
    if max(losses) > 1.001 * min(losses):
        sys.exit(f"error: expected losses within a thousandth of each other but got {losses}")
    if len({run["weights"] for run in runs}) != len(runs):
        sys.exit("error: expected other weights from each level but two have the same to the last bit: one library's kernels ran for both")


if __name__ == "__main__":
    main()
