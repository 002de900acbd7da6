#!/usr/bin/env python3
"""Sets what tern makes of drawn ops, or of mutated files, beside what the reference packages make of them.

    python3 scripts/differential.py ops [--cases N] [--seed N] [--case N] [--device cuda] [--against pytorch|cpu|plain]
    python3 scripts/differential.py safetensors|tokenizers --inspect build/cpu/tests/fuzz/fuzz-inspect [--files N] [--seed N]

Ops need PyTorch and the package tern in PYTHONPATH (tests/python/beside); files need the packages safetensors and tokenizers: run it with
the Python that scripts/reference-packages.sh prints. Exit code 1 if a value differs, or if tern accepts a file that the package refuses. Files
that tern alone refuses are counted by reason: it is stricter on purpose.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

SEEDS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "corpus"
TEXTS = ["", "abab xab", "<pad>ab<pad>abab <eos_de>", "Der H\u00fcnd it's 1998, we'll \U0001F600\u3000 e\u0301", " a  b\t\n\u00fc <pa", "xababab" * 9]
PIECES = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"{}", b"[]", b"null", b"true", b"false", b"-1", b"0", b"1", b"7", b"1e999", b"1.5",
          b"18446744073709551616", b"9223372036854775807", b"\\u0000", b"\\ud800", b"\\u00fc", b"\n", b" ", b"\xff", b"\xc2\x9b", b"F32", b"F64", b"I8",
          b"BOOL", b"U8", b"dtype", b"shape", b"data_offsets", b"__metadata__", b"fuse_unk", b"lstrip", b"<pad>", b"\"x\":1,", b"e", b"."]


def change_bytes(rnd, data, others):
    data = bytearray(data)
    for _ in range(rnd.choice([1, 1, 1, 2, 3])):
        at = rnd.randrange(len(data) + 1)
        what = rnd.randrange(7)
        if what == 0 and at < len(data):
            data[at] ^= 1 << rnd.randrange(8)
        elif what == 1 and at < len(data):
            data[at] = rnd.randrange(256)
        elif what == 2:
            del data[at:at + rnd.randrange(1, 12)]
        elif what == 3:
            start = rnd.randrange(len(data) + 1)
            data[at:at] = data[start:start + rnd.randrange(60)]
        elif what == 4:
            data[at:at] = rnd.choice(PIECES)
        elif what == 5:
            data[at:at + rnd.randrange(6)] = rnd.choice(PIECES)
        else:
            other = rnd.choice(others)
            start = rnd.randrange(len(other) + 1)
            data[at:at] = other[start:start + rnd.randrange(60)]
    return bytes(data)


def change_value(rnd, value):
    """Another value in one place of a document: what byte mutations seldom leave valid."""
    places = []

    def walk(parent):
        for key in list(parent.keys() if isinstance(parent, dict) else range(len(parent))):
            places.append((parent, key))
            if isinstance(parent[key], (dict, list)):
                walk(parent[key])

    walk(value)
    if not places:
        return value
    # The bytes of a vocabulary are most of the places; the settings are to come up as often.
    rare = [place for place in places if not isinstance(place[1], int) and len(place[1]) > 2]
    parent, key = rnd.choice(rare if rare and rnd.random() < 0.7 else places)
    what = rnd.random()
    if what < 0.15:
        del parent[key]
    elif what < 0.25 and isinstance(parent, dict):
        parent[rnd.choice(["x", "a", "ab", "\u00e9\u00e9", "dtype", "lstrip", "__metadata__"])] = parent[key]
    else:
        parent[key] = rnd.choice([None, True, False, 0, 1, 2, 7, -1, 1.0, 0.5, 256, 257, 2**31, 2**32, 2**63, 2**64, "", "x", "a", "ab", "a b", "BPE", "ByteLevel",
                                  "F32", "U8", "BOOL", [], {}, [1], ["a", "b"], ["ab", "ab"], {"a": 1}, parent[key]])
    return value


def safetensors_file(rnd, seeds):
    data = rnd.choice(seeds)
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8:8 + length], data[8 + length:]
    if rnd.random() < 0.1:
        return change_bytes(rnd, data, seeds)
    if rnd.random() < 0.5:
        header = json.dumps(change_value(rnd, json.loads(header)), separators=(",", ":")).encode()
    else:
        header = change_bytes(rnd, header, seeds)
    if rnd.random() < 0.2:
        rest = rest[:rnd.randrange(len(rest) + 1)] + bytes(rnd.randrange(256) for _ in range(rnd.randrange(9)))
    else:
        rest = bytes(rnd.randrange(256) for _ in rest)
    return struct.pack("<Q", len(header)) + header + rest


def tokenizer_file(rnd, seeds):
    data = rnd.choice(seeds)
    if rnd.random() < 0.4:
        return change_bytes(rnd, data, seeds)
    document = json.loads(data)
    for _ in range(rnd.choice([1, 1, 2])):
        document = change_value(rnd, document)
    return json.dumps(document, ensure_ascii=rnd.random() < 0.5, separators=(",", ":")).encode()


def by_safetensors(data):
    import safetensors
    try:
        tensors = safetensors.deserialize(data)
    except Exception as error:  # the package raises its own type, and UnicodeDecodeError
        return {"refused": str(error)}
    result = {}
    for name, entry in tensors:
        content = bytes(entry["data"])
        if entry["dtype"] == "BOOL":  # tern reads any byte but 0 as true
            content = bytes(byte != 0 for byte in content)
        result[name] = [entry["dtype"], list(entry["shape"]), zlib.crc32(content) if content else 0]
    return {"ok": result}


def by_tokenizers(data):
    os.environ["RUST_BACKTRACE"] = "0"  # the package panics at some files, which is a refusal as well
    import tokenizers
    try:
        read = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        result = []
        for text in TEXTS:
            ids = read.encode(text).ids
            result.append([ids, read.decode(ids, skip_special_tokens=False), read.decode(ids)])
    except BaseException as error:  # a panic of the package is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"refused": str(error)}
    return {"ok": result}


def main():
    if sys.argv[1:2] == ["ops"]:
        sys.path.insert(0, str(SEEDS.parents[1] / "python"))
        from beside import run
        return run.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=["safetensors", "tokenizers"])
    parser.add_argument("--inspect", required=True)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="directory for files that are found")
    options = parser.parse_args()
    kind = "safetensors" if options.package == "safetensors" else "tokenizer"
    make, reference = (safetensors_file, by_safetensors) if kind == "safetensors" else (tokenizer_file, by_tokenizers)
    seeds = [path.read_bytes() for path in sorted((SEEDS / kind).iterdir())]
    rnd = random.Random(options.seed)
    counts, stricter, found = collections.Counter(), collections.Counter(), 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None) as directory:
        path, texts = pathlib.Path(directory) / "f", pathlib.Path(directory) / "texts"
        texts.write_text(json.dumps(TEXTS))
        inspect = subprocess.Popen([options.inspect, kind] + ([str(texts)] if kind == "tokenizer" else []), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        for i in range(options.files):
            data = make(rnd, seeds)
            path.write_bytes(data)
            inspect.stdin.write(f"{path}\n".encode())
            inspect.stdin.flush()
            line = inspect.stdout.readline()
            if not line:
                sys.exit(f"tern ended at file {i} of seed {options.seed}")
            ours, theirs = json.loads(line), reference(data)
            problem = None
            if "ok" in ours and "ok" in theirs:
                counts["both accept"] += 1
                if ours["ok"] != theirs["ok"]:
                    problem = "a value differs"
            elif "ok" in ours:
                problem = f"tern alone accepts: {theirs['refused'][:200]}"
            elif "ok" in theirs:
                counts["tern alone refuses"] += 1
                reason = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "*", ours["refused"].removeprefix(f"{path}: "))
                stricter[reason[:90]] += 1
            else:
                counts["both refuse"] += 1
            if problem:
                found += 1
                counts[problem.split(":")[0]] += 1
                if found <= 20:
                    print(f"file {i}: {problem}")
                if options.keep:
                    pathlib.Path(options.keep).mkdir(parents=True, exist_ok=True)
                    (pathlib.Path(options.keep) / f"{kind}-{options.seed}-{i}").write_bytes(data)
        inspect.stdin.close()
        if inspect.wait() != 0:
            sys.exit(f"tern ended with exit code {inspect.returncode}")
    import importlib.metadata
    print(f"{options.package} {importlib.metadata.version(options.package)}, {options.files} files of seed {options.seed}: "
          + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for reason, count in stricter.most_common(12):
        print(f"  {count:7d}  {reason}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
