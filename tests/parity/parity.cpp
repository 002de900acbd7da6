// The results of tern for scripts/parity.py, which sets it beside what the reference packages compute.
//   tern-parity bpe VOCAB TOKENIZER.json IDS.jsonl FILE...   trains on the lines of the first two files; the ids of every line
//   tern-parity scores CASES.json                            [{hyps, refs, lowercase}...] -> [[BLEU, chrF]...] on the standard output
//   tern-parity model MODEL.safetensors BATCH.safetensors OUT.safetensors    the classic model's logits, loss and gradients
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "text/metrics.h"

using namespace tern;
using Json = nlohmann::json;

static void bpe(const std::vector<std::string>& arguments) {
  std::vector<std::string> lines;
  std::size_t trained = 0;
  for (std::size_t i = 3; i < arguments.size(); ++i) {
    for (std::string& line : text::read_lines(arguments[i])) lines.push_back(std::move(line));
    if (i <= 4) trained = lines.size();
  }
  text::TrainOptions options;
  options.vocab_size = std::stoul(arguments[0]);
  options.special_tokens = {"<eos_de>", "<eos_en>", "<pad>"};
  const text::Tokenizer tokenizer = text::Tokenizer::train(std::span(lines).first(trained), options);
  io::write_file_atomically(arguments[1], tokenizer.to_json());
  std::ofstream ids(arguments[2]);
  for (const std::string& line : lines) ids << fmt::format("[{}]\n", fmt::join(tokenizer.encode(line), ","));
}

static void scores(const std::vector<std::string>& arguments) {
  Json result = Json::array();
  for (const Json& one : Json::parse(io::read_file(arguments[0]))) {
    const auto hypotheses = one["hyps"].get<std::vector<std::string>>(), references = one["refs"].get<std::vector<std::string>>();
    const bool lowercase = one["lowercase"];
    result.push_back({text::bleu(hypotheses, references, {lowercase}).score, text::chrf(hypotheses, references, {lowercase}).score});
  }
  std::cout << result.dump() << '\n';
}

static void model(const std::vector<std::string>& arguments) {
  nn::DecoderLM model({.dropout = 0});
  const std::vector<NamedTensor> parameters = nn::named_parameters(model);
  {
    const NoGrad unrecorded;
    io::load_safetensors_into(arguments[0], parameters);
  }
  const io::TensorFile batch = io::load_safetensors(arguments[1]);
  const Tensor logits = model.forward(batch.tensors.at("ids"));
  const Tensor loss = cross_entropy(logits, batch.tensors.at("labels"));
  loss.backward();
  std::vector<NamedTensor> result = {{"logits", logits.detach()}, {"loss", loss.detach()}};
  for (const NamedTensor& parameter : parameters) result.push_back({"gradient." + parameter.name, parameter.tensor.grad()});
  io::save_safetensors(arguments[2], result);
}

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  try {
    if (kind == "bpe" && arguments.size() > 3) bpe(arguments);
    else if (kind == "scores" && arguments.size() == 1) scores(arguments);
    else if (kind == "model" && arguments.size() == 3) model(arguments);
    else throw std::invalid_argument("expected bpe, scores or model with their files");
  } catch (const std::exception& error) {
    std::cerr << "tern-parity: " << error.what() << '\n';
    return 2;
  }
}
