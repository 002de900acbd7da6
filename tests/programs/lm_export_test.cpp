// tern-lm export: what it writes is what it read, in each format.
#include "io/files.h"
#include "io/gguf.h"
#include "models/gguf.h"
#include "models/hugging_face.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "support.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

text::Tokenizer small_tokenizer() {
  return text::Tokenizer::train(std::vector<std::string>(3, "the cat sat on the mat"), {.vocab_size = 270, .special_tokens = {"<|end|>"}});
}

/// A model in Hugging Face's format, with a tokenizer and a chat template.
nn::DecoderLM write_model(const fs::path& directory) {
  manual_seed(3);
  nn::DecoderLM model({.vocab = 272,
                       .length = 32,
                       .width = 32,
                       .layers = 1,
                       .heads = 2,
                       .ff = 64,
                       .dropout = 0,
                       .activation = nn::Activation::silu,
                       .gated = true,
                       .bias = false,
                       .norm = nn::NormKind::rms,
                       .positions = nn::Positions::rotary,
                       .rope_pairs = RopePairs::halves,
                       .head_bias = false});
  models::save_language_model({model, small_tokenizer(), {1}, {0, 2}, "{{ messages }}"}, directory);
  return model;
}

Tensor logits_of(const nn::DecoderLM& model) {
  const NoGrad unrecorded;
  return model.forward(arange(20, DType::i64).reshape({1, 20}));
}
bool are_equal(const Tensor& a, const Tensor& b) { return !any(ne(a, b)).item<bool>(); }

}  // namespace

TEST_CASE("tern-lm export --format --out") {
  const TempDirectory directory;
  const std::string source = directory / "source", file = directory / "model.gguf", copy = directory / "copy";
  const nn::DecoderLM model = write_model(source);
  for (const char* format : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    INFO(format);
    CHECK(contains(done(run(lm_program, {"export", source, "--out", file, "--format", format})).out,
                   std::string("model.gguf: GGUF, ") + format));
    CHECK(std::string(io::name(io::GgufFile(file).find("blk.0.ffn_up.weight")->format)) == format);
    const models::LanguageModel read = models::load_gguf(file);
    CHECK(read.begin == std::vector<std::int64_t>{1});
    CHECK(read.ends == std::vector<std::int64_t>{0});
    CHECK(read.chat_template == "{{ messages }}");
    if (std::string(format) == "f32") CHECK(are_equal(logits_of(read.model), logits_of(model)));
  }
  // A file of blocks again: the blocks are the same, and as a directory their values.
  done(run(lm_program, {"export", file, "--out", directory / "again.gguf", "--format", "q4_0"}));
  CHECK(slurp(file) == slurp(directory / "again.gguf"));
  CHECK(contains(done(run(lm_program, {"export", file, "--out", copy})).out, "copy: a model in Hugging Face's format"));
  CHECK(are_equal(logits_of(models::load_hugging_face(copy)), logits_of(models::load_gguf(file, {.dequantizes = true}).model)));
  CHECK(slurp(fs::path(copy) / "tokenizer.json") == small_tokenizer().to_json());
  const Json tokenizer = Json::parse(slurp(fs::path(copy) / "tokenizer_config.json"));
  CHECK(tokenizer["eos_token"] == "<|end|>");
  CHECK(tokenizer["bos_token"] == "!");
  CHECK(tokenizer["chat_template"] == "{{ messages }}");
  CHECK(tokenizer["model_max_length"] == 32);
  const Json config = Json::parse(slurp(fs::path(copy) / "config.json"));
  CHECK(config["bos_token_id"] == 1);
  CHECK(config["eos_token_id"] == 0);
  // The default is f16 for a file, and a model of the same kind is replaced.
  done(run(lm_program, {"export", source, "--out", file}));
  CHECK(io::GgufFile(file).find("blk.0.ffn_up.weight")->format == io::GgufFormat::f16);
  done(run(lm_program, {"export", source, "--out", copy}));
  CHECK(are_equal(logits_of(models::load_hugging_face(copy)), logits_of(model)));
  CHECK(Json::parse(slurp(fs::path(copy) / "config.json"))["eos_token_id"] == Json({0, 2}));
  CHECK(directory.count() == 4);
}

TEST_CASE("tern-lm export replaces no other files") {
  const TempDirectory directory;
  const std::string source = directory / "source", other = directory / "other";
  write_model(source);
  spill(other, "text");
  const auto refused = [&](const Arguments& arguments, const std::string& part) {
    check_refused(run(lm_program, with({"export"}, arguments)), part, "tern-lm");
  };
  refused({source, "--out", other, "--format", "f16"}, "other: expected a new file or a GGUF file but got another one");
  refused({source, "--out", source, "--format", "f16"}, "source: expected a new file or a GGUF file but got another one");
  refused({source, "--out", other}, "other: expected a new directory or a model in Hugging Face's format but got another file");
  refused({source, "--out", directory.path().string()}, "but got another directory");
  fs::create_directory(directory / "run");
  spill(directory / "run" / "config.json", R"({"tern_run": 1})");
  refused({source, "--out", directory / "run"},
          "run: expected a new directory or a model in Hugging Face's format but got another directory");
  refused({source, "--out", directory / "new.gguf", "--format", "q5_0"}, "q5_0");
  refused({other, "--out", directory / "new"},
          "other: expected a run of tern-lm, a directory in Hugging Face's format or a file .gguf but got another file");
  refused({directory / "none", "--out", directory / "new"}, "but got no such path");
  spill(directory / "bad.gguf", "GGUF");
  refused({directory / "bad.gguf", "--out", directory / "new"}, "bad.gguf: expected a GGUF file of at least 24 bytes but got 4");
  CHECK(slurp(other) == "text");
  CHECK(directory.count() == 4);
}
