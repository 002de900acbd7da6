#!/usr/bin/env python3
"""Repeats what the README claims beside the reference packages, and prints the measured difference beside each claim.

    python3 scripts/parity.py --program build/cpu/tests/parity/tern-parity [--data DIR] [--corpora N]

`make parity` runs it in a throw-away environment. DIR has train.de and train.en, plain or .gz (Multi30k for the README's own figure); by
default the embedded corpus is taken. A row whose package is missing says so and counts as a failure; so does a larger difference than claimed.
"""
import argparse
import gzip
import importlib.util
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPECIALS = ["<eos_de>", "<eos_en>", "<pad>"]


def sides(directory):
    files = [next((directory / (name + end) for end in ("", ".gz") if (directory / (name + end)).exists()), None) for name in ("train.de", "train.en")]
    if None in files:
        sys.exit(f"error: expected train.de and train.en, plain or .gz, in {directory}")
    return files


def lines_of(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        text = file.read().decode()
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def bpe(program, data, vocab, scratch):
    """Byte for byte the same tokenizer.json, and the same ids for every line of the corpus, the other splits' too."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    files = sides(data)
    training = [line for file in files for line in lines_of(file)]
    files += sorted(file for file in data.iterdir() if re.search(r"\.(de|en)(\.gz)?$", file.name) and file not in files)
    lines = [line for file in files for line in lines_of(file)]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(training, vocab_size=vocab, min_frequency=2, special_tokens=SPECIALS, show_progress=False)
    trained.save(str(scratch / "theirs.json"))
    subprocess.run([program, "bpe", str(vocab), scratch / "ours.json", scratch / "ids", *files], check=True)
    same_file = (scratch / "theirs.json").read_bytes() == (scratch / "ours.json").read_bytes()
    reader, total, wrong = Tokenizer.from_file(str(scratch / "theirs.json")), 0, 0
    reader.encode_special_tokens = True
    with open(scratch / "ids", encoding="utf-8") as ours:
        for encoded, line in zip(reader.encode_batch(lines), ours, strict=True):
            total += len(encoded.ids)
            wrong += encoded.ids != json.loads(line)
    return f"tokenizer.json {'byte for byte' if same_file else 'differs'}, {total:,} ids of {len(lines):,} lines, {wrong} lines differ", same_file and wrong == 0


def corrupt(rnd, line, others):
    words = line.split(" ")
    for _ in range(rnd.randrange(6)):
        at, what = rnd.randrange(len(words)), rnd.randrange(5)
        if what == 0 and len(words) > 1:
            words.pop(at)
        elif what == 1:
            words.insert(at, rnd.choice(words))
        elif what == 2:
            words[at] = words[at].upper()
        elif what == 3:
            words[at] = rnd.choice(rnd.choice(others).split(" "))
        else:
            words[at] += rnd.choice([".", ",", "-", "...", " 1,000.5", "&quot;", "\u3002", "\u201c", "'s"])
    return " ".join(words)


def scores(program, data, corpora, scratch):
    """The largest difference of BLEU and of chrF over so many corpora of mistaken translations."""
    from sacrebleu.metrics import BLEU, CHRF
    rnd = random.Random(3)
    lines = lines_of(sides(data)[1])
    cases = []
    for number in range(corpora):
        refs = [rnd.choice(lines) for _ in range(rnd.choice([1, 2, 5, 20, 60]))]
        hyps = [corrupt(rnd, ref, lines) if rnd.random() < 0.95 else rnd.choice(["", ref, rnd.choice(lines)]) for ref in refs]
        cases.append({"hyps": hyps, "refs": refs, "lowercase": number % 2 == 1})
    (scratch / "cases.json").write_text(json.dumps(cases))
    ours = json.loads(subprocess.run([program, "scores", scratch / "cases.json"], check=True, capture_output=True).stdout)
    worst = 0.0
    for case, (bleu, chrf) in zip(cases, ours, strict=True):
        worst = max(worst, abs(bleu - BLEU(lowercase=case["lowercase"]).corpus_score(case["hyps"], [case["refs"]]).score),
                    abs(chrf - CHRF(lowercase=case["lowercase"]).corpus_score(case["hyps"], [case["refs"]]).score))
    return f"{corpora} corpora, largest difference {worst:.1e}", worst <= 1e-12


def model(program, scratch):
    """Largest differences of logits, of the loss, and of every gradient in units of its norm, for the classic model."""
    import torch
    from safetensors.torch import load_file, save_file
    spec = importlib.util.spec_from_file_location("fixtures", ROOT / "tests" / "fixtures" / "make_nn_fixtures.py")
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    options = dict(vocab=10000, length=40, width=256, layers=4, heads=8, ff=256, activation="gelu", head_bias=True, seed=77)
    weights = fixtures.weights_of(options, torch.float64)
    ids = torch.tensor(fixtures.integers(5, (8, 41), options["vocab"]))
    logits = fixtures.forward(options, weights, ids[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    save_file({name: value.detach().float().contiguous() for name, value in weights.items()}, scratch / "model.safetensors")
    save_file({"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}, scratch / "batch.safetensors")
    subprocess.run([program, "model", scratch / "model.safetensors", scratch / "batch.safetensors", scratch / "out.safetensors"], check=True)
    ours = {name: value.double() for name, value in load_file(scratch / "out.safetensors").items()}
    # In units of the largest logit, as float32 rounds.
    by_logits = ((ours["logits"] - logits).abs().max() / logits.abs().max()).item()
    by_loss = abs(ours["loss"].item() - loss.item()) / loss.item()
    by_gradient = max(((ours["gradient." + name] - value.grad).norm() / value.grad.norm()).item() for name, value in weights.items())
    count = sum(math.prod(value.shape) for value in weights.values())
    return (f"{count / 1e6:.1f} M parameters: logits {by_logits:.1e}, loss {by_loss:.1e}, gradients {by_gradient:.1e}",
            by_logits <= 3e-6 and by_loss <= 1e-6 and by_gradient <= 3e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data" / "embedded")
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--corpora", type=int, default=600)
    options = parser.parse_args()
    rows = [("byte-level BPE against tokenizers", "byte for byte, all ids", lambda at: bpe(options.program, options.data, options.vocab, at)),
            ("BLEU and chrF against sacreBLEU", "3e-14", lambda at: scores(options.program, options.data, options.corpora, at)),
            ("the classic model against PyTorch", "logits 1.2e-6, loss 7e-8, gradients 9e-7", lambda at: model(options.program, at))]
    failed = False
    print(f"| what | README | measured on {options.data.name} | |\n|---|---|---|---|")
    for what, claim, measure in rows:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                measured, holds = measure(pathlib.Path(scratch))
            except ImportError as error:
                measured, holds = f"not measured: {error}", False
        failed = failed or not holds
        print(f"| {what} | {claim} | {measured} | {'holds' if holds else 'FAILS'} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
