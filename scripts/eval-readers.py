#!/usr/bin/env python3
"""scripts/eval-readers.py TERN_LM: `tern-lm eval` beside transformers, on a small random GPT-2 and a text and choices that are made up here:
the loss of the text in the same windows, and the accuracies by likelihood. Needs numpy, tokenizers, torch, transformers."""
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 64
WORDS = "the a dog man sees and hello you there house of in red old river \u00fcber it's 1998".split()


def run(program, *arguments):
    return subprocess.run([program, "eval", *arguments, "--device", "cpu"], check=True, capture_output=True, text=True).stdout


def log_p(model, ids, first):
    """Log-probabilities of ids[first:], each given those before it, in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
    return [logits[at - 1, ids[at]].item() for at in range(first, len(ids))]


def main():
    program, draw = sys.argv[1], random.Random(7)
    torch.manual_seed(3)
    sentence = lambda count: " ".join(draw.choice(WORDS) for _ in range(count))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([sentence(40) for _ in range(50)], vocab_size=320, special_tokens=["<|endoftext|>"])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = GPT2Config(vocab_size=tokenizer.get_vocab_size(), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                            eos_token_id=0, initializer_range=0.3)
        model = GPT2LMHeadModel(config).eval()
        model.save_pretrained(folder)

        text = sentence(400)
        (folder / "text.txt").write_text(text)
        ids = [0] + tokenizer.encode(text).ids
        for overlap in (0, 32, 50):
            total, scored, begin = 0.0, 1, 0
            while scored < len(ids):
                end = min(len(ids), begin + LENGTH + 1)
                total -= sum(log_p(model, ids[begin:end], scored - begin))
                scored, begin = end, begin + LENGTH - overlap
            out = run(program, name, "--text", str(folder / "text.txt"), "--overlap", str(overlap))
            found = dict(part.rsplit(" ", 1) for part in out.splitlines()[1].split(", "))
            want = {"loss": total / (len(ids) - 1), "perplexity": math.exp(total / (len(ids) - 1)),
                    "bits per byte": total / math.log(2) / len(text.encode())}
            worst = max(abs(float(found[key]) / value - 1) for key, value in want.items())
            print(f"overlap {overlap}: loss {want['loss']:.6f}, largest relative difference {worst:.1e}")
            assert worst < 2e-5, out

        lines, right = [], [0, 0]
        for number in range(100):
            question = {"ctx": sentence(6), "endings": [sentence(draw.randint(1, 6)) for _ in range(4)], "label": draw.randrange(4)}
            lines.append(json.dumps(question))
            start = [0] + tokenizer.encode(question["ctx"]).ids
            sums = [sum(log_p(model, start + tokenizer.encode(" " + each).ids, len(start))) for each in question["endings"]]
            for form, values in enumerate((sums, [s / len(e.encode()) for s, e in zip(sums, question["endings"])])):
                right[form] += values.index(max(values)) == question["label"]
        (folder / "choices.jsonl").write_text("\n".join(lines) + "\n")
        out = run(program, name, "--choices", str(folder / "choices.jsonl"))
        print(out, end="")
        assert f"likelihood, sum {right[0] / 100:.4f} " in out and f"likelihood, per byte {right[1] / 100:.4f} " in out, right


if __name__ == "__main__":
    main()
