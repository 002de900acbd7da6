#include "lm/writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/training_settings.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "tensor/sizes.h"
#include "trainer/terminal.h"

namespace tern::lm {

void add_read_options(CLI::App& command, ReadOptions& options) {
  command.add_option("model", options.model, "run of tern-lm, directory in Hugging Face's format, or GGUF file")
      ->required()
      ->type_name("MODEL");
  apps::add_value(command, "--precision", options.precision, "of the weights and their products", apps::one_of(apps::precision_names),
                  "NAME");
  apps::add_processor_options(command, options);
}

LanguageModel load(const ReadOptions& options) {
  const Device device = apps::use(options);
  const train::Precision precision = train::precision_of(options.precision).value();
  apps::require_precision(precision, device);
  LanguageModel result = load(options.model, {.device = device});
  train::set_precision(result.model, precision);
  return result;
}

void add_write_options(CLI::App& command, WriteOptions& options) {
  add_read_options(command, options);
  apps::add_value(command, "--tokens", options.tokens, "most tokens of a text", apps::positive_count(), "N");
  apps::add_value(command, "--repetition", options.repetition, "penalty of tokens that the text has, above 1; 1 for none",
                  apps::real_number(1e-3, 1e3), "X");
  apps::add_sampling_options(command, options);
}

nn::TokenIds joined(nn::TokenIds tokens, const std::vector<std::int32_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::string write(const LanguageModel& model, nn::TokenIds tokens, const WriteOptions& options, const Ending& ending, std::int64_t number) {
  const std::int64_t length = model.model.options.length;
  const Device device = model.model.tokens.device();
  const train::PrecisionScope scope(train::precision_of(options.precision).value());
  nn::DecodingGraphs graphs;
  text::IncrementalDecoder decoder(model.tokenizer, ending.stop);
  std::string written;
  bool has_ended = false;
  const auto add = [&](std::string text) {
    if (ending.is_answer && written.empty()) text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    written += text;
    has_ended = !apps::show_text(text) || has_ended || decoder.has_ended();
  };
  std::int64_t left = options.tokens;
  nn::GenerateOptions generation{.eos = -1, .has_scores = false, .repetition_penalty = options.repetition};
  apps::set_sampling(generation, options);
  generation.stop = [&](const Tensor& fresh) {
    const auto id = slice(fresh, 1, fresh.size(1) - 1, fresh.size(1)).item<std::int64_t>();
    tokens.push_back(id);
    --left;
    if (std::find(ending.ends.begin(), ending.ends.end(), id) != ending.ends.end()) has_ended = true;
    // A model may have more ids than its tokenizer, so that their number is a round one.
    else if (id < static_cast<std::int64_t>(model.tokenizer.vocab_size())) add(decoder.add(static_cast<std::int32_t>(id)));
    return full({1}, has_ended || train::stop_signal() != 0 ? 1 : 0, DType::boolean, device);
  };
  for (std::int64_t round = 0; left > 0 && !has_ended && train::stop_signal() == 0; ++round) {
    if (static_cast<std::int64_t>(tokens.size()) >= length) {
      if (ending.is_answer) break;
      tokens.erase(tokens.begin(), tokens.end() - std::max<std::int64_t>(length / 2, 1));
    }
    generation.max_new_tokens = left;
    generation.first_number = number + (round << 32);
    const std::int64_t needed = std::min(length, round_up(static_cast<std::int64_t>(tokens.size()) + left, 256));
    nn::generate(model.model, {tokens}, {.max_length = needed, .graphs = &graphs}, generation);
  }
  add(decoder.end());
  return written;
}

}  // namespace tern::lm
