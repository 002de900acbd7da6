#!/usr/bin/env python3
"""scripts/gguf-readers.py TEST_MODELS [--llama LLAMA_CPP BUILD]: what tern writes, as others read it. TEST_MODELS, such as
build/cpu/tests/test-models, writes random models of four shapes as GGUF and for transformers, with their logits. Then Python's gguf reads
every field and tensor and compares the f32 files' tensors with the safetensors and dequantises the others as the reader here does;
transformers computes the logits of the Hugging Face directories; llama.cpp, of a source tree and a static build of it with CMake, those of
the GGUF files, in float32 where it can (GPT-2's are 2e-3 apart where it takes GELU from a table in f16, GGML_GELU_FP16 in its vec.h), the
ids of its tokenizer, and what llama-quantize makes of the f32 files. Needs gguf, numpy, safetensors, torch, transformers, tokenizers."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import load_file

SHAPES = ("gpt2", "llama", "llama_wide", "llama_linear")
FORMATS = ("f32", "f16", "q8_0", "q4_0")
TEXTS = ("the cats sat, 12345 terns\n\n  and more!", "Ünï\tçødé 😶 it's", " <|end|> ")

# Logits of ids (a file of i64) and the ids of texts (a file of lines, with \n for a new line), as f32 and i32 behind each other.
LLAMA = r"""
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include "llama.h"
int main(int, char** arg) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model_params m = llama_model_default_params();
  m.use_extra_bufts = false;
  llama_model* model = llama_model_load_from_file(arg[1], m);
  if (!model) return 1;
  llama_context_params c = llama_context_default_params();
  c.n_ctx = 64, c.n_threads = c.n_threads_batch = 2, c.type_k = c.type_v = GGML_TYPE_F32, c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, c);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  std::vector<llama_token> ids;
  for (int i = 3; arg[i]; ++i) ids.push_back(atoi(arg[i]));
  llama_batch batch = llama_batch_init(ids.size(), 0, 1);
  for (size_t i = 0; i < ids.size(); ++i) batch.token[i] = ids[i], batch.pos[i] = i, batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0, batch.logits[i] = 1;
  batch.n_tokens = ids.size();
  if (llama_decode(context, batch)) return 1;
  const int n = llama_vocab_n_tokens(vocab);
  for (size_t i = 0; i < ids.size(); ++i) fwrite(llama_get_logits_ith(context, i), sizeof(float), n, stdout);
  fflush(stdout);
  const std::string text = arg[2];
  std::vector<llama_token> out(text.size() + 8);
  const int count = llama_tokenize(vocab, text.c_str(), text.size(), out.data(), out.size(), false, true);
  for (int i = 0; i < count; ++i) fprintf(stderr, "%d ", out[i]);
}
"""


def perplexity(logits, ids):
    shifted = logits[:-1].astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return float(np.exp(np.mean(np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(ids) - 1), ids[1:]])))


def read_with_gguf(path, shape_path, counts):
    reader = gguf.GGUFReader(path)
    for field in reader.fields.values():
        counts["fields"] += 1
        field.contents()
    written = load_file(shape_path / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2 if "gpt2" in path.name else gguf.MODEL_ARCH.LLAMA, 2)
    theirs = {names.get_name(name, (".weight", ".bias")): (name, value) for name, value in written.items()}
    heads = {"attn_q": 4, "attn_k": 2}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type) if tensor.tensor_type.name[0] == "Q" else tensor.data
        if tensor.name == "rope_freqs.weight":
            continue
        name, expected = theirs[tensor.name]
        if "gpt2" in path.name and name.split(".")[-2].startswith("c_") and name.endswith("weight"):
            expected = expected.T
        for part, count in heads.items():
            if f".{part}." in tensor.name:  # LlamaModel.permute of convert_hf_to_gguf.py
                expected = expected.reshape(count, 2, expected.shape[0] // count // 2, *expected.shape[1:]).swapaxes(1, 2).reshape(expected.shape)
        if tensor.tensor_type.name[0] == "Q":
            expected = gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(expected), tensor.tensor_type), tensor.tensor_type)
        elif tensor.tensor_type.name == "F16":
            expected = expected.astype(np.float16)
        assert values.shape == expected.shape, (path, tensor.name, values.shape, expected.shape)
        different = int((values.astype(np.float32) != expected.astype(np.float32)).sum())
        counts["tensors"] += 1
        counts["elements"] += values.size
        counts["different elements"] += different
    assert len(reader.tensors) >= len(written)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("test_models", type=pathlib.Path)
    parser.add_argument("--llama", nargs=2, type=pathlib.Path, metavar=("SOURCE", "BUILD"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name)
        subprocess.run([options.test_models, "Files for other readers"], env={"TERN_GGUF_OUT": name}, check=True, stdout=subprocess.DEVNULL)
        counts = dict.fromkeys(("fields", "tensors", "elements", "different elements"), 0)
        for shape in SHAPES:
            for kind in FORMATS:
                read_with_gguf(out / f"{shape}.{kind}.gguf", out / shape, counts)
        print("Python's gguf:", ", ".join(f"{value} {key}" for key, value in counts.items()))
        failed = counts["different elements"] > 0

        import torch
        from transformers import AutoModelForCausalLM
        for shape in SHAPES:
            expected = load_file(out / f"{shape}.safetensors")
            model = AutoModelForCausalLM.from_pretrained(out / shape, dtype=torch.float32).eval()
            with torch.no_grad():
                theirs = model(torch.from_numpy(expected["ids"])).logits.numpy()
            apart = float(np.abs(theirs - expected["f32"]).max())
            failed |= apart > 1e-4
            print(f"transformers, {shape}: logits at most {apart:.1e} apart")
        if options.llama:
            failed |= llama(options.llama, out)
    sys.exit(failed)


def llama(places, out):
    source, build = places
    (out / "logits.cpp").write_text(LLAMA)
    libraries = [build / "src/libllama.a", *(build / f"ggml/src/libggml{part}.a" for part in ("", "-cpu", "-base"))]
    subprocess.run(["c++", "-O1", f"-I{source}/include", f"-I{source}/ggml/include", out / "logits.cpp", *libraries, "-fopenmp", "-lpthread", "-ldl",
                    "-o", out / "logits"], check=True)
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    failed, compared, equal = False, 0, 0
    for shape in SHAPES:
        expected = load_file(out / f"{shape}.safetensors")
        ids = expected["ids"][0]
        base = None
        for kind in FORMATS:
            path = out / f"{shape}.{kind}.gguf"
            theirs = None
            for text in TEXTS:
                compared += 1
                result = subprocess.run([out / "logits", path, text, *map(str, ids)], capture_output=True, check=True)
                theirs = np.frombuffer(result.stdout, np.float32).reshape(len(ids), -1)
                equal += list(map(int, result.stderr.split())) == tokenizer.encode(text, add_special_tokens=False).ids
            apart = float(np.abs(theirs - expected[kind][0]).max())
            ours, other = perplexity(expected[kind][0], ids), perplexity(theirs, ids)
            base = base or other
            print(f"llama.cpp, {shape} {kind}: logits at most {apart:.1e} apart, of {np.abs(theirs).max():.1f}; perplexity {ours:.4f} here, "
                  f"{other:.4f} there, {base:.4f} in f32")
            if kind == "f32" and shape != "gpt2":  # its gelu is a table in f16
                failed |= apart > 1e-4
    same = all_tensors = 0
    for shape in SHAPES:  # --pure: the head too, which is q8_0 in our q4_0 files
        for kind in ("q8_0", "q4_0"):
            subprocess.run([build / "bin/llama-quantize", "--pure", out / f"{shape}.f32.gguf", out / "theirs.gguf", kind], check=True, capture_output=True)
            theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(out / "theirs.gguf").tensors}
            for tensor in gguf.GGUFReader(out / f"{shape}.{kind}.gguf").tensors:
                if kind == "q8_0" or tensor.tensor_type.name != "Q8_0":
                    all_tensors += 1
                    same += tensor.data.tobytes() == theirs[tensor.name].data.tobytes()
    print(f"llama-quantize: {same} of {all_tensors} tensors have the bytes that it gives the f32 file's")
    print(f"llama.cpp: ids of {equal} of {compared} texts are those of tokenizers")
    return failed or equal < compared or same < all_tensors


if __name__ == "__main__":
    main()
