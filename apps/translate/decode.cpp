#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <numeric>

#include "common/program.h"
#include "common/training_settings.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/corpus.h"
#include "text/data_error.h"
#include "text/unicode.h"
#include "trainer/terminal.h"
#include "translate/batches.h"
#include "translate/commands.h"

namespace tern::translate {

std::vector<Translator> load_models(const SearchOptions& options) {
  const Device device = apps::use(options);
  apps::require_precision(train::precision_of(options.precision).value(), device);
  std::vector<Translator> models;
  for (const std::string& name : options.models) {
    models.push_back(Translator::load(name, device, options.precision));
    const Translator &model = models.back(), &first = models.front();
    if (model.options.src != first.options.src || model.options.tgt != first.options.tgt)
      throw apps::UsageError(fmt::format("--model {}: translates {} to {}, and {} translates {} to {}: an ensemble has one pair", name,
                                         model.options.src, model.options.tgt, options.models.front(), first.options.src,
                                         first.options.tgt));
    if (models.size() > 1 && model.tokenizer.to_json() != first.tokenizer.to_json())
      throw apps::UsageError(fmt::format("--model {}: has another tokenizer.json than {}: an ensemble's runs are trained with one", name,
                                         options.models.front()));
    if (!model.is_finished)
      train::write_message(fmt::format("tern-translate: {}: the training of this model goes on, or was cut short: it has no summary.json\n",
                                       text::printable(name)));
  }
  return models;
}

namespace {

/// Reads up to `max_lines` lines, but not more than are available, so that a single sentence need not wait for others. Empty at the end.
/// Stores a fault in `fault`, as the lines before it are translated first.
std::vector<std::string> read_block(text::LineReader& reader, std::size_t max_lines, text::CorpusReport& report,
                                    std::exception_ptr& fault) {
  constexpr std::uint64_t max_bytes = std::uint64_t{4} << 20;
  std::vector<std::string> lines;
  const std::uint64_t before = report.memory();
  std::string line;
  try {
    while (reader.next(line, report)) {
      lines.push_back(line);
      if (lines.size() == max_lines || report.memory() - before > max_bytes || !reader.is_ready()) break;
    }
  } catch (const text::DataError&) {
    fault = std::current_exception();
  }
  return lines;
}

nn::GenerateOptions search_options(const DecodeOptions& options) {
  nn::GenerateOptions result = beam_search(options.beam, options.length_penalty);
  result.n_best = std::max<std::int64_t>(options.n_best, 1);
  if (options.sample) {
    if (options.beam > 1) throw apps::UsageError("--sample: draws each translation for itself; leave out --beam");
    apps::set_sampling(result, options);
    return result;
  }
  if (result.n_best > options.beam)
    throw apps::UsageError(fmt::format("--n-best {}: expected at most the beam, {}; or --sample", result.n_best, options.beam));
  result.has_scores = options.n_best > 0;
  return result;
}

/// Tokens a second and waiting times of lines, for --statistics.
class Statistics {
 public:
  void add(std::size_t lines, std::size_t tokens, double seconds) {
    tokens_ += tokens;
    seconds_ += seconds;
    waits_.insert(waits_.end(), lines, seconds);
  }
  std::string text() const {
    return fmt::format("{} with {} in {:.3f} s: {:.0f} tokens/s; a line took {:.1f} ms (median), {:.1f} ms (99th percentile)",
                       apps::counted(static_cast<std::int64_t>(waits_.size()), "line"),
                       apps::counted(static_cast<std::int64_t>(tokens_), "target token"), seconds_,
                       seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0.0, 1e3 * apps::quantile(waits_, 0.5),
                       1e3 * apps::quantile(waits_, 0.99));
  }

 private:
  std::size_t tokens_ = 0;
  double seconds_ = 0;
  std::vector<double> waits_;  // seconds of the block of each line
};

}  // namespace

void decode(const DecodeOptions& options) {
  nn::GenerateOptions search = search_options(options);
  // No limits: lines are dropped when they have been translated.
  text::ReadOptions limits;
  limits.max_file_bytes = limits.max_memory_bytes = std::numeric_limits<std::uint64_t>::max();
  limits.max_lines = std::numeric_limits<std::size_t>::max();
  text::LineReader reader =
      options.src_file.empty() ? text::LineReader(STDIN_FILENO, "standard input", limits) : text::LineReader(options.src_file, limits);
  const std::vector<Translator> models = load_models(options);
  text::CorpusReport report;
  std::exception_ptr fault;
  std::size_t truncated = 0;
  Statistics statistics;
  const std::int64_t default_size = models.front().device == cpu ? 64 : 512;
  const auto batch = static_cast<std::size_t>(options.batch_size > 0 ? options.batch_size : default_size);
  while (!fault) {
    // A block of several batches lets the decoder group sentences of similar length. With batch size 1 lines are translated one by one.
    const std::vector<std::string> lines = read_block(reader, batch == 1 ? 1 : 16 * batch, report, fault);
    if (lines.empty()) break;
    const double start = train::seconds_now();
    std::string text;
    std::size_t tokens = 0;
    const auto translations = translate(models, lines, search, batch, &truncated);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      tokens += translations[i].front().tokens;
      if (options.n_best == 0) text += translations[i].front().text + "\n";
      else
        for (const Translation& each : translations[i])
          text += fmt::format("{} ||| {} ||| {:.6f}\n", search.first_number + static_cast<std::int64_t>(i), each.text, each.score);
    }
    search.first_number += static_cast<std::int64_t>(lines.size());
    statistics.add(lines.size(), tokens, train::seconds_now() - start);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw std::runtime_error(fmt::format("the output could not be written: {}", std::strerror(errno)));
  }
  if (fault) std::rethrow_exception(fault);
  if (truncated > 0) {
    std::int64_t room = models.front().source_room();
    for (const Translator& model : models) room = std::min(room, model.source_room());
    train::write_message(fmt::format("tern-translate: {} of {} lines were cut to the {} tokens that the model has room for\n", truncated,
                                     report.lines, room));
  }
  if (options.statistics) train::write_message(fmt::format("tern-translate: {}\n", statistics.text()));
}

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
