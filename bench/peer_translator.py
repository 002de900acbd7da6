#!/usr/bin/env python3
"""The translator that papers on Multi30k train, in PyTorch, as translator.py's figures stand beside: BLEU by sacreBLEU and seconds of training.

usage: peer_translator.py DATA OUT.json [--src de --tgt en] [--updates 6000] [--seed 1] [--device cuda] [--splits val,test_2016_flickr]
DATA has train.de, train.en, ..., plain or .gz, as docs/data.md says. Needs PyTorch, tokenizers and sacrebleu.

4 + 4 post-norm layers of width 128, 4 heads, feed-forward 256, one table for source, target and head, sinusoidal positions, dropout 0.3, label
smoothing 0.1 (Wu et al. 2021, "Good for Misconceived Reasons"); Adam with betas 0.9 and 0.98 and the inverse square root schedule, up to 0.005 in 2,000
updates; batches of 8,192 tokens of like length; the mean of the last ten epochs' weights; beam 5 with scores divided by the length.
"""
import argparse
import gzip
import json
import math
import pathlib
import random
import time

import sacrebleu
import tokenizers
import torch
import torch.nn.functional as F
from torch import nn

PAD, BEGIN, END = range(3)


def lines_of(directory, split, language):
    path = directory / f"{split}.{language}"
    if path.exists():
        return path.read_text(encoding="utf-8").splitlines()
    with gzip.open(f"{path}.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


class Translator(nn.Module):
    def __init__(self, vocabulary, width=128, inner=256, layers=4, heads=4, dropout=0.3, longest=512):
        super().__init__()
        encoder = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True)
        decoder = nn.TransformerDecoderLayer(width, heads, inner, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers)
        self.tokens, self.dropout = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.tokens.weight, std=width ** -0.5)
        angles = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

    def embed(self, ids):
        return self.dropout(self.tokens(ids) * self.tokens.embedding_dim ** 0.5 + self.positions[: ids.shape[1]])

    def encode(self, source):
        return self.encoder(self.embed(source), src_key_padding_mask=source == PAD)

    def decode(self, memory, source, target):
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        y = self.decoder(self.embed(target), memory, tgt_mask=later, tgt_key_padding_mask=target == PAD, memory_key_padding_mask=source == PAD)
        return y @ self.tokens.weight.t()


def padded(rows, device):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=device)


def batches_of(pairs, tokens):
    """An epoch's batches in a random order: pairs of like length, of at most so many tokens on the longer side with padding."""
    length = [max(map(len, pair)) for pair in pairs]
    order = sorted(range(len(pairs)), key=lambda i: (length[i] // 3, random.random()))
    batches, current = [], []
    for i in order:
        if current and max(length[i], max(length[j] for j in current[-1:] + current[:1])) * (len(current) + 1) > tokens:
            batches.append(current)
            current = []
        current.append(i)
    batches.append(current)
    random.shuffle(batches)
    return batches


@torch.no_grad()
def translate(model, tokenizer, lines, device, beam=5, longest=80):
    model.eval()
    found = {}
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    for first in range(0, len(order), 250):
        part = order[first: first + 250]
        source = padded([tokenizer.encode(lines[i]).ids + [END] for i in part], device)
        memory = model.encode(source).repeat_interleave(beam, 0)
        source = source.repeat_interleave(beam, 0)
        rows = len(part) * beam
        ids = torch.full((rows, 1), BEGIN, device=device)
        sums, lengths = torch.full((len(part), beam), -math.inf, device=device), torch.ones(rows, device=device)
        sums[:, 0] = 0
        ended = torch.zeros(rows, dtype=torch.bool, device=device)
        for _ in range(longest):
            steps = model.decode(memory, source, ids)[:, -1].float().log_softmax(-1)
            steps[:, [PAD, BEGIN]] = -math.inf
            steps[ended] = -math.inf
            steps[ended, PAD] = 0  # an ended line stays as it is
            totals = sums.view(-1, 1) + steps
            lengths = lengths + ~ended
            chosen = (totals / lengths[:, None]).view(len(part), -1).topk(beam).indices
            sums = totals.view(len(part), -1).gather(1, chosen)
            row = (chosen // steps.shape[1] + torch.arange(len(part), device=device)[:, None] * beam).flatten()
            token = (chosen % steps.shape[1]).flatten()
            ids, lengths, ended = torch.cat((ids[row], token[:, None]), 1), lengths[row], ended[row] | (token == END)
            if ended.all():
                break
        best = (sums / lengths.view_as(sums)).argmax(1)
        for number, i in enumerate(part):
            found[i] = tokenizer.decode([t for t in ids[number * beam + best[number]].tolist() if t > END]).strip()
    return [found[i] for i in range(len(lines))]


def train(model, pairs, options):
    """Seconds of training; the model has the mean of the last epochs' weights at the end."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=options.device == "cuda")
    kept, update, began = [], 0, time.monotonic()
    while update < options.updates:
        model.train()
        for batch in batches_of(pairs, options.tokens):
            update += 1
            source, target = padded([pairs[i][0] for i in batch], options.device), padded([pairs[i][1] for i in batch], options.device)
            for group in optimizer.param_groups:
                group["lr"] = 0.005 * min(update / 2000, (2000 / update) ** 0.5)
            with torch.autocast(options.device, torch.bfloat16):
                logits = model.decode(model.encode(source), source, target[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if update == options.updates:
                break
        kept = [*kept[-9:], {name: value.detach().clone() for name, value in model.state_dict().items()}]
        print(f"update {update}: loss {loss.item():.3f}, {time.monotonic() - began:.1f} s", flush=True)
    seconds = time.monotonic() - began
    model.load_state_dict({name: sum(state[name] for state in kept) / len(kept) for name in kept[0]})
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    for name, default in dict(src="de", tgt="en", device="cuda", splits="val,test_2016_flickr").items():
        parser.add_argument(f"--{name}", default=default)
    for name, default in dict(updates=6000, seed=1, vocabulary=10000, tokens=8192).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    both = list(zip(lines_of(options.data, "train", options.src), lines_of(options.data, "train", options.tgt)))
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator((line for pair in both for line in pair), vocab_size=options.vocabulary,
                                  special_tokens=["<pad>", "<begin>", "<end>"], show_progress=False)
    pairs = [(tokenizer.encode(a).ids + [END], [BEGIN] + tokenizer.encode(b).ids + [END]) for a, b in both]
    model = Translator(tokenizer.get_vocab_size()).to(options.device)
    seconds = train(model, pairs, options)
    row = dict(impl=f"PyTorch {torch.__version__}", src=options.src, tgt=options.tgt, updates=options.updates, seed=options.seed, seconds=round(seconds, 1),
               parameters=sum(p.numel() for p in model.parameters()), device=options.device)
    for split in options.splits.split(","):
        lines = translate(model, tokenizer, lines_of(options.data, split, options.src), options.device)
        references = [lines_of(options.data, split, options.tgt)]
        row[split] = dict(bleu=round(sacrebleu.corpus_bleu(lines, references).score, 2), chrf=round(sacrebleu.corpus_chrf(lines, references).score, 2))
    print(json.dumps(row))
    options.out.write_text(json.dumps(row) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
