#include "translate/translator.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/file_error.h"
#include "io/run_directory.h"
#include "io/safetensors.h"

namespace tern::translate {

std::vector<std::string> Translator::translate(std::span<const std::string> lines, std::size_t batch_size, std::size_t* truncated) const {
  std::vector<std::string> result(lines.size());
  std::vector<nn::TokenIds> prompts;
  std::vector<std::size_t> places;
  // Room for the end of the source and one token of the target at least.
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(options.length - 2, 1));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::int32_t> ids = tokenizer.encode(lines[i]);
    if (ids.empty()) continue;
    if (ids.size() > room) {
      ids.resize(room);
      if (truncated) ++*truncated;
    }
    ids.push_back(eos_src());
    prompts.emplace_back(ids.begin(), ids.end());
    places.push_back(i);
  }
  const nn::GreedyOptions greedy{.eos = eos_tgt(), .pad = pad(), .max_length = options.length, .batch_size = batch_size,
                                 .is_prefix_visible = options.prefix_lm};
  const std::vector<nn::TokenIds> outputs = nn::greedy(model, prompts, greedy);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string text = tokenizer.decode(std::vector<std::int32_t>(outputs[i].begin(), outputs[i].end()));
    // A decoded byte may be any character; one that ends a line would shift all lines after it.
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::replace(text.begin(), text.end(), '\r', ' ');
    const std::size_t first = text.find_first_not_of(' ');
    result[places[i]] = first == std::string::npos ? "" : text.substr(first);
  }
  return result;
}

Translator Translator::load(const std::filesystem::path& run, Device device) {
  const io::RunDirectory directory = io::RunDirectory::open(run);
  const io::JsonObject config = directory.read_config();
  Options options = from_json(config);
  text::Tokenizer tokenizer = text::Tokenizer::load(directory.tokenizer());
  for (const std::string& token : {end_token(options.src), end_token(options.tgt), pad_token})
    if (!tokenizer.token_to_id(token))
      throw io::FileError(fmt::format("{}: expected a special token {}", directory.tokenizer().string(), token));
  nn::DecoderLM model(model_options(options, static_cast<std::int64_t>(tokenizer.vocab_size()), device));
  std::vector<io::NamedTensor> targets;
  for (const nn::NamedTensor& parameter : nn::named_parameters(model)) targets.emplace_back(parameter.name, parameter.tensor);
  {
    const NoGrad unrecorded;
    io::load_safetensors_into(directory.model(), targets);
  }
  model.eval();
  return {std::move(options), std::move(tokenizer), std::move(model), device};
}

}  // namespace tern::translate
