#include "translate/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/training_settings.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "nn/layers.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/fields.h"
#include "text/unicode.h"
#include "train/step.h"
#include "translate/batches.h"

namespace tern::translate {

TranslationModel::TranslationModel(const Options& options, std::int64_t vocab, Device device) : options_(options) {
  if (is_encoder_decoder(options)) encoder_decoder.emplace(encoder_decoder_options(options, vocab, device));
  else lm.emplace(model_options(options, vocab, device));
}

void TranslationModel::visit(nn::Visitor& v) {
  // Registered without a name of its own, so that paths do not get a prefix.
  if (lm) v.walk(*lm);
  if (encoder_decoder) v.walk(*encoder_decoder);
}

AttentionMask TranslationModel::mask(const Tensor& prefix) const {
  AttentionMask result{.causal = true};
  if (options_.prefix_lm) result.prefix = prefix;
  return result;
}

Tensor TranslationModel::position_ids(const Tensor& prefix, std::int64_t columns) const {
  if (!options_.restart_positions) return {};
  return nn::reset_position_ids(prefix, columns, reset_position(options_), options_.length - 1);
}

Tensor TranslationModel::loss(Batch batch, const LossOptions& options) const {
  if (options.r_drop > 0)
    for_each_tensor(batch, [](Tensor& each) {
      if (each.defined()) each = repeat(each, 2, 0);
    });
  const auto& [ids, labels, weights, lengths, sources] = batch;
  const CrossEntropyOptions entropy{.token_weights = weights, .label_smoothing = options.label_smoothing, .reduction = options.reduction};
  if (lm) {
    const AttentionMask visible = mask(lengths);
    const Tensor positions = position_ids(lengths, ids.size(1));
    if (options.r_drop > 0) return train::r_drop_loss(lm->forward(ids, visible, positions), labels, options.r_drop, entropy);
    return lm->loss(ids, labels, entropy, visible, positions);
  }
  const nn::EncoderDecoder& model = *encoder_decoder;
  if (options.r_drop > 0) return train::r_drop_loss(model.forward(sources, lengths, ids), labels, options.r_drop, entropy);
  return model.loss(sources, lengths, ids, labels, entropy);
}

std::int64_t count_parameters(const Options& options, std::int64_t vocab) {
  return is_encoder_decoder(options) ? apps::count_parameters(encoder_decoder_options(options, vocab, cpu))
                                     : apps::count_parameters(model_options(options, vocab, cpu));
}

nn::TokenIds Translator::source_tokens(const std::string& line, std::int64_t room, bool& is_cut) const {
  std::vector<std::int32_t> ids = line_tokens(tokenizer, line);
  if (ids.empty()) return {};
  is_cut = ids.size() > static_cast<std::size_t>(room);
  if (is_cut) ids.resize(static_cast<std::size_t>(room));
  ids.push_back(eos_src());
  return {ids.begin(), ids.end()};
}

std::string Translator::text_of(const nn::TokenIds& tokens) const {
  // A model may generate any byte: a line end would shift all later lines, an escape sequence would control the terminal.
  const std::string text = text::without_controls(tokenizer.decode(std::vector<std::int32_t>(tokens.begin(), tokens.end())));
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first);
}

nn::Continuation Translator::read(const std::vector<nn::TokenIds>& sources) const {
  if (!model.lm)
    return nn::read_sources(*model.encoder_decoder, sources, {.start = eos_src(), .max_length = options.length, .graphs = graphs.get()});
  return nn::read_prompts(*model.lm, sources,
                          {.max_length = options.length,
                           .is_prefix_visible = options.prefix_lm,
                           .reset_position = reset_position(options),
                           .graphs = graphs.get()});
}

std::vector<std::vector<Translation>> translate(std::span<const Translator> models, std::span<const std::string> lines,
                                                nn::GenerateOptions options, std::size_t batch_size, std::size_t* truncated) {
  const Translator& first = models.front();
  std::vector<std::vector<Translation>> result(lines.size(), {Translation{}});
  std::vector<nn::TokenIds> sources;
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> lengths;
  std::int64_t room = first.source_room();
  for (const Translator& model : models) room = std::min(room, model.source_room());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    bool is_cut = false;
    sources.push_back(first.source_tokens(lines[i], room, is_cut));
    if (is_cut && truncated) ++*truncated;
    if (sources.back().empty()) {
      sources.pop_back();
      continue;
    }
    rows.push_back(i);
    lengths.push_back(static_cast<std::int64_t>(sources.back().size()));
  }
  const auto read = [&](const std::vector<std::size_t>& picks) {
    std::vector<nn::TokenIds> batch;
    for (std::size_t pick : picks) batch.push_back(sources[pick]);
    std::vector<nn::Continuation> parts;
    for (const Translator& model : models) parts.push_back(model.read(batch));
    nn::Continuation text = parts.size() == 1 ? std::move(parts.front()) : nn::ensemble(std::move(parts));
    // Sampling depends on a row's number, which is that of its line, empty lines included.
    for (std::size_t pick : picks) text.numbers.push_back(static_cast<std::int64_t>(rows[pick]));
    return text;
  };
  options.eos = first.eos_tgt();
  const train::PrecisionScope scope(precision(first.options));
  const auto outputs = nn::generate_in_batches(lengths, read, options, batch_size, first.device == cpu && !options.stop);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    result[rows[i]].clear();
    for (const nn::Hypothesis& hypothesis : outputs[i])
      result[rows[i]].push_back({first.text_of(hypothesis.tokens), hypothesis.score, hypothesis.tokens.size()});
  }
  return result;
}

nn::GenerateOptions beam_search(std::int64_t beam, double length_penalty) {
  nn::GenerateOptions options{.length_penalty = length_penalty, .beam = beam};
  if (beam > 1) options.search = nn::Search::beam;
  return options;
}

/// Throws FileError if the model of config.json is larger than its file, at 16 bits an element or those of a quantised weight, before
/// memory is allocated for a model that a damaged config.json describes. (Quantised weights replace float32 weights, of four bytes an
/// element.)
static void require_size(const io::RunDirectory& run, const Options& options, std::int64_t vocab) {
  const std::optional<QuantFormat> format = options.quantization;
  const double element = !format ? 2 : has_blocks(*format) ? static_cast<double>(block_bytes(*format)) / quant_block : 1;
  apps::require_weights(run, count_parameters(options, vocab), element);
}

Translator Translator::load(const std::filesystem::path& run, Device device, const std::string& precision_name) {
  const io::RunDirectory directory = io::RunDirectory::open(run);
  directory.require_whole();
  Options options = from_json(directory.read_config(), directory.config());
  if (!precision_name.empty()) options.precision = precision_name;
  text::Tokenizer tokenizer = text::Tokenizer::load(directory.tokenizer());
  for (const std::string& token : {end_token(options.src), end_token(options.tgt), pad_token})
    if (!tokenizer.token_to_id(token)) throw io::FileError(fmt::format("{}: expected a special token {}", directory.tokenizer(), token));
  const auto vocab = static_cast<std::int64_t>(tokenizer.vocab_size());
  require_size(directory, options, vocab);
  TranslationModel model(options, vocab, device);
  if (options.quantization) nn::make_quantized(model, *options.quantization);
  const std::vector<NamedTensor> parameters = nn::named_parameters(model);
  {
    const NoGrad unrecorded;
    std::vector<NamedTensor> tensors = parameters;
    for (NamedTensor& buffer : nn::named_buffers(model)) tensors.push_back(std::move(buffer));
    io::load_safetensors_into(directory.model(), tensors);
    if (const std::string path = nn::find_bad_scale(model); !path.empty())
      throw io::FileError(fmt::format("{}: tensor \"{}\" holds scales that are not finite", directory.model(), path));
    for (const NamedTensor& parameter : parameters)
      if (std::isnan(sum(parameter.tensor * 0.0).item<double>()))
        throw io::FileError(fmt::format("{}: tensor \"{}\" holds values that are not finite", directory.model(), parameter.name));
  }
  nn::set_requires_grad(model, false);  // saves the memory of gradients
  train::set_precision(model, precision(options));
  model.eval();
  return {.options = std::move(options),
          .tokenizer = std::move(tokenizer),
          .model = std::move(model),
          .device = device,
          .is_finished = directory.is_finished(),
          .graphs = std::make_shared<nn::DecodingGraphs>()};
}

}  // namespace tern::translate
