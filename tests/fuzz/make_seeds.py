#!/usr/bin/env python3
"""Writes tests/fuzz/corpus: small inputs from which the fuzz programs set out. Needs nothing but Python."""
import hashlib
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def write(kind, name, content):
    path = HERE / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors(header, data):
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    return struct.pack("<Q", len(text)) + text.encode() + bytes(data)


def gguf(pairs, tensors, version=3, data=0):
    text = lambda t: struct.pack("<Q", len(t.encode())) + t.encode()
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    header += b"".join(text(key) + value for key, value in pairs)
    for name, dims, kind, offset in tensors:
        header += text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, kind, offset)
    return header + bytes(-len(header) % 32 + data), text


def byte_characters():
    table, following = [], 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        table.append(chr(byte if printable else following))
        following += not printable
    return sorted(table)


def tokenizer(added=("<pad>",), merges=(("a", "b"), ("ab", "ab"), ("x", "ab"))):
    tokens = list(added) + byte_characters() + [a + b for a, b in merges]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = lambda prefix, trim: {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": True}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(added)],
        "normalizer": None, "pre_tokenizer": byte_level(False, True), "post_processor": byte_level(True, False),
        "decoder": byte_level(True, True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [list(pair) for pair in merges]},
    }, ensure_ascii=False, separators=(",", ":"))


def main():
    entry = lambda dtype, shape, begin, end: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    write("safetensors", "empty", safetensors("{}", 0))
    write("safetensors", "one", safetensors({"a": entry("F32", [2, 3], 0, 24)}, 24))
    write("safetensors", "many", safetensors({"__metadata__": {"format": "pt", "k": "\u00fc"}, "b": entry("I64", [], 0, 8),
                                              "a.weight": entry("BF16", [1, 2], 8, 12), "c": entry("U8", [0, 5], 12, 12),
                                              "d": entry("BOOL", [3], 12, 15)}, 15))
    write("safetensors", "unknown", safetensors('{"a":{"data_offsets":[0,1],"x":[{"y":[1,-2,3.5,null]}],"shape":[1],"dtype":"U8"}}  ', 1))
    write("tokenizer", "small", tokenizer())
    write("tokenizer", "added", tokenizer(("<pad>", "<eos_de>", "ab<pad>"), (("a", "b"),)))
    write("tokenizer", "bare", tokenizer((), ()))
    write("config", "run", json.dumps({"tern_run": 1, "preset": "quick", "src": "de", "lr": 0.005, "width": 128, "prefix_lm": True}))
    write("config", "nested", '{"a":{"b":[1,-2,3.5e-7,"\\u00fc\\n",null,{"c":{}}]},"":"x","big":18446744073709551615}')
    write("encode", "words", "Der Hund h\u00f6rt <pad> it's 1998, we'll see  \t\n")
    write("encode", "odd", "\u3000\U0001F600e\u0301<pa<pad>ab<pad>ab\u00fc\u00fc\x00\x7f\u200d".encode() + b"\xff\xc3\xe2\x82")
    write("corpus", "plain", "Ein Hund.\r\n\nThe dog sees it.\nEin Mann \u00fc\n")
    write("corpus", "mark", "\ufeffa b c\na b d\n \u3000\nlast")
    write("gzip", "packed", b"\x05\xff\x0f\x00" + "Ein Hund.\nThe dog.\n".encode() * 4)
    write("gzip", "flipped", b"\x09\x0c\x00\x04" + b"a b c d\n" * 20)
    write("pieces", "plain", b"\x40\x00\x00\x00" + "Ein Hund.\nThe dog sees it.\r\n\nEin Mann \u00fc\u3000\n".encode() * 3)
    write("pieces", "lines", b'\x41\x00\x00\x00{"text": "a\\u00fc\\n", "n": [1, {"text": 2}]}\n\n{"text": ""}\r\n{"id": 1e5, "text": "b"}')
    write("pieces", "zstd", b"\x43\x00\x00\x00" + b"a b c d\n" * 20)
    write("pieces", "zstd-flipped", b"\x43\x0c\x00\x04" + b"The dog.\n" * 20)
    write("pieces", "zstd-raw", b"\x42\x00\x00\x00\x20\x02\x11\x00\x00ab")
    write("split", "qwen", r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+" + "\nIt's a dog.\n\n  1998 e\u0301 \U0001F600")
    write("split", "letters", r"[\p{Lu}\p{M}]*[\p{Ll}]+(?:'s)?|\d{1,3}|(?=x)y|(a+)+b|(?>a|ab)c{2,}|.\." + "\naaaaaaaaac FooBar'S 12345 xyab\u00fc")
    kernel = lambda code: b"tern kernel 1\n%s\n%020d\n%s\n%s" % (b"a" * 64, len(code), hashlib.sha256(code).hexdigest().encode(), code)
    write("kernels", "whole", b"\x01\x00\x00\x00" + bytes(range(256)))
    write("kernels", "flipped", b"\x01\x20\x00\x01" + b"code" * 50)
    write("kernels", "as-it-is", b"\x00\x00\x00\x00" + kernel(b"code"))
    write("kernels", "of-nothing", b"\x00\x00\x00\x00" + kernel(b""))

    write("rules", "certified", b"# rules\n(neg (neg a)) => a ; exact ; fingerprint 4fe3f662f3fe56fb ; error 0\n"
                                b"(div b (sqrt a)) => (mul b (rsqrt a)) ; sound ; fingerprint 3eeb973953a9e9e3 ; error 1.66\n")
    write("rules", "of-all-ops", b"(matmul (transpose (concat a b)) (scale s (split0 (widen c)))) => (add a v) ; sound\r\n\n"
                                 b"  (max (maxr a) (sum (scale -0.25 (exp w)))) => (relu (sub a (log (narrow w)))) ; exact # and more\n")
    chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}<|im_start|>system\\nBe brief.<|im_end|>"
    turns = "{{ bos_token + '[INST] <<SYS>>' + content.strip() + ' [/INST]' }}{{ ' ' + content|trim + ' ' + eos_token + ' ' }}loop.last and system_message"
    write("choice", "number", json.dumps({"ind": 3, "ctx": "A dog", "endings": ["runs.", "flies."], "label": 1}))
    write("choice", "text", json.dumps({"label": "0", "endings": ["\u00fc", "b", "c", "d"], "ctx": ""}))
    write("chat", "chatml", json.dumps({"chat_template": chatml, "eos_token": "</s>"}))
    write("chat", "named", json.dumps({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": turns}]}))
    write("chat", "turns", turns)
    write("chat", "others", "<|user|>{{ x + eos_token }}<|assistant|><|end|><|start_header_id|><|eot_id|><start_of_turn>trim<|im_sep|><|endoftext|>")
    text = gguf([], [])[1]
    write("gguf", "empty", gguf([], [])[0])
    write("gguf", "types", gguf([("k%d" % i, struct.pack("<I", kind) + value) for i, (kind, value) in enumerate(
        [(0, b"\1"), (1, b"\xff"), (2, b"\1\2"), (3, b"\1\2"), (4, b"\1\0\0\0"), (5, b"\1\0\0\0"), (6, struct.pack("<f", 1.5)), (7, b"\1"),
         (8, text("\u00fc")), (9, struct.pack("<IQ", 5, 2) + bytes(8)), (9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
         (10, bytes(8)), (11, b"\xff" * 8), (12, struct.pack("<d", -2))])], [])[0])
    write("gguf", "tensors", gguf([("general.architecture", struct.pack("<I", 8) + text("llama"))], [
        ("a", [3], 0, 0), ("b.weight", [32, 2], 8, 32), ("c", [64, 1], 2, 128), ("d", [2, 2, 1, 1], 1, 192), ("e", [0, 5], 30, 0)], data=200)[0])
    write("gguf", "aligned", gguf([("general.alignment", struct.pack("<II", 4, 64))], [("a", [4], 0, 64)], 2, 112)[0])
    write("gzip", "raw", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x4b\x4c\xe4\x02\x00\x07\xa1\xea\xdd\x02\x00\x00\x00")


if __name__ == "__main__":
    main()
