#include <bit>
#include <cstdint>

#include "nn/detail/search.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Note [Samples]: a token is sampled by inversion: of the candidate tokens, in a fixed order, the first at which the cumulative sum of
// probabilities exceeds u times the total. Each token takes one uniform number u of 53 bits, from the words that Philox gives for (seed,
// row's number, sample, step): so a row's samples depend neither on its place in a batch nor on the other rows. Probabilities are summed as
// whole numbers, the largest being 2^62 / V: their sums are exact in any order, so that a token of probability 0 is never reached.
namespace tern::nn::detail {

namespace {

/// Uniform numbers of several steps, computed on the host and copied to the device together.
class UniformNumbers {
 public:
  /// Row i is sample i % samples of the row with number numbers[i / samples].
  UniformNumbers(std::uint64_t seed, std::vector<std::int64_t> numbers, std::int64_t samples, Device device)
      : seed_(seed), numbers_(std::move(numbers)), samples_(samples), device_(device) {}

  /// (R), f64, for the rows with these initial indices.
  Tensor uniform(const std::vector<std::size_t>& places, std::int64_t step) {
    constexpr std::int64_t steps = 32;
    if (step % steps == 0) {
      std::vector<double> values;
      for (std::size_t place : places)
        for (std::int64_t s = step; s < step + steps; ++s) {
          const auto row = static_cast<std::int64_t>(place);
          const auto position = static_cast<std::uint64_t>(row % samples_) << 32 | static_cast<std::uint64_t>(s);
          const auto stream = static_cast<std::uint64_t>(numbers_[static_cast<std::size_t>(row / samples_)]);
          const PhiloxBlock block = philox(seed_, position, stream);
          values.push_back(double(block.words[0]) * 0x1p-32 + double(block.words[1] >> 11) * 0x1p-53);
        }
      ahead_ = Tensor::from(values, {static_cast<std::int64_t>(places.size()), steps}, device_);
    }
    return tern::select(ahead_, 1, step % steps);
  }
  void select(const Tensor& rows) {
    if (ahead_.defined()) ahead_ = index_select(ahead_, 0, rows);
  }

 private:
  std::uint64_t seed_;
  std::vector<std::int64_t> numbers_;
  std::int64_t samples_;
  Device device_;
  Tensor ahead_;
};

/// Samples a token for each row of logits (R, V), with u (R), from those that the options allow. Note [Samples].
Tensor drawn(const Tensor& logits, const Tensor& largest, const Tensor& u, const GenerateOptions& options) {
  Tensor x = logits, ids;
  if (options.top_p < 1 || (options.top_k > 0 && options.top_k < logits.size(1))) {
    const Sorted sorted = options.top_k > 0 ? topk(x, std::min(options.top_k, x.size(1))) : sort(x, -1, true);
    x = sorted.values;
    ids = sorted.indices;
  }
  // Subtracted before the division, so that no temperature makes a logit infinite.
  Tensor p = exp((x - unsqueeze(largest, 1)) / options.temperature);
  if (options.top_p < 1) {
    const Tensor share = p / sum(p, {1}, true), before = cumsum(share, 1) - share;
    p = where(lt(before, options.top_p), p, 0.0);  // the sum before the first is exactly 0: the first stays
  }
  // The product by a power of 2 is exact. A row of NaN, which is an error or has ended, is one of zeros here: cast makes it so.
  const auto share = static_cast<double>((std::uint64_t(1) << 62) / std::bit_ceil(static_cast<std::uint64_t>(p.size(1))));
  const Tensor running = cumsum(cast(p * share, DType::i64), 1), total = slice(running, 1, p.size(1) - 1);
  const Tensor target = minimum(cast(unsqueeze(u, 1) * cast(total, DType::f64), DType::i64), total - 1);
  const Tensor place = sum(le(running, target), {1}, true);
  return squeeze(ids.defined() ? gather(ids, 1, place) : place, 1);
}

}  // namespace

std::vector<std::vector<Hypothesis>> pick_tokens(Continuation& text, const GenerateOptions& options) {
  const Device device = text.logits.device();
  const bool draws_tokens = options.search == Search::sample && static_cast<float>(options.temperature) > 0;
  const std::int64_t samples = options.search == Search::sample ? options.n_best : 1;
  std::vector<std::vector<Hypothesis>> result(text.limits.size());
  std::vector<std::int64_t> row_of, row_limits;
  std::vector<std::size_t> places;  // initial indices of the current rows
  std::int64_t limit = 0;
  for (std::size_t i = 0; i < text.limits.size(); ++i)
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      places.push_back(row_of.size());
      row_of.push_back(static_cast<std::int64_t>(i));
      row_limits.push_back(text.limits[i]);
      limit = std::max(limit, text.limits[i]);
    }
  if (samples > 1) {
    const Tensor rows = indices(row_of, device);
    text.select(rows, false);
    text.logits = index_select(text.logits, 0, rows);
  }
  UniformNumbers numbers(options.seed, text.numbers, samples, device);
  auto count = static_cast<std::int64_t>(row_of.size());
  Tensor limits = indices(row_limits, device), tokens = zeros({count, limit}, DType::i64, device);
  Tensor counts = zeros({count}, DType::i64, device), has_eos = zeros({count}, DType::boolean, device);
  Tensor active = full({count}, 1, DType::boolean, device), log_p = zeros({count}, DType::f32, device);

  const auto retire = [&](const Tensor& rows, const std::vector<std::size_t>& leaving, std::int64_t width) {
    const auto of = [&](const Tensor& x) { return index_select(x, 0, rows); };
    Rows done{of(slice(tokens, 1, 0, width)), of(counts), of(has_eos), of(log_p), {}};
    for (std::size_t place : leaving) done.origins.push_back(static_cast<std::size_t>(row_of[place]));
    collect(done, options, result);
  };
  // Samples of a row may end in any order, and are returned in the order drawn: all at the end.
  const bool drops_rows = samples == 1;
  for (std::int64_t step = 0;; ++step) {
    const Tensor logits = cast(text.logits, DType::f32);
    Tensor next, largest;
    if (draws_tokens) {
      largest = max(logits, {1});
      next = drawn(logits, largest, numbers.uniform(places, step), options);
    } else {
      next = argmax(logits);
    }
    const Tensor taken = squeeze(gather(logits, 1, unsqueeze(next, 1)), 1);
    if (!largest.defined()) largest = taken;
    // max and argmax count NaN as largest. Rows that have ended are ignored.
    const Tensor is_number = logical_or(isfinite(largest), logical_not(active));
    const Tensor is_end = eq(next, static_cast<double>(options.eos));
    if (options.has_scores) log_p = log_p + where(active, taken - logsumexp(logits, {1}), 0.0);
    copy_(select(tokens, 1, step), next);
    counts = counts + cast(active, DType::i64);
    has_eos = logical_or(has_eos, logical_and(active, is_end));
    active = logical_and(active, logical_and(logical_not(is_end), gt(limits, static_cast<double>(step + 1))));
    if (options.stop) active = logical_and(active, logical_not(options.stop(slice(tokens, 1, 0, step + 1))));

    const std::int64_t left = where(all(is_number), sum(active), -1.0).item<std::int64_t>();
    if (left < 0) {
      for (std::size_t& place : places) place = static_cast<std::size_t>(row_of[place]);
      fail_without_number(is_number, logits, places, step);
    }
    if (left == 0) {
      retire(arange(count, DType::i64, device), places, step + 1);
      return result;
    }
    const std::int64_t keeping = drops_rows ? rows_to_keep(left, count, device) : count;
    if (keeping < count) {
      const Places split = places_of(active, keeping);
      retire(indices(split.dropped, device), picked(places, split.dropped), step + 1);
      places = picked(places, split.kept);
      count = keeping;
      const Tensor rows = indices(split.kept, device);
      for (Tensor* x : {&next, &limits, &tokens, &counts, &has_eos, &active, &log_p}) *x = index_select(*x, 0, rows);
      numbers.select(rows);
      text.select(rows, false);
    }
    text.logits = text.next(next);
  }
}

}  // namespace tern::nn::detail
