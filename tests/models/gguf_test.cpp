// Models and tokenizers as GGUF files. scripts/gguf-readers.py sets what is written beside llama.cpp and Python's gguf.
#include "models/gguf.h"

#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "catch.h"
#include "files.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "models/hugging_face.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;
using namespace tern::test;
using io::GgufFormat, io::GgufValue;
using models::load_gguf;
using models::save_gguf;

namespace {

constexpr std::int64_t vocab = 320;

text::Tokenizer small_tokenizer() {
  const std::vector<std::string> lines(3, "the cat sat on the mat, and the rat sat on the cat: tern, terns, turn");
  return text::Tokenizer::train(lines, {.vocab_size = 281, .special_tokens = {"<|end|>"}});
}

nn::DecoderLMOptions gpt2_options() {
  return {.vocab = vocab,
          .length = 48,
          .width = 64,
          .layers = 2,
          .heads = 4,
          .ff = 96,
          .dropout = 0,
          .activation = nn::Activation::gelu_tanh,
          .layer_norm_eps = 1e-4,
          .head_bias = false,
          .tied_head = true};
}
nn::DecoderLMOptions llama_options() {
  return {.vocab = vocab,
          .length = 64,
          .width = 64,
          .layers = 2,
          .heads = 4,
          .ff = 96,
          .kv_heads = 2,
          .dropout = 0,
          .activation = nn::Activation::silu,
          .gated = true,
          .bias = false,
          .norm = nn::NormKind::rms,
          .positions = nn::Positions::rotary,
          .rope_base = 500,
          .rope_pairs = RopePairs::halves,
          .layer_norm_eps = 1e-4,
          .head_bias = false};
}
/// Also heads larger than their share of the width, all biases, a tied head, and Llama 3's scaling in its three ranges.
nn::DecoderLMOptions wide_llama_options() {
  nn::DecoderLMOptions o = llama_options();
  o.head_dim = 32;
  o.bias = o.tied_head = true;
  o.rope_base = 1000;
  o.rope_scaling = {.factor = 4, .original_length = 32, .low_turns = 0.5, .high_turns = 3};
  return o;
}
nn::DecoderLMOptions linear_llama_options() {
  nn::DecoderLMOptions o = llama_options();
  o.rope_scaling.factor = 2;
  return o;
}
const std::vector<std::pair<std::string, nn::DecoderLMOptions>> shapes = {
    {"gpt2", gpt2_options()}, {"llama", llama_options()}, {"llama_wide", wide_llama_options()}, {"llama_linear", linear_llama_options()}};

/// A model with wide weights, biases and norms too: with those of a fresh model a layer that is wrong would move the logits by little.
nn::DecoderLM drawn(const nn::DecoderLMOptions& options, std::uint64_t seed = 1) {
  manual_seed(seed);
  nn::DecoderLM model(options);
  const NoGrad unrecorded;
  for (const auto& [name, x] : nn::named_parameters(model))
    copy_(x, randn(x.shape()) * (x.dims() == 2 ? 0.15 : 0.2) + (name.find("norm") != name.npos && name.ends_with("weight") ? 1.0 : 0.0));
  model.eval();
  return model;
}

Tensor test_ids() {
  manual_seed(7);
  return randint(0, 280, {1, 40});
}
Tensor logits_of(const nn::DecoderLM& model) {
  const NoGrad unrecorded;
  return model.forward(test_ids());
}
double largest(const Tensor& x) { return max(abs(x)).item<double>(); }
bool are_equal(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && !any(ne(cast(a, DType::f64), cast(b, DType::f64))).item<bool>();
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    CHECK(message.find('\n') == message.npos);
    return message;
  }
  return "(no error)";
}
void check_says(const std::string& message, const std::string& part) {
  CAPTURE(message, part);
  CHECK(message.find(part) != message.npos);
}

/// A file again with other metadata or tensors.
void rewrite(const std::string& from, const std::string& to, const std::function<void(io::GgufMetadata&)>& edit,
             const std::function<void(std::vector<io::GgufEntry>&)>& edit_entries = {}) {
  const io::GgufFile file(from);
  io::GgufMetadata metadata = file.metadata();
  edit(metadata);
  std::vector<io::GgufEntry> entries = file.tensors();
  if (edit_entries) edit_entries(entries);
  io::write_gguf(to, metadata, entries, [&](std::size_t i) {
    const io::GgufEntry* const found = file.find(entries[i].name);
    return found && found->shape == entries[i].shape && found->format == entries[i].format
               ? file.read(*found)
               : zeros(entries[i].stored_shape(), entries[i].stored_dtype());
  });
}

}  // namespace

TEST_CASE("A model is read back from GGUF, bit for bit in float32 and in its own blocks") {
  const TempDirectory directory;
  const text::Tokenizer tokenizer = small_tokenizer();
  const std::string path = directory / "model.gguf";
  for (const auto& [name, options] : shapes) {
    INFO(name);
    const nn::DecoderLM model = drawn(options);
    save_gguf({model, tokenizer}, path, GgufFormat::f32);
    const models::LanguageModel read = load_gguf(path);
    const auto ours = nn::named_parameters(model), theirs = nn::named_parameters(read.model);
    REQUIRE(ours.size() == theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      INFO(ours[i].name);
      CHECK(ours[i].name == theirs[i].name);
      CHECK(are_equal(ours[i].tensor, theirs[i].tensor));
    }
    CHECK(largest(logits_of(model)) > 1);
    CHECK(are_equal(logits_of(model), logits_of(read.model)));
    CHECK(!read.model.training);
    CHECK(nn::parameters(read.model)[0].requires_grad());

    save_gguf({model, tokenizer}, path, GgufFormat::f16);
    CHECK(largest(logits_of(load_gguf(path).model) - logits_of(model)) < 0.05);
    CHECK(load_gguf(path, {.dtype = DType::f16}).model.dtype() == DType::f16);

    for (const QuantFormat format : {QuantFormat::q8_0, QuantFormat::q4_0}) {
      const bool is_q8 = format == QuantFormat::q8_0;
      nn::DecoderLM quantized = drawn(options);
      nn::quantize(quantized, format);
      // Positions are f32 in a file; a head is of 8 bits in a q4_0 file too.
      if (quantized.positions) *quantized.positions = drawn(options).positions.value();
      if (!is_q8) {
        nn::DecoderLM eight = drawn(options);
        nn::quantize(eight, QuantFormat::q8_0);
        quantized.head = eight.head;
        if (options.tied_head) quantized.tokens = eight.tokens;
      }
      const std::string file = directory / "blocks.gguf";
      save_gguf({drawn(options), tokenizer}, file, is_q8 ? GgufFormat::q8_0 : GgufFormat::q4_0);
      const nn::DecoderLM blocks = load_gguf(file).model;
      CHECK(blocks.blocks[1].attn.qkv->quantized.format == format);
      CHECK(are_equal(logits_of(blocks), logits_of(quantized)));
      // Blocks are written as they are.
      save_gguf({blocks, tokenizer}, path, is_q8 ? GgufFormat::q8_0 : GgufFormat::q4_0);
      CHECK(slurp(path) == slurp(file));
      const nn::DecoderLM plain = load_gguf(file, {.dequantizes = true}).model;
      CHECK(are_equal(plain.head.weight, dequantize(blocks.head.quantized)));
      CHECK(nn::parameters(plain)[0].requires_grad());
      CHECK(largest(logits_of(plain) - logits_of(model)) > 0);
      save_gguf({blocks, tokenizer}, path, GgufFormat::f32);
      CHECK(are_equal(logits_of(load_gguf(path).model), logits_of(plain)));
    }
  }
}

TEST_CASE("GGUF files have the names and formats of llama.cpp, and its order of rows") {
  const TempDirectory directory;
  const std::string path = directory / "model.gguf";
  const nn::DecoderLM model = drawn(llama_options());
  save_gguf({model, small_tokenizer()}, path, GgufFormat::f32);
  {
    const io::GgufFile file(path);
    const Tensor q = slice(model.blocks[1].attn.qkv->weight.detach(), 0, 0, 64);
    const Tensor written = file.read(*file.find("blk.1.attn_q.weight"));
    for (const std::int64_t head : {0, 3})
      for (const std::int64_t pair : {0, 1, 7})
        for (const std::int64_t half : {0, 1})
          CHECK(are_equal(slice(written, 0, 16 * head + 2 * pair + half, 16 * head + 2 * pair + half + 1),
                          slice(q, 0, 16 * head + 8 * half + pair, 16 * head + 8 * half + pair + 1)));
    CHECK(are_equal(file.read(*file.find("blk.1.attn_v.weight")), slice(model.blocks[1].attn.qkv->weight.detach(), 0, 96, 128)));
    CHECK(file.metadata().at("llama.rope.freq_base").real(0) == 500);
    CHECK(file.metadata().at("llama.attention.head_count_kv").integer(0) == 2);
  }
  const auto format = [](const std::string& file, const char* name) { return io::GgufFile(file).find(name)->format; };
  nn::DecoderLMOptions odd = gpt2_options();
  odd.ff = 80;  // rows that are no whole blocks
  save_gguf({drawn(odd), small_tokenizer()}, path, GgufFormat::q4_0);
  CHECK(format(path, "token_embd.weight") == GgufFormat::q8_0);
  CHECK(format(path, "position_embd.weight") == GgufFormat::f32);
  CHECK(format(path, "blk.0.attn_qkv.weight") == GgufFormat::q4_0);
  CHECK(format(path, "blk.0.attn_qkv.bias") == GgufFormat::f32);
  CHECK(format(path, "blk.0.ffn_down.weight") == GgufFormat::f16);
  CHECK(format(path, "output_norm.weight") == GgufFormat::f32);
  CHECK(io::GgufFile(path).metadata().at("general.file_type").integer(0) == 2);
  CHECK(largest(logits_of(load_gguf(path).model) - logits_of(drawn(odd))) < 10);
  save_gguf({drawn(llama_options()), small_tokenizer()}, path, GgufFormat::q4_0);
  CHECK(format(path, "token_embd.weight") == GgufFormat::q4_0);
  CHECK(format(path, "output.weight") == GgufFormat::q8_0);
  save_gguf({drawn(llama_options()), small_tokenizer()}, path, GgufFormat::bf16);
  CHECK(format(path, "output.weight") == GgufFormat::bf16);
  CHECK(io::GgufFile(path).metadata().at("general.file_type").integer(0) == 32);

  // Parts of a matrix that have different formats, as llama-quantize makes them, are dequantised together.
  save_gguf({drawn(llama_options()), small_tokenizer()}, path, GgufFormat::q8_0);
  const std::string mixed = directory / "mixed.gguf";
  rewrite(
      path, mixed, [](auto&) {},
      [](auto& entries) {
        for (auto& entry : entries)
          if (entry.name == "blk.0.attn_v.weight") entry.format = GgufFormat::f16;
      });
  const nn::DecoderLM read = load_gguf(mixed).model;
  CHECK(!read.blocks[0].attn.qkv->quantized.defined());
  CHECK(read.blocks[1].attn.qkv->quantized.defined());
  CHECK(largest(slice(read.blocks[0].attn.qkv->weight, 0, 96, 128)) == 0);
  CHECK(are_equal(slice(read.blocks[0].attn.qkv->weight, 0, 0, 96),
                  slice(dequantize(load_gguf(path).model.blocks[0].attn.qkv->quantized), 0, 0, 96)));
}

TEST_CASE("A tokenizer is read back from GGUF") {
  const TempDirectory directory;
  const std::string path = directory / "model.gguf";
  const nn::DecoderLM model = drawn(llama_options());
  const auto check = [&](const text::Tokenizer& tokenizer, const char* pre) {
    save_gguf({model, tokenizer, {1}, {0}, "{{ messages }}"}, path);
    const models::LanguageModel read = load_gguf(path);
    CHECK(io::GgufFile(path).metadata().at("tokenizer.ggml.pre").texts[0] == pre);
    CHECK(read.begin == std::vector<std::int64_t>{1});
    CHECK(read.ends == std::vector<std::int64_t>{0});
    CHECK(read.chat_template == "{{ messages }}");
    REQUIRE(read.tokenizer.vocab_size() == tokenizer.vocab_size());
    CHECK(read.tokenizer.merges() == tokenizer.merges());
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(tokenizer.vocab_size()); ++id)
      CHECK(read.tokenizer.id_to_token(id) == tokenizer.id_to_token(id));
    for (const char* text : {"the cats sat, 12345 terns\n\n  and <|end|> or <tool>!", "Ünï\tçødé 😶", ""})
      for (const bool special : {false, true})
        CHECK(read.tokenizer.encode(text, {.special_tokens = special}) == tokenizer.encode(text, {.special_tokens = special}));
    return read;
  };
  const text::Tokenizer plain = small_tokenizer();
  check(plain, "gpt-2");
  CHECK(io::GgufFile(path).metadata().at("tokenizer.ggml.tokens").texts[319] == "[PAD319]");
  CHECK(!io::GgufFile(path).metadata().at("tokenizer.ggml.add_bos_token").integer(0));
  // Words of Llama 3 and Qwen 2, added tokens of both kinds behind the vocabulary, and a template that begins with one of them.
  const auto edited = [&](std::size_t pattern, bool ignores_merges) {
    std::string json = plain.to_json();
    const auto replace = [&](const std::string& from, const std::string& to) { json.replace(json.find(from), from.size(), to); };
    const char* const expressions[] = {
        "",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)"};
    const std::size_t begin = json.find("\"pre_tokenizer\""), end = json.find("\"decoder\"");
    json.replace(
        begin, end - begin,
        R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")" +
            std::string(expressions[pattern]) +
            R"("}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
  "pair": [], "special_tokens": {}},
  )");
    replace("\"ignore_merges\": false", std::string("\"ignore_merges\": ") + (ignores_merges ? "true" : "false"));
    const std::string flags = R"("single_word": false, "lstrip": false, "rstrip": false, "normalized": false, )";
    replace("\"added_tokens\": [", R"("added_tokens": [{"id": 281, "content": "<|begin|>", )" + flags +
                                       R"("special": true}, {"id": 282, "content": "<tool>", )" + flags + R"("special": false},)");
    return text::Tokenizer::from_json(json, "edited");
  };
  check(edited(1, true), "llama-bpe");
  CHECK(io::GgufFile(path).metadata().at("tokenizer.ggml.add_bos_token").integer(0));
  save_gguf({model, edited(1, true)}, path);
  CHECK(load_gguf(path).begin == std::vector<std::int64_t>{281});
  CHECK(load_gguf(path).ends.empty());
  CHECK(load_gguf(path).chat_template.empty());
  check(edited(2, false), "qwen2");
  check_says(message_of([&] { save_gguf({model, edited(2, true)}, path); }), "[save_gguf] expected the words of GPT-2, Llama 3 or Qwen 2");
}

TEST_CASE("Models and tokenizers that GGUF does not take") {
  const TempDirectory directory;
  const std::string path = directory / "model.gguf";
  const text::Tokenizer tokenizer = small_tokenizer();
  const auto refused = [&](nn::DecoderLMOptions options, const std::string& part, const std::vector<std::int64_t>& ends = {}) {
    check_says(message_of([&] { save_gguf({drawn(options), tokenizer, {}, ends}, path); }), "[save_gguf] expected ");
    check_says(message_of([&] { save_gguf({drawn(options), tokenizer, {}, ends}, path); }), part);
    CHECK(directory.count() == 0);
  };
  nn::DecoderLMOptions o = gpt2_options();
  o.head_bias = true;
  refused(o, "head_bias = false");
  o = gpt2_options();
  o.activation = nn::Activation::relu;
  refused(o, "the activation that llama.cpp computes for such a model, but got relu");
  o = gpt2_options();
  o.vocab = 280;
  refused(o, "at most the model's 280 tokens but got 281");
  refused(gpt2_options(), "special tokens in [0, 320) but got 320", {320});
  nn::DecoderLM large = drawn(llama_options());
  copy_(large.head.weight.detach(), full({vocab, 64}, 1e6));
  check_says(message_of([&] { save_gguf({large, tokenizer}, path); }),
             "numbers that f16 holds but \"head.weight\" has larger ones: use f32");
  CHECK(directory.count() == 0);
}

TEST_CASE("GGUF files of other models are refused by name") {
  const TempDirectory directory;
  const std::string path = directory / "model.gguf", edited = directory / "edited.gguf";
  save_gguf({drawn(llama_options()), small_tokenizer()}, path, GgufFormat::f32);
  const auto refused = [&](const std::string& part, const std::function<void(io::GgufMetadata&)>& edit,
                           const std::function<void(std::vector<io::GgufEntry>&)>& edit_entries = {}) {
    rewrite(path, edited, edit, edit_entries);
    const std::string message = message_of([&] { load_gguf(edited); });
    check_says(message, part);
    CHECK(message.starts_with(edited + ": "));
  };
  const auto set = [](const char* key, const GgufValue& value) { return [=](io::GgufMetadata& metadata) { metadata[key] = value; }; };
  const auto number = [&](const char* key, std::uint32_t value) { return set(key, GgufValue::of(value)); };
  refused(
      "metadata \"general.architecture\": expected gpt2 or llama, the models that tern loads (for others io::GgufFile reads tensors by "
      "name), but got \"qwen2\"",
      set("general.architecture", GgufValue::of("qwen2")));
  refused("metadata \"general.architecture\": is missing", [](auto& metadata) { metadata.erase("general.architecture"); });
  refused("metadata \"llama.block_count\": is missing", [](auto& metadata) { metadata.erase("llama.block_count"); });
  refused("metadata \"llama.block_count\": expected an integer but got another type", set("llama.block_count", GgufValue::of("2")));
  refused("metadata \"llama.block_count\": expected an integer from 1 to 1073741824 but got 0", number("llama.block_count", 0));
  refused("expected tensors of 1000 layers", number("llama.block_count", 1000));
  refused("lacks tensor \"blk.2.attn_norm.weight\"", number("llama.block_count", 3));
  refused("has tensor \"blk.1.", number("llama.block_count", 1));
  refused("tensor \"blk.0.ffn_gate.weight\": expected shape (95, 64)", number("llama.feed_forward_length", 95));
  refused("metadata \"llama.expert_count\": expected 0", number("llama.expert_count", 8));
  refused("metadata \"llama.attention.head_count_kv\": expected a divisor of 4 heads but got 3",
          number("llama.attention.head_count_kv", 3));
  refused("metadata \"llama.rope.dimension_count\": expected the size of a head, 16", number("llama.rope.dimension_count", 8));
  refused("metadata \"llama.rope.scaling.type\": expected none or linear", set("llama.rope.scaling.type", GgufValue::of("yarn")));
  refused("metadata \"llama.attention.layer_norm_rms_epsilon\": is missing",
          [](auto& metadata) { metadata.erase("llama.attention.layer_norm_rms_epsilon"); });
  refused("metadata \"llama.rope.freq_base\": expected a number > 0 but got", set("llama.rope.freq_base", GgufValue::of(-1.0F)));
  refused("metadata \"llama.context_length\": expected at most 16777216 positions", number("llama.context_length", 1U << 25));
  refused(
      "lacks a matrix \"token_embd.weight\"", [](auto&) {},
      [](auto& entries) { std::erase_if(entries, [](const auto& e) { return e.name == "token_embd.weight"; }); });
  refused(
      "tensor \"rope_freqs.weight\": expected the factors of Llama 3's scaling", [](auto&) {},
      [](auto& entries) { entries.push_back({"rope_freqs.weight", GgufFormat::f32, {8}}); });
  refused("metadata \"tokenizer.ggml.model\": expected \"gpt2\", byte-level BPE, but got \"llama\"",
          set("tokenizer.ggml.model", GgufValue::of("llama")));
  refused("metadata \"tokenizer.ggml.pre\": expected gpt-2, llama-bpe or qwen2", set("tokenizer.ggml.pre", GgufValue::of("deepseek-llm")));
  refused("metadata \"tokenizer.ggml.merges\": is missing", [](auto& metadata) { metadata.erase("tokenizer.ggml.merges"); });
  refused("metadata \"tokenizer.ggml.token_type\": expected 320 types",
          set("tokenizer.ggml.token_type", GgufValue::list(std::vector<std::int32_t>{1})));
  refused("expected 1, 3, 4 or 5", set("tokenizer.ggml.token_type", GgufValue::list(std::vector<std::int32_t>(vocab, 6))));
  refused("expected merge 0 to be two tokens", set("tokenizer.ggml.merges", GgufValue::list(std::vector<std::string>{"ab"})));
  const std::string scaled = directory / "scaled.gguf";
  save_gguf({drawn(wide_llama_options()), small_tokenizer()}, scaled);
  rewrite(scaled, edited, set("tern.rope.low_turns", GgufValue::of(0.6F)));
  check_says(message_of([&] { load_gguf(edited); }),
             "tensor \"rope_freqs.weight\": expected the factors of Llama 3's scaling but got others");
  CHECK(load_gguf(path, {.length = 10}).model.options.length == 10);
  check_says(message_of([&] { load_gguf(path, {.length = -1}); }), "[load_gguf] expected a length >= 0 but got -1");
  check_says(message_of([&] { load_gguf(path, {.dtype = DType::i32}); }), "[load_gguf] expected a floating dtype but got i32");
  nn::DecoderLM large = drawn(llama_options());
  copy_(large.head.weight.detach(), full({vocab, 64}, 1e6));
  save_gguf({large, small_tokenizer()}, edited, GgufFormat::f32);
  check_says(message_of([&] { load_gguf(edited, {.dtype = DType::f16}); }), "tensor \"output.weight\": expected numbers that f16 holds");
  save_gguf({drawn(gpt2_options()), small_tokenizer()}, path, GgufFormat::q8_0);
  check_says(message_of([&] { load_gguf(path, {.length = 10}); }), "[load_gguf] expected length 0 or 48");
  std::string bytes = slurp(path);
  const io::GgufFile file(path);
  bytes.replace(file.find("blk.1.attn_qkv.weight")->begin, 2, "\x00\x7e", 2);
  spill(edited, bytes);
  check_says(message_of([&] { load_gguf(edited); }), "expected finite scales of blocks but \"blocks.1.attn.qkv.weight\" has others");
}

TEST_CASE("Files for other readers") {
  const char* const out = std::getenv("TERN_GGUF_OUT");  // scripts/gguf-readers.py sets it
  const TempDirectory own;
  const fs::path directory = out ? fs::path(out) : own.path();
  spill(directory / "tokenizer.json", small_tokenizer().to_json());
  for (const auto& [name, options] : shapes) {
    const nn::DecoderLM model = drawn(options);
    std::vector<NamedTensor> expected = {{"ids", test_ids()}, {"f32", logits_of(model)}};
    for (const GgufFormat format : {GgufFormat::f32, GgufFormat::f16, GgufFormat::q8_0, GgufFormat::q4_0}) {
      const std::string path = directory / (name + '.' + io::name(format) + ".gguf");
      save_gguf({model, small_tokenizer(), {0}, {0}}, path, format);
      if (format != GgufFormat::f32) expected.push_back({io::name(format), logits_of(load_gguf(path).model)});
    }
    models::save_hugging_face(model, directory / name);
    io::save_safetensors(directory / (name + ".safetensors"), expected);
  }
  CHECK(fs::exists(directory / "llama_wide.q4_0.gguf"));
}
