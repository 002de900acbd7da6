#include "translate/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file_error.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/printable.h"

namespace tern::translate {

/// The most probable next token until the end, batch after batch.
static std::vector<nn::TokenIds> greedy(const nn::EncoderDecoder& model, const std::vector<nn::TokenIds>& sources, std::size_t batch_size,
                                        std::int64_t begin, std::int64_t end, std::int64_t pad) {
  const NoGrad unrecorded;
  const Device device = model.head.weight.device();
  std::vector<nn::TokenIds> result(sources.size());
  for (std::size_t first = 0; first < sources.size(); first += batch_size) {
    const std::size_t rows = std::min(batch_size, sources.size() - first);
    std::size_t columns = 0;
    nn::TokenIds ids, lengths;
    for (std::size_t row = 0; row < rows; ++row) columns = std::max(columns, sources[first + row].size());
    for (std::size_t row = 0; row < rows; ++row) {
      const nn::TokenIds& source = sources[first + row];
      ids.insert(ids.end(), source.begin(), source.end());
      ids.resize((row + 1) * columns, pad);
      lengths.push_back(static_cast<std::int64_t>(source.size()));
    }
    const auto count = static_cast<std::int64_t>(rows);
    const nn::Memory memory =
        model.encode(Tensor::from(ids, {count, static_cast<std::int64_t>(columns)}, device), Tensor::from(lengths, {count}, device));
    nn::KvCache cache = model.cache(count, model.options.length);
    nn::TokenIds last(rows, begin);
    std::vector<bool> is_done(rows);
    for (std::int64_t step = 0; step < model.options.length && std::count(is_done.begin(), is_done.end(), false) > 0; ++step) {
      const Tensor logits = model.head.forward(model.hidden(Tensor::from(last, {count, 1}, device), memory, &cache));
      last = argmax(logits).to_vector<std::int64_t>();
      for (std::size_t row = 0; row < rows; ++row) {
        is_done[row] = is_done[row] || last[row] == end;
        if (!is_done[row]) result[first + row].push_back(last[row]);
      }
    }
  }
  return result;
}

static std::vector<nn::TokenIds> greedy(const Translator& translator, const std::vector<nn::TokenIds>& prompts, std::size_t batch_size) {
  const Options& options = translator.options;
  if (!translator.model.lm)
    return greedy(*translator.model.encoder_decoder, prompts, batch_size, translator.eos_src(), translator.eos_tgt(), translator.pad());
  const nn::GreedyOptions greedy{.eos = translator.eos_tgt(),
                                 .pad = translator.pad(),
                                 .max_length = options.length,
                                 .batch_size = batch_size,
                                 .is_prefix_visible = options.prefix_lm,
                                 .reset_position = reset_position(options)};
  return nn::greedy(*translator.model.lm, prompts, greedy);
}

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
  const train::PrecisionScope scope(precision(options));
  const std::vector<nn::TokenIds> outputs = greedy(*this, prompts, batch_size);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // A model may put out any byte: an end of line would shift all lines after it, an escape speaks to the terminal.
    const std::string text = text::without_controls(tokenizer.decode(std::vector<std::int32_t>(outputs[i].begin(), outputs[i].end())));
    const std::size_t first = text.find_first_not_of(' ');
    result[rows[i]] = first == std::string::npos ? "" : text.substr(first);
  }
  return result;
}

/// config.json says how much memory the model takes; it gets no more than its file can fill, with 16 bits an element.
static void require_size(const io::RunDirectory& run, const Options& options, std::int64_t vocab) {
  std::error_code error;
  const auto bytes = static_cast<double>(std::filesystem::file_size(run.model(), error));
  const double elements = matrix_elements(options, vocab);
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
  const auto vocab = static_cast<std::int64_t>(tokenizer.vocab_size());
  require_size(directory, options, vocab);
  TranslationModel model(options, vocab, device);
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
