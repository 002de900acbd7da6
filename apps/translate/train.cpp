#include "translate/train.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/program.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/batching.h"
#include "text/corpus.h"
#include "text/metrics.h"
#include "translate/translator.h"

namespace tern::translate {

using apps::duration;
using apps::ProgressLine;
using apps::seconds_now;

namespace {

struct Data {
  text::ParallelCorpus train, valid, test;
  std::vector<text::Example> train_ids, valid_ids;
};

std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus) {
  std::vector<text::Example> examples(corpus.size());
  for (std::size_t i = 0; i < corpus.size(); ++i) examples[i] = {tokenizer.encode(corpus.src[i]), tokenizer.encode(corpus.tgt[i])};
  return examples;
}

Data read(const Options& options) {
  Data data;
  data.train = text::read_pairs(options.data, "train", options.src, options.tgt);
  data.valid = text::read_pairs(options.data, "valid", options.src, options.tgt);
  data.test = text::read_pairs(options.data, "test", options.src, options.tgt);
  text::CorpusReport report = data.train.report;
  report.merge(data.valid.report);
  report.merge(data.test.report);
  const std::size_t left_out = options.word_limit > 0 ? text::filter_by_words(data.train, static_cast<std::size_t>(options.word_limit)) : 0;
  if (data.train.size() == 0)
    throw apps::UsageError(fmt::format("{}: no training pair is left below {} words", options.data, options.word_limit));
  fmt::print("data     {}\n", report.summary());
  fmt::print("pairs    {} train{}, {} valid, {} test\n", data.train.size(),
             left_out ? fmt::format(" ({} of {} words or more left out)", left_out, options.word_limit) : "", data.valid.size(), data.test.size());
  return data;
}

text::Tokenizer train_tokenizer(const Options& options, const text::ParallelCorpus& corpus) {
  std::vector<std::string> lines = corpus.src;
  lines.insert(lines.end(), corpus.tgt.begin(), corpus.tgt.end());
  text::TrainOptions training;
  training.vocab_size = static_cast<std::size_t>(options.vocab);
  training.special_tokens = {end_token(options.src), end_token(options.tgt), pad_token};
  return text::Tokenizer::train(lines, training);
}

/// A batch on the device.
struct DeviceBatch {
  Tensor ids, labels, weights;  ///< (B, T)
  nn::AttentionMask mask;
  std::int64_t tokens = 0;      ///< inputs that are not padding
  double weight = 0;            ///< the sum of the weights
};

class Trainer {
 public:
  Trainer(Translator& translator, const Data& data, io::JsonLog& log)
      : options_(translator.options), translator_(translator), model_(translator.model), data_(data), log_(log),
        tokens_{translator.eos_src(), translator.eos_tgt(), translator.pad()} {
    nn::flatten_parameters(model_);
    optimizer_.emplace(nn::parameters(model_), nn::AdamOptions{.lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps});
    const std::size_t samples = options_.samples > 0 ? std::min(static_cast<std::size_t>(options_.samples), data_.train.size()) : data_.train.size();
    const auto batch = static_cast<std::size_t>(options_.batch_size);
    per_epoch_ = static_cast<std::int64_t>((samples + batch - 1) / batch);
    total_ = options_.epochs * per_epoch_;
    if (options_.updates > 0) total_ = std::min(total_, options_.updates);
    log_every_ = std::max<std::int64_t>(total_ / 200, 1);
  }

  std::int64_t total_updates() const { return total_; }
  std::int64_t updates() const { return update_; }
  double train_loss() const { return train_loss_; }
  double tokens_per_second() const { return seconds_ > 0 ? static_cast<double>(tokens_seen_) / seconds_ : 0; }
  double seconds() const { return seconds_; }

  /// One pass over the epoch's pairs; false when the last update is done.
  bool run_epoch(std::int64_t epoch, ProgressLine& progress) {
    model_.train();
    const double started = seconds_now();
    loss_sum_ = zeros({}, DType::f32, translator_.device);
    std::int64_t summed = 0;
    Mean shown, logged;
    for (const auto& picks : epoch_batches(epoch)) {
      if (update_ == total_) break;
      const DeviceBatch batch = load(data_.train_ids, picks);
      ++update_;
      if (batch.weight == 0) continue;  // every target was cut off: there is nothing to learn
      step(batch);
      tokens_seen_ += batch.tokens;
      ++summed;
      // Reading the loss waits for the device, so it is read only for a line that is shown or logged.
      if (update_ % log_every_ == 0) {
        io::JsonObject line;
        log_.write(line.set("update", update_).set("loss", logged.since(loss_sum_, summed)).set("lr", options_.lr * lr_factor()));
      }
      if (progress.is_due()) {
        const double elapsed = seconds_ + seconds_now() - started;
        progress.update(fmt::format("epoch {}/{}  step {}/{}  loss {:.3f}  {:.0f} tokens/s  {} left", epoch + 1, epochs(), update_, total_,
                                    shown.since(loss_sum_, summed), static_cast<double>(tokens_seen_) / elapsed,
                                    duration(elapsed / static_cast<double>(update_) * static_cast<double>(total_ - update_))));
      }
    }
    train_loss_ = summed ? loss_sum_.item<double>() / static_cast<double>(summed) : train_loss_;
    seconds_ += seconds_now() - started;
    return update_ < total_;
  }

  /// The loss of a token on the validation set, without dropout.
  double valid_loss() {
    const NoGrad unrecorded;
    model_.eval();
    Tensor total = zeros({}, DType::f32, translator_.device);
    double weight = 0;
    std::vector<std::size_t> order(data_.valid_ids.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (const auto& picks : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
      const DeviceBatch batch = load(data_.valid_ids, picks);
      add_(total, loss(batch, Reduction::sum));
      weight += batch.weight;
    }
    return total.item<double>() / weight;
  }

  std::int64_t epochs() const { return (total_ + per_epoch_ - 1) / per_epoch_; }

 private:
  /// The mean loss since the last time that it was asked for, from the running sum on the device.
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    double since(const Tensor& running_sum, std::int64_t now) {
      const double total = running_sum.item<double>();
      const double mean = (total - std::exchange(sum, total)) / static_cast<double>(now - std::exchange(count, now));
      return mean;
    }
  };

  /// Pairs of similar length share a batch where rows are not padded to a fixed length.
  std::vector<std::vector<std::size_t>> epoch_batches(std::int64_t epoch) const {
    const auto seed = static_cast<std::uint64_t>(options_.seed);
    const auto order = text::epoch_order(data_.train_ids.size(), seed, static_cast<std::uint64_t>(epoch), static_cast<std::size_t>(options_.samples));
    const auto rows = static_cast<std::size_t>(options_.batch_size);
    if (options_.pad_to_length) return text::fixed_batches(order, rows);
    std::vector<std::int64_t> lengths;
    for (const text::Example& example : data_.train_ids) lengths.push_back(columns(example));
    std::vector<std::size_t> sorted(order.begin(), order.end());
    // Stable: pairs of one length stay in the epoch's random order.
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) { return lengths[a] < lengths[b]; });
    auto batches = text::fixed_batches(sorted, rows);
    const auto shuffled = text::epoch_order(batches.size(), seed + 1, static_cast<std::uint64_t>(epoch));
    std::vector<std::vector<std::size_t>> result;
    for (std::size_t i : shuffled) result.push_back(std::move(batches[i]));
    return result;
  }

  std::int64_t columns(const text::Example& example) const { return std::min(text::sequence_columns(example), options_.length - 1); }

  DeviceBatch load(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks) const {
    text::Batch host = text::make_batch(examples, picks, tokens_, options_.pad_to_length ? options_.length : 0);
    if (host.length >= options_.length) host = text::make_batch(examples, picks, tokens_, options_.length);
    const Device device = translator_.device;
    DeviceBatch batch;
    const Shape shape{host.rows, host.length};
    batch.ids = Tensor::from(host.ids, shape, device);
    batch.labels = Tensor::from(host.labels, shape, device);
    batch.weights = Tensor::from(host.weights, shape, device);
    nn::MaskOptions mask{.causal = true};
    if (options_.prefix_lm) mask.prefix = Tensor::from(host.prefix, {host.rows}, device);
    batch.mask = nn::AttentionMask(mask, host.length, host.length, DType::f32, device);
    for (std::size_t pick : picks) batch.tokens += columns(examples[pick]);
    for (float weight : host.weights) batch.weight += weight;
    return batch;
  }

  Tensor loss(const DeviceBatch& batch, Reduction reduction) const {
    CrossEntropyOptions options{.token_weights = batch.weights, .reduction = reduction};
    if (reduction == Reduction::mean) options.label_smoothing = options_.label_smoothing;
    return cross_entropy(model_.forward(batch.ids, batch.mask), batch.labels, options);
  }

  double lr_factor() const {
    if (options_.schedule == "cosine") return nn::schedule::cosine(update_, options_.warmup, total_);
    if (options_.schedule == "inverse-sqrt") return nn::schedule::inverse_sqrt(update_, std::max<std::int64_t>(options_.warmup, 1));
    return nn::schedule::linear_warmup(update_, options_.warmup);
  }

  void step(const DeviceBatch& batch) {
    optimizer_->zero_grad();
    const Tensor value = loss(batch, Reduction::mean);
    value.backward();
    if (options_.clip > 0) nn::clip_grad_norm(optimizer_->parameters(), options_.clip);
    optimizer_->set_lr_factor(lr_factor());
    optimizer_->step();
    add_(loss_sum_, value.detach());
  }

  const Options& options_;
  Translator& translator_;
  nn::DecoderLM& model_;
  const Data& data_;
  io::JsonLog& log_;
  text::SequenceOptions tokens_;
  std::optional<nn::Adam> optimizer_;
  Tensor loss_sum_;
  std::int64_t update_ = 0, per_epoch_ = 0, total_ = 0, log_every_ = 1, tokens_seen_ = 0;
  double train_loss_ = 0, seconds_ = 0;
};

void save_model(const io::RunDirectory& run, const nn::DecoderLM& model) {
  std::vector<io::NamedTensor> tensors;
  for (const nn::NamedTensor& parameter : nn::named_parameters(model)) tensors.emplace_back(parameter.name, parameter.tensor);
  io::save_safetensors(run.model(), tensors, {{"format", "pt"}});
}

constexpr std::size_t decode_rows = 128;

double score_valid(const Translator& translator, const Data& data) {
  return text::bleu(translator.translate(data.valid.src, decode_rows), data.valid.tgt).score;
}

void check(const Options& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) throw apps::UsageError(fmt::format("{}: expected at least 1 but got {}", name, value));
  };
  positive("--epochs", options.epochs);
  positive("--batch-size", options.batch_size);
  positive("--width", options.width);
  positive("--layers", options.layers);
  positive("--heads", options.heads);
  positive("--ff", options.ff);
  positive("--vocab", options.vocab);
  if (options.length < 4) throw apps::UsageError(fmt::format("--length: expected at least 4 but got {}", options.length));
  if (options.width % options.heads != 0)
    throw apps::UsageError(fmt::format("--heads: expected a divisor of the width {} but got {}", options.width, options.heads));
  if (!(options.lr > 0)) throw apps::UsageError(fmt::format("--lr: expected a rate above 0 but got {}", options.lr));
  if (!(options.dropout >= 0 && options.dropout < 1)) throw apps::UsageError(fmt::format("--dropout: expected a probability in [0, 1) but got {}", options.dropout));
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1)) throw apps::UsageError(fmt::format("--label-smoothing: expected a share in [0, 1) but got {}", options.label_smoothing));
  if (options.src == options.tgt) throw apps::UsageError(fmt::format("--tgt: expected another language than --src {}", options.src));
}

}  // namespace

void train(const Options& options) {
  const double started = seconds_now();
  check(options);
  const Device device = apps::resolve_device(options.device);
  if (options.threads > 0) set_num_threads(options.threads);
  manual_seed(static_cast<std::uint64_t>(options.seed));
  io::RunDirectory::check(options.out);

  Data data = read(options);
  text::Tokenizer tokenizer = train_tokenizer(options, data.train);
  data.train_ids = encode(tokenizer, data.train);
  data.valid_ids = encode(tokenizer, data.valid);
  const nn::DecoderLMOptions shape = model_options(options, static_cast<std::int64_t>(tokenizer.vocab_size()), device);
  Translator translator{options, tokenizer, nn::DecoderLM(shape), device};

  const io::RunDirectory run = io::RunDirectory::create(options.out, to_json(options));
  io::write_file_atomically(run.tokenizer(), tokenizer.to_json());
  io::JsonLog log(run.log());
  Trainer trainer(translator, data, log);
  const std::int64_t params = nn::count_parameters(translator.model);
  const double data_seconds = seconds_now() - started;
  fmt::print("model    {} layers, width {}, {} heads, vocabulary {}: {:.2f} M parameters\n", options.layers, options.width, options.heads,
             tokenizer.vocab_size(), static_cast<double>(params) / 1e6);
  fmt::print("training {} updates of {} pairs on {}, fp32, {} kernels\n", trainer.total_updates(), options.batch_size, apps::describe(device),
             options.use_fused_kernel ? "fused" : "plain");
  std::fflush(stdout);

  double valid_loss = 0;
  {
    ProgressLine progress;
    bool goes_on = true;
    for (std::int64_t epoch = 0; goes_on; ++epoch) {
      goes_on = trainer.run_epoch(epoch, progress);
      valid_loss = trainer.valid_loss();
      io::JsonObject line;
      line.set("epoch", epoch + 1).set("update", trainer.updates()).set("train_loss", trainer.train_loss()).set("valid_loss", valid_loss);
      line.set("tokens_per_second", trainer.tokens_per_second()).set("seconds", trainer.seconds());
      std::string text = fmt::format("epoch {:>3}  train loss {:.3f}  valid loss {:.3f}  {:.0f} tokens/s", epoch + 1, trainer.train_loss(), valid_loss,
                                     trainer.tokens_per_second());
      if (options.bleu_every > 0 && goes_on && (epoch + 1) % options.bleu_every == 0) {
        const double bleu = score_valid(translator, data);
        line.set("valid_bleu", bleu);
        text += fmt::format("  valid BLEU {:.2f}", bleu);
      }
      log.write(line);
      save_model(run, translator.model);
      progress.print(text);
    }
  }

  const double valid_bleu = score_valid(translator, data);
  const std::vector<std::string> hypotheses = translator.translate(data.test.src, decode_rows);
  const text::Bleu bleu = text::bleu(hypotheses, data.test.tgt);
  const text::Chrf chrf = text::chrf(hypotheses, data.test.tgt);
  fmt::print("\nTen sentences that were not trained on:\n");
  const std::size_t samples = std::min<std::size_t>(10, hypotheses.size());
  for (std::size_t i = 0; i < samples; ++i) {
    const std::size_t at = i * hypotheses.size() / samples;
    fmt::print("  {}  {}\n  {}  {}\n  ref {}\n\n", options.src, data.test.src[at], options.tgt, hypotheses[at], data.test.tgt[at]);
  }
  fmt::print("{}\n{}\n", text::format(bleu), text::format(chrf));

  io::JsonObject summary;
  summary.set("preset", options.preset).set("device", to_string(device)).set("use_fused_kernel", options.use_fused_kernel);
  summary.set("precision", "fp32").set("params", params).set("epochs", trainer.epochs()).set("updates", trainer.updates());
  summary.set("data_seconds", data_seconds).set("train_seconds", trainer.seconds()).set("total_seconds", seconds_now() - started);
  summary.set("tokens_per_second", trainer.tokens_per_second()).set("train_loss", trainer.train_loss()).set("valid_loss", valid_loss);
  summary.set("valid_bleu", valid_bleu).set("test_bleu", bleu.score).set("test_chrf", chrf.score);
  summary.set("bleu_signature", bleu.signature()).set("chrf_signature", chrf.signature());
  run.write_summary(summary);
  fmt::print("trained in {}, {} in all; the run is in {}\n", duration(trainer.seconds()), duration(seconds_now() - started), options.out);
}

}  // namespace tern::translate
