#include "translate/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/model.h"
#include "io/file_error.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/printable.h"

namespace tern::translate {

std::vector<std::string> Translator::translate(std::span<const std::string> lines, std::size_t batch_size, std::size_t* truncated) const {
  std::vector<std::string> result(lines.size());
  std::vector<nn::TokenIds> prompts;
  std::vector<std::size_t> rows;
  const auto room = static_cast<std::size_t>(source_room());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::int32_t> ids = tokenizer.encode(lines[i]);
    if (ids.empty()) continue;
    if (ids.size() > room) {
      ids.resize(room);
      if (truncated) ++*truncated;
    }
    ids.push_back(eos_src());
    prompts.emplace_back(ids.begin(), ids.end());
    rows.push_back(i);
  }
  const nn::PromptOptions room_and_positions{
      .max_length = options.length, .is_prefix_visible = options.prefix_lm, .reset_position = reset_position(options)};
  const train::PrecisionScope scope(precision(options));
  const auto outputs = nn::generate(model, prompts, room_and_positions, {.eos = eos_tgt(), .has_scores = false}, batch_size);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // A model may put out any byte: an end of line would shift all lines after it, an escape speaks to the terminal.
    const std::string text =
        text::without_controls(tokenizer.decode(std::vector<std::int32_t>(outputs[i][0].tokens.begin(), outputs[i][0].tokens.end())));
    const std::size_t first = text.find_first_not_of(' ');
    result[rows[i]] = first == std::string::npos ? "" : text.substr(first);
  }
  return result;
}

/// config.json says how much memory the model takes; it gets no more than its file can fill, with 16 bits an element.
static void require_size(const io::RunDirectory& run, const nn::DecoderLMOptions& shape) {
  std::error_code error;
  const auto bytes = static_cast<double>(std::filesystem::file_size(run.model(), error));
  const double elements = apps::matrix_elements(shape);
  if (!error && bytes < 2 * elements)
    throw io::FileError(fmt::format("{}: does not fit the model in {}: {:.3g} elements do not fit in {:.0f} bytes", run.model().string(),
                                    run.config().filename().string(), elements, bytes));
}

Translator Translator::load(const std::filesystem::path& run, Device device) {
  const io::RunDirectory directory = io::RunDirectory::open(run);
  directory.require_whole();
  Options options = from_json(directory.read_config(), directory.config());
  text::Tokenizer tokenizer = text::Tokenizer::load(directory.tokenizer());
  for (const std::string& token : {end_token(options.src), end_token(options.tgt), pad_token})
    if (!tokenizer.token_to_id(token))
      throw io::FileError(fmt::format("{}: expected a special token {}", directory.tokenizer().string(), token));
  const nn::DecoderLMOptions shape = model_options(options, static_cast<std::int64_t>(tokenizer.vocab_size()), device);
  require_size(directory, shape);
  nn::DecoderLM model(shape);
  const std::vector<NamedTensor> parameters = nn::named_parameters(model);
  {
    const NoGrad unrecorded;
    io::load_safetensors_into(directory.model(), parameters);
    for (const NamedTensor& parameter : parameters)
      if (std::isnan(sum(parameter.tensor * 0.0).item<double>()))
        throw io::FileError(fmt::format("{}: tensor \"{}\" holds values that are not finite", directory.model().string(), parameter.name));
  }
  nn::set_requires_grad(model, false);  // no memory for gradients
  train::set_precision(model, precision(options));
  model.eval();
  return {std::move(options), std::move(tokenizer), std::move(model), device, directory.is_finished()};
}

}  // namespace tern::translate
