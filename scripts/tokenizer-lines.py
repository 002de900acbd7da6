#!/usr/bin/env python3
"""Sets the ids of tern's tokenizer beside those of Python's tokenizers, for difficult lines.

    python3 scripts/tokenizer-lines.py --inspect build/cpu/tests/fuzz/fuzz-inspect [--lines N] [--seed N] GGUF...
    python3 scripts/tokenizer-lines.py --fixture tests/fixtures/text/split_lines.json

Each GGUF file has the vocabulary and the merges of a model, such as llama.cpp's models/ggml-vocab-*.gguf; with the normalizer and the
expression of words that the model's own tokenizer.json has (the table below) they become one. The lines are drawn: words of 32 scripts, emoji,
combining marks, contractions, long white space, code, controls, special tokens. Needs the packages gguf and tokenizers
(scripts/reference-packages.sh). Exit code 1 if an id differs. --fixture writes some lines with their ids by a small tokenizer of their own, for
tests/text/split_test.cpp.
"""
import argparse
import importlib.metadata
import json
import pathlib
import random
import subprocess
import sys
import tempfile

LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# By tokenizer.ggml.pre: normalizer, expression (None: ByteLevel's own), ignore_merges.
MODELS = {
    "gpt-2": (None, None, False),
    "llama-bpe": (None, LLAMA_3, True),
    "qwen2": ("NFC", LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"), False),
    "qwen35": ("NFC", LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"), False),
}
# GPT-4o's expression, whose words are cut at capitals.
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SCRIPTS = {
    "Latin": (0x41, 0x7A), "Latin-1": (0xC0, 0xFF), "Latin Extended": (0x100, 0x24F), "Vietnamese": (0x1EA0, 0x1EF9), "Greek": (0x386, 0x3FF),
    "Greek Extended": (0x1F00, 0x1FFE), "Cyrillic": (0x400, 0x52F), "Armenian": (0x531, 0x58A), "Hebrew": (0x591, 0x5F4), "Arabic": (0x610, 0x6FF),
    "Syriac": (0x700, 0x74A), "Thaana": (0x780, 0x7B1), "NKo": (0x7C0, 0x7FA), "Devanagari": (0x900, 0x97F), "Bengali": (0x980, 0x9FE),
    "Gurmukhi": (0xA01, 0xA76), "Gujarati": (0xA81, 0xAFF), "Oriya": (0xB01, 0xB77), "Tamil": (0xB82, 0xBFA), "Telugu": (0xC00, 0xC7F),
    "Kannada": (0xC80, 0xCF2), "Malayalam": (0xD00, 0xD7F), "Sinhala": (0xD81, 0xDF4), "Thai": (0xE01, 0xE5B), "Lao": (0xE81, 0xEDF),
    "Tibetan": (0xF00, 0xFDA), "Myanmar": (0x1000, 0x109F), "Georgian": (0x10A0, 0x10FF), "Ethiopic": (0x1200, 0x137C), "Cherokee": (0x13A0, 0x13FD),
    "Khmer": (0x1780, 0x17F9), "Mongolian": (0x1800, 0x1878), "Hiragana": (0x3041, 0x309F), "Katakana": (0x30A0, 0x30FF), "Han": (0x4E00, 0x9FEF),
    "Compatibility Han": (0xF900, 0xFA6D), "Hangul": (0xAC00, 0xD7A3), "Hangul Jamo": (0x1100, 0x11FF), "Gothic": (0x10330, 0x1034A), "Mathematical": (0x1D400, 0x1D7FF),
}
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b", "\u180e", "\x0b", "\x1c"]
CONTRACTIONS = ["I'm", "we'LL", "don't", "it's", "IT'S", "they'Ve", "'tis", "he'd", "you're", "it\u2019s", "'\u017f", "x'S'T", "''ll", "'RE"]
EMOJI = ["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "1\ufe0f\u20e3", "\U0001FAE8"]
CODE = ["def f(x):\n    return x**2\n", "#include <vector>\n\tint a[3] = {0x1F, 1e-9};", "{\"key\": [1, 2.5, null]}", "a->b::c<T&&>()", "// \u00fcber\n\n\n", "SELECT * FROM t;",
        "\\frac{1}{2}$", "https://example.org/a?b=c&d=%20#e", "x = y if z else 'w'  # comment", "100000000 3.14159 1,234,567 \u0663\u0664 \u2167 \u00bd"]
SPECIAL = ["<|endoftext|>", "<|im_start|>user\n", "<|begin_of_text|>", "<|eot_id|>", "<|end", "\ufffd", "\u0000", "\x7f", "\ue000", "\U000F0000", "\u0378", "\U0001D540", "\u0149", "\ufb06"]


def word(rnd):
    low, high = SCRIPTS[rnd.choice(list(SCRIPTS))]
    text = "".join(chr(rnd.randint(low, high)) for _ in range(rnd.randint(1, 9)))
    if rnd.random() < 0.15:
        at = rnd.randrange(len(text) + 1)
        text = text[:at] + "".join(chr(rnd.choice([rnd.randint(0x300, 0x36F), 0x338, 0x3099, 0x5BC, 0x93C, 0x20D0])) for _ in range(rnd.randint(1, 3))) + text[at:]
    return text


def line(rnd):
    parts = []
    for _ in range(rnd.randint(1, 14)):
        draw = rnd.random()
        if draw < 0.5:
            parts.append(word(rnd))
        elif draw < 0.6:
            parts.append("".join(rnd.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ") for _ in range(rnd.randint(1, 12))))
        elif draw < 0.68:
            parts.append(rnd.choice(CONTRACTIONS))
        elif draw < 0.74:
            parts.append(rnd.choice(EMOJI))
        elif draw < 0.8:
            parts.append(rnd.choice(CODE))
        elif draw < 0.85:
            parts.append(rnd.choice(SPECIAL))
        elif draw < 0.9:
            parts.append(str(rnd.randrange(10 ** rnd.randint(1, 12))))
        elif draw < 0.95:
            parts.append(rnd.choice(SPACES) * rnd.randint(1, 40))
        else:
            parts.append(rnd.choice("!?.,;:-_/*+=~`'\"()[]{}") * rnd.randint(1, 9))
        if rnd.random() < 0.75:
            parts.append(rnd.choice(SPACES))
    return "".join(parts)


def split_and_bytes(expression):
    own = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": expression is None}
    if expression is None:
        return own
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, own]}


def document(vocab, merges, added, normalizer, expression, ignore_merges):
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [{"id": i, "content": text, **entry} for i, text in added],
                       "normalizer": normalizer and {"type": normalizer}, "pre_tokenizer": split_and_bytes(expression), "post_processor": None, "decoder": byte_level,
                       "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                                 "byte_fallback": False, "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}}, ensure_ascii=False)


def of_gguf(path):
    """Name and tokenizer.json for each expression to try with a file's vocabulary."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    name, tokens, kinds, merges = (fields["tokenizer.ggml." + key].contents() for key in ("pre", "tokens", "token_type", "merges"))
    if name not in MODELS:
        sys.exit(f"{path}: expected a vocabulary of {', '.join(MODELS)} but got {name}")
    size = next((i for i, kind in enumerate(kinds) if kind != 1), len(tokens))  # 1: normal, 3: control, 4: unused
    added = [(i, tokens[i]) for i in range(size, len(tokens)) if kinds[i] == 3]
    vocab, (normalizer, expression, ignore_merges) = {token: i for i, token in enumerate(tokens[:size])}, MODELS[name]
    yield name, document(vocab, merges, added, normalizer, expression, ignore_merges)
    if name == "gpt-2":
        yield "gpt-2's vocabulary with GPT-4o's expression", document(vocab, merges, added, "NFC", O200K, False)


def fixture(path, seed):
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
    rnd = random.Random(seed)
    lines = [line(rnd)[:160] for _ in range(60)]
    result = {"lines": lines, "tokenizers": []}
    for expression in (MODELS["qwen2"][1], MODELS["qwen35"][1], O200K):
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(expression), "isolated"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"],
                                                                 show_progress=False))
        tokenizer.add_tokens([tokenizers.AddedToken("e\u0301!", normalized=True)])
        tokenizer.encode_special_tokens = True
        result["tokenizers"].append({"file": json.loads(tokenizer.to_str()), "ids": [tokenizer.encode(text).ids for text in lines]})
    path.write_text(json.dumps(result, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", nargs="*")
    parser.add_argument("--inspect")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixture", type=pathlib.Path)
    options = parser.parse_args()
    if options.fixture:
        return fixture(options.fixture, options.seed)
    import tokenizers
    rnd = random.Random(options.seed)
    lines = [line(rnd) for _ in range(options.lines)]
    failed = False
    for path in options.gguf:
        for name, text in of_gguf(path):
            with tempfile.TemporaryDirectory() as directory:
                file, texts = pathlib.Path(directory) / "tokenizer.json", pathlib.Path(directory) / "texts"
                file.write_text(text)
                texts.write_text(json.dumps(lines))
                ran = subprocess.run([options.inspect, "tokenizer", str(texts)], input=f"{file}\n".encode(), stdout=subprocess.PIPE, check=True)
            ours, theirs = json.loads(ran.stdout), tokenizers.Tokenizer.from_str(text).encode_batch(lines, add_special_tokens=False)
            if "ok" not in ours:
                sys.exit(f"{name}: {ours['refused']}")
            equal = [got[0] == expected.ids for got, expected in zip(ours["ok"], theirs)]
            print(f"{name}: {sum(equal)} of {len(lines)} lines are equal, {sum(len(each.ids) for each in theirs)} ids, tokenizers {importlib.metadata.version('tokenizers')}")
            for i in [i for i, same in enumerate(equal) if not same][:5]:
                print(f"  line {i}: {lines[i]!r}\n    {ours['ok'][i][0]}\n    {theirs[i].ids}")
            failed = failed or not all(equal)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
