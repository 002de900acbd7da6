#include "lm/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <numeric>

#include "common/training.h"
#include "lm/language_model.h"
#include "nn/generate.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "text/batching.h"

namespace tern::lm {

namespace {

/// The model of the options, with the weights of options.base if there is one.
nn::DecoderLM make_model(const Options& options, const Ground& ground) {
  nn::DecoderLM model(ground.shape);
  if (options.base.empty()) return model;
  const LanguageModel base = load(options.base, {.length = options.length, .device = ground.device, .dequantizes = true});
  if (base.tokenizer.to_json() != ground.data.tokenizer.to_json())
    throw apps::UsageError(fmt::format("--init {}: has another tokenizer than --data {}: prepare the text with --tokenizer {}",
                                       options.base, options.data, tokenizer_of(options.base)));
  {
    const NoGrad unrecorded;
    const std::vector<NamedTensor> from = nn::named_parameters(base.model), to = nn::named_parameters(model);
    for (std::size_t i = 0; i < to.size(); ++i) copy_(to[i].tensor, from[i].tensor);
  }
  add_adapters(options, model);
  return model;
}

}  // namespace

Ground::Ground(const Options& options)
    : device(apps::device_of(options)),
      data(data::PreparedData::open(options.data)),
      shape(model_options(options, static_cast<std::int64_t>(data.tokenizer.vocab_size()), device)),
      parameters(apps::count_parameters(shape)) {
  apps::require_memory(parameters, device, "use a smaller --width, --layers or --vocab");
}

Training::Training(const Options& options, const Ground& ground, train::Run& run)
    : options_(options),
      kernels_(options.use_fused_kernel),
      data_(ground.data),
      device_(ground.device),
      model_(make_model(options, ground)),
      ranks_(run.ranks()),
      windows_of_rows_(data_.train, options.length, 1) {
  const std::int64_t rows = options.batch_size * options.accumulate, length = options.length;
  if (data_.train.size() <= length)
    throw apps::UsageError(
        fmt::format("--length {}: the training text has {} tokens: expected a smaller length, or more text", length, data_.train.size()));
  if (data_.valid.size() < 2) throw apps::UsageError("--data: the validation text has no token to predict: prepare more text");
  windows_ = std::max<std::int64_t>((data_.train.size() - 1) / length - 1, 1);
  per_epoch_ = std::max<std::int64_t>(windows_ / rows, 1);
  const Reduction reduction = ranks_ ? Reduction::sum : Reduction::mean;
  train::TrainerOptions training = apps::trainer_options(options, per_epoch_);
  if (options.updates > 0) training.updates = options.updates;
  training.saves_frozen = options.lora == 0;
  training.unit = "tokens";
  training.may_end_early = options.patience > 0;
  trainer_.emplace(
      model_,
      train::Task{.loss = [this, reduction](const Batch& batch) { return model_.loss(batch.ids, batch.labels, {.reduction = reduction}); },
                  .batch = [this](std::int64_t update) { return batch(update); },
                  .optimizer = [this](const Tensors& parameters) { return optimizer(parameters); },
                  .validate = [this](const train::Trainer& trainer) { return validate(trainer); }},
      std::move(training), run);
}

/// Matrices decay; norms and biases do not. Muon updates the matrices of the blocks.
std::unique_ptr<train::Optimizer> Training::optimizer(const Tensors& parameters) const {
  const std::vector<NamedTensor> names = nn::named_masters(model_, false);
  const train::AdamWOptions decaying{.lr = options_.lr, .beta2 = options_.beta2, .weight_decay = options_.weight_decay};
  train::AdamWOptions plain = decaying;
  plain.weight_decay = 0;
  std::vector<train::AdamW::Group> groups = {{{}, decaying}, {{}, plain}};
  Tensors of_blocks;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_matrix = parameters[i].dims() >= 2;
    const bool is_muons = is_matrix && options_.optimizer == "muon" && names[i].name.starts_with("blocks.");
    (is_muons ? of_blocks : groups[is_matrix ? 0 : 1].parameters).push_back(parameters[i]);
  }
  std::erase_if(groups, [](const train::AdamW::Group& group) { return group.parameters.empty(); });
  if (of_blocks.empty()) return std::make_unique<train::AdamW>(groups);
  const train::MuonOptions orthogonal{
      .lr = options_.muon_lr, .weight_decay = options_.weight_decay, .dtype = device_ == cpu ? DType::f32 : DType::bf16};
  return std::make_unique<train::Muon>(std::vector<train::Muon::Group>{{of_blocks, orthogonal}}, groups);
}

/// An epoch reads all windows of T tokens in a random order, from a random first token on.
std::vector<std::int64_t> Training::rows(std::int64_t update) const {
  const std::int64_t epoch = update / per_epoch_, length = options_.length, count = options_.batch_size * options_.accumulate;
  const auto seed = static_cast<std::uint64_t>(options_.seed);
  if (epoch != epoch_) {
    order_ = text::epoch_order(static_cast<std::size_t>(windows_), seed, static_cast<std::uint64_t>(epoch));
    epoch_ = epoch;
  }
  const std::int64_t room = std::min(data_.train.size() - windows_ * length, length);
  const std::int64_t offset =
      static_cast<std::int64_t>(text::epoch_order(static_cast<std::size_t>(room), seed, static_cast<std::uint64_t>(epoch), 1)[0]);
  std::vector<std::int64_t> result;
  for (std::int64_t i = update % per_epoch_ * count; i < (update % per_epoch_ + 1) * count; ++i)
    result.push_back(offset + length * static_cast<std::int64_t>(order_[static_cast<std::size_t>(i % windows_)]));
  return result;
}

Training::Batch Training::load(const data::TokenWindows& windows, std::span<const std::int64_t> indices) const {
  const Tensors batch = windows.batch(indices);
  return {batch[0].to(device_), batch[1].to(device_)};
}

/// Of several ranks: this rank's rows.
train::UpdateBatch Training::batch(std::int64_t update) const {
  const std::vector<std::int64_t> first = rows(update);
  const std::int64_t length = options_.length, size = options_.batch_size;
  const std::int64_t multiple = train::rows_multiple(length, options_.width, model_.options.ff);
  const train::RankPart own = ranks_ ? ranks_->part(size, multiple) : train::part_of(size, multiple, 0, 1);
  train::UpdateBatch result{.parts = {}, .items = static_cast<std::int64_t>(first.size()) * length};
  for (std::int64_t part = 0; part < options_.accumulate; ++part) {
    const std::span rows = std::span(first).subspan(static_cast<std::size_t>(part * size + own.rows.first));
    result.parts.emplace_back(load(rows.first(static_cast<std::size_t>(own.rows.count))), static_cast<double>(size * length), own);
  }
  return result;
}

/// The mean loss of a token of the validation text, in windows that do not overlap, and the same in bits per byte of that text.
train::Validation Training::validate(const train::Trainer& trainer) {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  const std::int64_t length = std::min(options_.length, data_.valid.size() - 1);
  const std::int64_t count = std::max<std::int64_t>(std::min(options_.valid_tokens, data_.valid.size() - 1) / length, 1);
  const data::TokenWindows windows(data_.valid, length);
  Tensor total = zeros({}, DType::f32, device_);
  for (std::int64_t i = 0; i < count; i += options_.batch_size) {
    trainer.require_no_stop();
    std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min(options_.batch_size, count - i)));
    std::iota(rows.begin(), rows.end(), i);
    const Batch batch = load(windows, rows);
    add_(total, model_.loss(batch.ids, batch.labels, {.reduction = Reduction::sum}));
  }
  const double loss = trainer.require_finite(total.item<double>() / static_cast<double>(count * length));
  const double bits = loss / std::numbers::ln2 * static_cast<double>(data_.valid.size()) /
                      static_cast<double>(std::max<std::int64_t>(data_.valid_bytes, 1));
  train::Validation result{.rank = std::pair(-loss, 0.0),
                           .shown = fmt::format("update {:>6}  train loss {:.3f}  valid loss {:.3f}  {:.3f} bits per byte  {:.0f} tokens/s",
                                                trainer.updates(), trainer.train_loss(), loss, bits, trainer.items_per_second()),
                           .samples = {sample()}};
  result.numbers.set("valid_loss", loss).set("valid_bits_per_byte", bits).set("sample", result.samples.front().translation);
  model_.train();
  return result;
}

train::Sample Training::sample() const {
  const std::int64_t length = std::min(options_.length, data_.valid.size()),
                     known = std::max<std::int64_t>(std::min<std::int64_t>(length / 2, 32), 1);
  if (length <= known) return {};
  std::vector<std::int64_t> text(static_cast<std::size_t>(std::min<std::int64_t>(length, known + 96)));
  data_.valid.read(0, text);
  const auto middle = text.begin() + known;
  const nn::GenerateOptions search{.search = nn::Search::sample,
                                   .eos = options_.end_of_text,
                                   .max_new_tokens = text.end() - middle,
                                   .temperature = 0.8,
                                   .top_p = 0.95,
                                   .seed = static_cast<std::uint64_t>(options_.seed)};
  const NoGrad unrecorded;
  const auto written = nn::generate(model_, {nn::TokenIds(text.begin(), middle)}, {}, search);
  const auto decoded = [&](auto begin, auto end) {
    std::vector<std::int32_t> known_ids(begin, end);  // a model may have more tokens than the tokenizer
    std::erase_if(known_ids, [&](std::int32_t id) { return id >= static_cast<std::int32_t>(data_.tokenizer.vocab_size()); });
    return data_.tokenizer.decode(known_ids);
  };
  const nn::TokenIds& ids = written.front().front().tokens;
  return {decoded(text.begin(), middle), decoded(ids.begin(), ids.end()), decoded(middle, text.end())};
}

}  // namespace tern::lm
