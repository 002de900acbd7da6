#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/program.h"
#include "common/training.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "tensor/sizes.h"
#include "text/corpus.h"
#include "text/metrics.h"
#include "text/unicode.h"
#include "trainer/terminal.h"
#include "trainer/trainer.h"
#include "translate/batches.h"
#include "translate/commands.h"
#include "translate/translator.h"

namespace tern::translate {

/// Callbacks of train::Trainer for a translator's model: batches, loss, optimizer, validation.
///
/// Note [The number of an update]
/// All epochs have as many updates as the first one needs for its pairs. With batches of a number of tokens a later epoch, with other
/// samples or other tokens by BPE-dropout, may have more or fewer batches: surplus batches are left out, and missing ones are updates
/// without a batch. The number of an update so determines its epoch and its batches, which is all that a resumed training needs.
class Training {
 public:
  /// All arguments have to outlive it; `examples` are the pairs of `valid`. Throws UsageError if truncation leaves no pair a target.
  Training(Translator& translator, TrainingPairs& train, const text::ParallelCorpus& valid, std::vector<text::Example> examples,
           train::Run& run);

  train::Trainer& trainer() { return *trainer_; }
  /// Number of training pairs that `length` truncates.
  std::size_t cut() const;
  /// Translates in blocks, between which a signal ends the training.
  std::vector<std::string> translate(std::span<const std::string> lines, const nn::GenerateOptions& search = {.has_scores = false}) const;

 private:
  void require_targets(const std::vector<text::Example>& examples, const char* split) const;
  train::UpdateBatch batch(std::int64_t update);
  train::Validation validate(const train::Trainer& trainer);
  double valid_loss(double label_smoothing = 0);

  const Options& options_;
  const FusedKernels kernels_;  ///< as the options say, as long as it lives
  Translator& translator_;
  TranslationModel& model_;
  TrainingPairs& train_;
  const text::ParallelCorpus& valid_;
  const std::vector<text::Example> valid_examples_;
  const Batches batches_;
  train::Ranks* const ranks_;  ///< null for a single process
  std::optional<train::Trainer> trainer_;
  std::int64_t per_epoch_ = 0;
  std::int64_t epoch_ = -1;  ///< epoch of examples_ and epoch_batches_
  const std::vector<text::Example>* examples_ = nullptr;
  std::vector<text::ShapedBatch> epoch_batches_;
};

Training::Training(Translator& translator, TrainingPairs& train, const text::ParallelCorpus& valid, std::vector<text::Example> examples,
                   train::Run& run)
    : options_(translator.options),
      kernels_(options_.use_fused_kernel),
      translator_(translator),
      model_(translator.model),
      train_(train),
      valid_(valid),
      valid_examples_(std::move(examples)),
      batches_(options_, {translator.eos_src(), translator.eos_tgt(), translator.pad()}, translator.device),
      ranks_(run.ranks()) {
  require_targets(train_.plain(), "training");
  require_targets(valid_examples_, "validation");
  if (ranks_ && ranks_->shard() != parallel::Shard::none && options_.ema > 0 && size_of(train::dtype_of(precision(options_))) == 2)
    throw apps::UsageError(
        fmt::format("--shard {}: a process has the masters of its own 16-bit weights alone, of which --ema {:g} is to "
                    "be the average of all; take --precision fp32, or --ema 0",
                    parallel::name(ranks_->shard()), options_.ema));
  per_epoch_ = ceil_div(static_cast<std::int64_t>(batches_.epoch(train_.plain(), 0).size()), options_.accumulate);
  train::TrainerOptions training = apps::trainer_options(options_, per_epoch_);
  if (options_.updates > 0) training.updates = std::min(training.updates, options_.updates);
  training.unit = "tokens";
  const LossOptions loss{
      .reduction = ranks_ ? Reduction::sum : Reduction::mean, .label_smoothing = options_.label_smoothing, .r_drop = options_.r_drop};
  const train::AdamWOptions adam{
      .lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps, .weight_decay = options_.weight_decay};
  trainer_.emplace(model_,
                   train::Task{.loss = [this, loss](const Batch& batch) { return model_.loss(batch, loss); },
                               .batch = [this](std::int64_t update) { return batch(update); },
                               .optimizer = [adam](const Tensors& parameters) { return std::make_unique<train::AdamW>(parameters, adam); },
                               .validate = [this](const train::Trainer& trainer) { return validate(trainer); }},
                   std::move(training), run);
}

void Training::require_targets(const std::vector<text::Example>& examples, const char* split) const {
  if (std::none_of(examples.begin(), examples.end(), [&](const text::Example& example) { return batches_.has_target(example); }))
    throw apps::UsageError(fmt::format("--length {}: every {} source is so long that nothing of its target is left; use a larger --length",
                                       options_.length, split));
}

std::size_t Training::cut() const {
  const std::vector<text::Example>& pairs = train_.plain();
  return static_cast<std::size_t>(std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return batches_.is_cut(pair); }));
}

/// One batch or several; none if they have no targets.
train::UpdateBatch Training::batch(std::int64_t update) {
  if (const std::int64_t epoch = update / per_epoch_; epoch != epoch_) {
    examples_ = &train_.of_epoch(static_cast<std::uint64_t>(epoch));
    epoch_batches_ = batches_.epoch(*examples_, static_cast<std::uint64_t>(epoch));
    epoch_ = epoch;
  }
  const auto group = static_cast<std::size_t>(options_.accumulate), first = static_cast<std::size_t>(update % per_epoch_) * group;
  train::UpdateBatch result;
  for (std::size_t i = first; i < std::min(first + group, epoch_batches_.size()); ++i) {
    const text::BatchShape& shape = epoch_batches_[i].shape;
    train::RankPart own;
    if (ranks_) own = ranks_->part(shape.rows, train::rows_multiple(shape.columns, options_.width, options_.ff));
    const LoadedBatch loaded = batches_.load(*examples_, epoch_batches_[i], ranks_ ? std::optional(own.rows) : std::nullopt);
    if (loaded.weight == 0) continue;  // truncation has left no targets
    result.items += loaded.tokens;
    // R-Drop counts each token in two passes.
    const double passes = ranks_ && options_.r_drop > 0 ? 2 : 1;
    result.parts.emplace_back(loaded.batch, passes * loaded.weight, own);
  }
  return result;
}

/// The mean loss of a token on the validation set, without dropout. With the training's label smoothing it compares with its loss.
double Training::valid_loss(double label_smoothing) {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  Tensor total = zeros({}, DType::f32, translator_.device);
  double weight = 0;
  for (const text::ShapedBatch& shaped : batches_.in_order(valid_examples_)) {
    trainer_->require_no_stop();
    const LoadedBatch loaded = batches_.load(valid_examples_, shaped);
    add_(total, model_.loss(loaded.batch, {.reduction = Reduction::sum, .label_smoothing = label_smoothing}));
    weight += loaded.weight;
  }
  return trainer_->require_finite(total.item<double>() / weight);
}

std::vector<std::string> Training::translate(std::span<const std::string> lines, const nn::GenerateOptions& search) const {
  constexpr std::size_t rows = 128, block = 16 * rows;
  std::vector<std::string> result;
  for (std::size_t first = 0; first < lines.size(); first += block) {
    trainer_->require_no_stop();
    const auto some = lines.subspan(first, std::min(block, lines.size() - first));
    for (auto& translations : translate::translate(std::span(&translator_, 1), some, search, rows))
      result.push_back(std::move(translations.front().text));
  }
  return result;
}

/// The best model has the highest BLEU or, without --bleu-every and --valid-every, the least loss.
train::Validation Training::validate(const train::Trainer& trainer) {
  train::Validation result;
  const double loss = valid_loss();
  result.numbers.set("valid_loss", loss);
  if (options_.label_smoothing > 0) result.numbers.set("valid_smoothed_loss", valid_loss(options_.label_smoothing));
  result.shown = fmt::format("epoch {:>3}  train loss {:.3f}  valid loss {:.3f}  {:.0f} tokens/s", trainer.epochs(), trainer.train_loss(),
                             loss, trainer.items_per_second());
  const std::int64_t every = options_.valid_every > 0 ? 1 : options_.bleu_every;
  if (every == 0) result.rank = {0, -loss};
  if (!trainer.is_last_round() && (every == 0 || trainer.round() % every != 0)) return result;
  const std::vector<std::string> hypotheses = translate(valid_.src);
  const double bleu = text::bleu(hypotheses, valid_.tgt).score;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) result.samples.push_back({valid_.src[i], hypotheses[i], valid_.tgt[i]});
  result.numbers.set("valid_bleu", bleu);
  result.shown += fmt::format("  valid BLEU {:.2f}", bleu);
  if (every > 0) result.rank = {bleu, -loss};
  return result;
}

using apps::say;
using apps::UsageError;
using text::printable;
using train::seconds_now;

namespace {

/// Called between the steps of the preparation. Throws Stopped if a signal has asked for a stop.
using OnStep = std::function<void()>;

struct TestSet {
  std::string name;
  text::ParallelCorpus corpus;
};

struct Data {
  text::ParallelCorpus train, valid;
  std::vector<TestSet> tests;
};

/// The test sets that --test names, or all in the directory.
std::vector<std::string> test_names(const Options& options) {
  if (options.test == "none") return {};
  if (!options.test.empty()) return apps::words(options.test);
  std::vector<std::string> names = text::list_splits(options.data, options.src, options.tgt);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("test"); });
  return names;
}

Data read(const Options& options, const OnStep& on_step) {
  Data data;
  text::CorpusReport report;
  const auto read = [&](const std::string& split) {
    text::ParallelCorpus corpus = text::read_pairs(options.data, split, options.src, options.tgt, text::ReadOptions().beside(report));
    report.merge(corpus.report);
    on_step();
    return corpus;
  };
  data.train = read("train");
  data.valid = read("valid");
  for (const std::string& name : test_names(options)) data.tests.push_back({name, read(name)});
  const std::size_t left_out = options.word_limit > 0 ? text::filter_by_words(data.train, static_cast<std::size_t>(options.word_limit)) : 0;
  if (data.train.size() == 0)
    throw UsageError(
        fmt::format("--word-limit {}: no training pair in {} has so few words; use a larger one, or 0", options.word_limit, options.data));
  say("data     {}\n", report.summary());
  std::string tests;
  for (const TestSet& set : data.tests) tests += fmt::format(", {} {}", set.corpus.size(), printable(set.name));
  say("pairs    {} train{}, {} valid{}\n", data.train.size(),
      left_out ? fmt::format(" ({} of {} words or more left out)", left_out, options.word_limit) : "", data.valid.size(),
      tests.empty() ? ", no test set" : tests);
  return data;
}

/// A checksum of all data, in order.
std::string digest(const Data& data, const OnStep& on_step) {
  io::Checksum sum;
  std::vector<const text::ParallelCorpus*> read{&data.train, &data.valid};
  for (const TestSet& set : data.tests) read.push_back(&set.corpus);
  for (const text::ParallelCorpus* corpus : read)
    for (const std::vector<std::string>* lines : {&corpus->src, &corpus->tgt}) {
      for (const std::string& line : *lines) {
        sum.add(line);
        sum.add("\n");
      }
      sum.add("\0", 1);
      on_step();
    }
  return sum.hex();
}

/// A tokenizer trained on the first `originals` pairs, without those that teachers have translated.
text::Tokenizer train_tokenizer(const Options& options, const text::ParallelCorpus& corpus, std::size_t pairs, const OnStep& on_step) {
  const auto count = static_cast<std::ptrdiff_t>(pairs);
  std::vector<std::string> lines(corpus.src.begin(), corpus.src.begin() + count);
  lines.insert(lines.end(), corpus.tgt.begin(), corpus.tgt.begin() + count);
  text::TrainOptions training;
  training.on_step = on_step;
  training.vocab_size = static_cast<std::size_t>(options.vocab);
  training.special_tokens = {end_token(options.src), end_token(options.tgt), pad_token};
  return text::Tokenizer::train(lines, training);
}

/// Checks all that can be checked before the data are read.
void check(const Options& options) {
  apps::require_valid(entries(), options, conflict);
  apps::require_named("--data", options.data);
  apps::require_named("--out", options.out);
  if (!options.checkpoints.resume) io::RunDirectory::check(options.out);
}

/// The name of the training's loss, with what it has beyond the cross entropy.
std::string training_loss(const Options& options) {
  std::vector<std::string> terms;
  if (options.label_smoothing > 0) terms.push_back(fmt::format("label smoothing {:g}", options.label_smoothing));
  if (options.r_drop > 0) terms.push_back(fmt::format("R-Drop {:g}", options.r_drop));
  return terms.empty() ? "training loss" : fmt::format("training loss ({})", fmt::join(terms, ", "));
}

struct Scored {
  std::string name;
  std::vector<std::string> hypotheses;
  text::Bleu bleu;
  text::Chrf chrf;
};

Scored scored(const TestSet& set, std::vector<std::string> hypotheses) {
  const text::Bleu bleu = text::bleu(hypotheses, set.corpus.tgt);
  const text::Chrf chrf = text::chrf(hypotheses, set.corpus.tgt);
  return {set.name, std::move(hypotheses), bleu, chrf};
}

/// Adds the scores of test sets: test_bleu and test_chrf are those of the first set; with several sets, `tests` has all by name.
void add_scores(io::JsonObject& summary, const std::vector<Scored>& tests) {
  if (tests.empty()) return;
  const Scored& first = tests.front();
  summary.set("test_bleu", first.bleu.score).set("test_chrf", first.chrf.score);
  summary.set("bleu_signature", first.bleu.signature()).set("chrf_signature", first.chrf.signature());
  if (tests.size() == 1) return;
  io::JsonObject all;
  for (const Scored& test : tests) all.set(test.name, io::JsonObject().set("bleu", test.bleu.score).set("chrf", test.chrf.score));
  summary.set("tests", all);
}

void print_samples(const Options& options, const text::ParallelCorpus& test, const std::vector<std::string>& hypotheses) {
  const std::size_t samples = std::min<std::size_t>(10, hypotheses.size());
  say("\n{} sentences that were not trained on:\n", samples == 10 ? "Ten" : fmt::to_string(samples));
  for (std::size_t i = 0; i < samples; ++i) {
    const std::size_t at = i * hypotheses.size() / samples;
    say("  {}  {}\n  {}  {}\n  ref {}\n\n", options.src, printable(test.src[at]), options.tgt, printable(hypotheses[at]),
        printable(test.tgt[at]));
  }
}

std::vector<Translator> load_teachers(const Options& options, Device device) {
  std::vector<Translator> teachers;
  for (const std::string& run : apps::words(options.teacher)) {
    teachers.push_back(Translator::load(run, device));
    const Translator& teacher = teachers.back();
    if (teacher.options.src != options.src || teacher.options.tgt != options.tgt)
      throw UsageError(fmt::format("--teacher {}: expected a translator from {} to {} but got one from {} to {}", printable(run),
                                   options.src, options.tgt, teacher.options.src, teacher.options.tgt));
    if (teacher.tokenizer.to_json() != teachers.front().tokenizer.to_json())
      throw UsageError(
          fmt::format("--teacher {}: expected the tokenizer of the first teacher, as an ensemble has one vocabulary", printable(run)));
  }
  return teachers;
}

/// Sequence-level distillation (Kim & Rush, "Sequence-Level Knowledge Distillation", 2016): adds to the training pairs each source with its
/// translation by the ensemble of teachers, found with options.beam and options.length_penalty. Empty translations are left out. Calls
/// `on_step` between blocks of lines, and passes on its exceptions. Returns the number of added pairs. Throws UsageError for teachers with
/// different tokenizers or of other languages, FileError for a damaged run.
std::size_t add_distilled(text::ParallelCorpus& corpus, const Options& options, Device device, const OnStep& on_step) {
  const std::vector<Translator> teachers = load_teachers(options, device);
  if (teachers.empty()) return 0;
  constexpr std::size_t batch_rows = 128, block_lines = 16 * batch_rows;
  std::vector<std::string> sources, targets;
  for (std::size_t first = 0; first < corpus.size(); first += block_lines) {
    on_step();
    const auto block = std::span(corpus.src).subspan(first, std::min(block_lines, corpus.size() - first));
    const auto found = translate(teachers, block, beam_search(options.beam, options.length_penalty), batch_rows);
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (found[i].front().text.empty()) continue;
      sources.push_back(block[i]);
      targets.push_back(found[i].front().text);
    }
  }
  corpus.src.insert(corpus.src.end(), sources.begin(), sources.end());
  corpus.tgt.insert(corpus.tgt.end(), targets.begin(), targets.end());
  return sources.size();
}

}  // namespace

void train(const Options& options) {
  const double started = seconds_now();
  check(options);
  const Device device = apps::device_of(options);
  apps::require_memory(count_parameters(options, options.vocab), device, "use a smaller --width, --layers, --ff, --vocab or --length");

  // Before the data are read, to detect at once a directory that cannot be written or that another training writes. A fault in the data
  // leaves nothing behind.
  apps::Session session("tern-translate", options, device, apps::to_json(entries(), options), started);
  train::Run& run = session.run;
  run.name_loss(training_loss(options));
  const OnStep on_step = [&run] {
    if (train::stop_signal() != 0) train::require_no_stop("before the first update" + run.remains());
  };
  Data data = read(options, on_step);
  const std::size_t originals = data.train.size();
  const std::size_t distilled = add_distilled(data.train, options, device, on_step);
  if (distilled > 0) say("teacher  {} more pairs, as {} translates them\n", distilled, printable(options.teacher));
  session.set_data(std::filesystem::absolute(options.data).string(), digest(data, on_step));
  const text::Tokenizer tokenizer =
      run.is_resumed() ? text::Tokenizer::load(run.tokenizer()) : train_tokenizer(options, data.train, originals, on_step);
  const auto vocab = static_cast<std::int64_t>(tokenizer.vocab_size());
  run.require_size(count_parameters(options, vocab));
  manual_seed(static_cast<std::uint64_t>(options.seed));  // after the teachers, whose models draw random numbers, too
  Translator translator{options, tokenizer, TranslationModel(options, vocab, device), device};
  TrainingPairs pairs(options, tokenizer, data.train, on_step);
  Training training(translator, pairs, data.valid, encode(tokenizer, data.valid, on_step), run);
  train::Trainer& trainer = training.trainer();
  const std::int64_t params = nn::count_parameters(translator.model);
  if (const std::size_t cut = training.cut(); cut > 0) say("cut      {} training pairs to {} tokens\n", cut, options.length);
  const std::int64_t encoder = options.encoder_layers > 0 ? options.encoder_layers : options.layers;
  say("model    {}{} layers, width {}, {} heads, vocabulary {}: {:.2f} M parameters\n",
      is_encoder_decoder(options) ? fmt::format("{} + ", encoder) : "", options.layers, options.width, options.heads,
      tokenizer.vocab_size(), static_cast<double>(params) / 1e6);
  const std::int64_t size = options.batch_tokens > 0 ? options.batch_tokens : options.batch_size;
  session.say_training(trainer, fmt::format("{} {}", size * options.accumulate, options.batch_tokens > 0 ? "tokens" : "pairs"));

  if (!run.is_resumed()) run.write_tokenizer(tokenizer.to_json());
  const double data_seconds = seconds_now() - started;
  trainer.run();
  session.ranks.leave();
  if (!session.ranks.is_first()) return;
  io::JsonObject valid = trainer.best().validation.numbers;
  if (!valid.contains("valid_bleu"))  // --bleu-every 0, and the last model was not the best
    valid.set("valid_bleu", text::bleu(training.translate(data.valid.src), data.valid.tgt).score);

  std::vector<Scored> tests;
  const nn::GenerateOptions search = beam_search(options.beam, options.length_penalty);
  for (const TestSet& set : data.tests) tests.push_back(scored(set, training.translate(set.corpus.src, search)));
  if (options.beam > 1) valid.set("valid_beam_bleu", text::bleu(training.translate(data.valid.src, search), data.valid.tgt).score);
  io::JsonObject summary = session.summary(trainer, params, "tokens");
  summary.set("epochs", trainer.total_epochs()).set("data_seconds", data_seconds).update(valid);
  add_scores(summary, tests);

  for (std::size_t i = 0; i < tests.size(); ++i) {
    if (i == 0) print_samples(options, data.tests[i].corpus, tests[i].hypotheses);
    say("{}{}\n{}\n", tests.size() > 1 ? printable(tests[i].name) + "\n" : "", text::format(tests[i].bleu), text::format(tests[i].chrf));
  }
  session.finish(summary);
}

}  // namespace tern::translate
