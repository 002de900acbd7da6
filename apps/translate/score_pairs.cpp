#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/program.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/corpus.h"
#include "trainer/terminal.h"
#include "translate/commands.h"
#include "translate/pairs.h"

namespace tern::translate {

namespace {

struct Pair {
  nn::TokenIds source, target;  // with their end tokens
};

/// Rows padded to the longest, (B, T) of i64.
Tensor filled(const std::vector<nn::TokenIds>& rows, std::int64_t filling, Device device) {
  std::size_t width = 0;
  for (const nn::TokenIds& row : rows) width = std::max(width, row.size());
  nn::TokenIds all;
  for (const nn::TokenIds& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    all.insert(all.end(), width - row.size(), filling);
  }
  return Tensor::from(all, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(width)}, device);
}

/// Log-probabilities of targets, by forced decoding in one pass.
std::vector<float> log_probabilities(const Translator& translator, const std::vector<const Pair*>& pairs) {
  const NoGrad unrecorded;
  constexpr std::int64_t ignored = -100;
  const Device device = translator.device;
  std::vector<nn::TokenIds> inputs, sources, labels;
  nn::TokenIds source_lengths;
  for (const Pair* pair : pairs) {
    nn::TokenIds row = translator.model.lm ? pair->source : nn::TokenIds{translator.eos_src()};
    labels.emplace_back(row.size() - 1, ignored);
    labels.back().insert(labels.back().end(), pair->target.begin(), pair->target.end());
    row.insert(row.end(), pair->target.begin(), pair->target.end() - 1);
    inputs.push_back(std::move(row));
    sources.push_back(pair->source);
    source_lengths.push_back(static_cast<std::int64_t>(pair->source.size()));
  }
  const Tensor ids = filled(inputs, translator.pad(), device), targets = filled(labels, ignored, device);
  const Tensor lengths = Tensor::from(source_lengths, {static_cast<std::int64_t>(pairs.size())}, device);
  const CrossEntropyOptions each{.ignore_index = ignored, .reduction = Reduction::none};
  const train::PrecisionScope scope(precision(translator.options));
  const TranslationModel& model = translator.model;
  const Tensor losses = model.lm ? model.lm->loss(ids, targets, each, model.mask(lengths), model.position_ids(lengths, ids.size(1)))
                                 : model.encoder_decoder->loss(filled(sources, translator.pad(), device), lengths, ids, targets, each);
  return sum(losses * -1.0, {1}).to_vector<float>();
}

}  // namespace

void score_pairs(const ScorePairsOptions& options) {
  const auto sources = text::read_lines(options.src_file), targets = text::read_lines(options.tgt_file);
  if (sources.size() != targets.size())
    throw apps::UsageError(fmt::format("expected as many sources as targets but got {} in {} and {} in {}", sources.size(),
                                       options.src_file, targets.size(), options.tgt_file));
  SearchOptions search;
  search.models = {options.model};
  static_cast<apps::Processors&>(search) = options;
  search.precision = options.precision;
  const std::vector<Translator> models = load_models(search);
  const Translator& translator = models.front();
  const std::int64_t room = translator.source_room();
  std::vector<Pair> pairs;
  std::size_t truncated = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    bool is_source_cut = false, is_target_cut = false;
    Pair pair{translator.source_tokens(sources[i], room, is_source_cut), {}};
    if (pair.source.empty()) pair.source = {translator.eos_src()};
    for (std::int32_t id : line_tokens(translator.tokenizer, targets[i])) pair.target.push_back(id);
    pair.target.push_back(translator.eos_tgt());
    // The maximum length of a target: a decoder-only LM reads source and target without the last token.
    const std::size_t most = static_cast<std::size_t>(translator.options.length) - (translator.model.lm ? pair.source.size() : 0);
    is_target_cut = pair.target.size() > most;
    if (is_target_cut) pair.target.resize(most);
    truncated += is_source_cut || is_target_cut;
    pairs.push_back(std::move(pair));
  }
  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto length = [&](std::size_t i) { return pairs[i].source.size() + pairs[i].target.size(); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return length(a) < length(b); });
  std::vector<double> scores(pairs.size());
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  for (std::size_t first = 0; first < order.size(); first += batch_size) {
    std::vector<const Pair*> batch;
    for (std::size_t i = first; i < std::min(order.size(), first + batch_size); ++i) batch.push_back(&pairs[order[i]]);
    const std::vector<float> log_p = log_probabilities(translator, batch);
    for (std::size_t i = 0; i < batch.size(); ++i)
      scores[order[first + i]] = log_p[i] / std::pow(static_cast<double>(batch[i]->target.size()), options.length_penalty);
  }
  std::string text;
  for (double score : scores) text += fmt::format("{:.6f}\n", score);
  std::fwrite(text.data(), 1, text.size(), stdout);  // apps::run() reports a failed write
  if (truncated > 0)
    train::write_message(fmt::format("tern-translate: {} of {} pairs were cut to the {} tokens that the model has room for\n", truncated,
                                     pairs.size(), translator.options.length));
}

}  // namespace tern::translate
