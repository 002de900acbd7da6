// decode shows a model its input as the training did: what config.json says of the prefix and of positions, beside a decoder written out
// here.
#include <set>

#include "reference.h"
#include "text/bpe.h"
#include "text/printable.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

constexpr std::int64_t length = 40;  // of train() in support.h

/// The most probable token after all those before it, until the target's end, without a batch.
std::string translated(const nn::DecoderLM& model, const text::Tokenizer& tokenizer, const std::string& line, bool prefix_lm,
                       bool restart_positions) {
  const NoGrad unrecorded;
  std::vector<std::int64_t> ids, positions;
  for (std::int32_t id : tokenizer.encode(line)) ids.push_back(id);
  ids.push_back(tokenizer.token_to_id("<eos_de>").value());
  const auto prefix = static_cast<std::int64_t>(ids.size());
  for (std::int64_t column = 0; column < length; ++column)
    positions.push_back(!restart_positions || column < prefix ? column : std::min(length / 2 + column - prefix, length - 1));
  AttentionMask mask{.causal = true};
  if (prefix_lm) mask.prefix = Tensor::from(std::vector<std::int64_t>{prefix}, {1});
  std::vector<std::int32_t> target;
  for (auto count = prefix; count < length; ++count) {
    const Tensor at = Tensor::from(std::vector<std::int64_t>(positions.begin(), positions.begin() + count), {1, count});
    const std::vector<float> logits = contiguous(model.forward(Tensor::from(ids, {1, count}), mask, at)).to_vector<float>();
    const auto last = logits.end() - static_cast<std::int64_t>(tokenizer.vocab_size());
    ids.push_back(std::max_element(last, logits.end()) - last);
    if (ids.back() == tokenizer.token_to_id("<eos_en>")) break;
    target.push_back(static_cast<std::int32_t>(ids.back()));
  }
  const std::string text = text::without_controls(tokenizer.decode(target));
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

}  // namespace

TEST_CASE("decode takes the prefix and the positions that config.json has") {
  const TempDirectory directory;
  const fs::path data = directory / "data", path = directory / "run";
  write_corpus(data);
  // With one layer nothing that a target sees depends on what the source tokens saw.
  const Arguments more{"--layers", "2",    "--updates",    "60", "--epochs", "60",  "--batch-size",       "16",
                       "--lr",     "0.02", "--bleu-every", "0",  "--device", "cpu", "--use-fused-kernel", "False"};
  REQUIRE(run(translate, train(data, path, more)).code == 0);
  without_digests(path);
  const text::Tokenizer tokenizer = text::Tokenizer::load(path / "tokenizer.json");
  nn::DecoderLM model(
      {.vocab = static_cast<std::int64_t>(tokenizer.vocab_size()), .length = length, .width = 16, .layers = 2, .heads = 2, .ff = 16});
  {
    const NoGrad unrecorded;
    io::load_safetensors_into(path / "model.safetensors", nn::named_parameters(model));
  }
  model.eval();
  std::vector<std::string> lines;
  std::istringstream input(slurp(data / "test.de"));
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  REQUIRE(lines.size() == 12);

  std::set<std::string> outputs;
  Json config = Json::parse(slurp(path / "config.json"));
  for (const bool prefix_lm : {true, false})
    for (const bool restart_positions : {true, false}) {
      INFO("prefix_lm " << prefix_lm << ", restart_positions " << restart_positions);
      config["prefix_lm"] = prefix_lm;
      config["restart_positions"] = restart_positions;
      spill(path / "config.json", config.dump());
      std::string wanted;
      for (const std::string& line : lines) wanted += translated(model, tokenizer, line, prefix_lm, restart_positions) + "\n";
      const Result decoded = run(translate, {"decode", "--model", path.string(), "--device", "cpu"}, slurp(data / "test.de"));
      CHECK(decoded.code == 0);
      CHECK(decoded.out == wanted);
      outputs.insert(wanted);
    }
  CHECK(outputs.size() == 4);  // each shows in the text
}
