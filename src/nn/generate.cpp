#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "nn/search_parts.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

using detail::Places, detail::places_of, detail::rows_to_keep;
using parts::Rows, parts::collect, parts::fail_without_number, parts::indices, parts::picked;

std::int64_t detail::rows_to_keep(std::int64_t active, std::int64_t rows, Device device) {
  if (device == cpu) return 4 * active <= 3 * rows ? active : rows;
  std::int64_t kept = rows;
  while (kept > 1 && active <= kept / 2) kept /= 2;
  return kept;
}

Places detail::places_of(const Tensor& is_kept, std::int64_t least) {
  Places places;
  const auto flags = cast(is_kept, DType::i64).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < flags.size(); ++i) (flags[i] ? places.kept : places.dropped).push_back(static_cast<std::int64_t>(i));
  for (; static_cast<std::int64_t>(places.kept.size()) < least && !places.dropped.empty(); places.dropped.pop_back())
    places.kept.push_back(places.dropped.back());
  return places;
}

void parts::collect(const Rows& rows, const GenerateOptions& options, std::vector<std::vector<Hypothesis>>& result) {
  const std::int64_t width = rows.tokens.size(1);
  const auto tokens = rows.tokens.to_vector<std::int64_t>(), counts = rows.counts.to_vector<std::int64_t>();
  const std::vector<float> log_p = rows.log_p.to_vector<float>();
  const auto has_eos = cast(rows.has_eos, DType::i64).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < rows.origins.size(); ++i) {
    if (options.search == Search::beam && log_p[i] == -std::numeric_limits<float>::infinity()) continue;
    const auto first = tokens.begin() + static_cast<std::int64_t>(i) * width;
    const double score = log_p[i] / std::pow(static_cast<double>(counts[i]), options.length_penalty);
    result[rows.origins[i]].push_back({{first, first + counts[i] - has_eos[i]}, log_p[i], score});
  }
}

Tensor parts::indices(const std::vector<std::int64_t>& places, Device device) {
  return Tensor::from(places, {static_cast<std::int64_t>(places.size())}, device);
}

std::vector<std::size_t> parts::picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places) {
  std::vector<std::size_t> result;
  for (std::int64_t place : places) result.push_back(values[static_cast<std::size_t>(place)]);
  return result;
}

void parts::fail_without_number(const Tensor& is_number, const Tensor& logits, const std::vector<std::size_t>& origins, std::int64_t step) {
  const Places places = places_of(is_number);
  const std::int64_t row = places.dropped.empty() ? 0 : places.dropped.front(), rows = logits.size(0) / is_number.size(0);
  const auto values = cast(slice(logits, 0, row * rows, (row + 1) * rows), DType::f32).to_vector<float>();
  std::string found = "no token of a probability above 0";
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(values[i] < std::numeric_limits<float>::infinity())) {
      found = fmt::format("{} at token {}", std::isnan(values[i]) ? "NaN" : "+inf", i % static_cast<std::size_t>(logits.size(1)));
      break;
    }
  fail("generate",
       fmt::format("expected logits below +inf, none of them NaN and not all -inf, but row {} has {} in those for its new token "
                   "{}: AnomalyMode names the module",
                   origins[static_cast<std::size_t>(row)], found, step));
}

namespace {

// Note [Samples]: a token is sampled by inversion: of the candidate tokens, in a fixed order, the first at which the cumulative sum of
// probabilities exceeds u times the total. Each token takes one uniform number u of 53 bits, from the words that Philox gives for (seed,
// row's number, sample, step): so a row's samples depend neither on its place in a batch nor on the other rows. Probabilities are summed as
// whole numbers, the largest being 2^62 / V: their sums are exact in any order, so that a token of probability 0 is never reached.

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

/// Repetition penalty: which tokens of the vocabulary each row has, (R, V) of bool.
class SeenTokens {
 public:
  /// Row i goes on from the prompt of text row rows[i]. Does nothing if the penalty is 1.
  SeenTokens(const Continuation& text, const std::vector<std::int64_t>& rows, double penalty) : penalty_(penalty) {
    if (penalty == 1) return;
    const std::int64_t vocab = text.logits.size(1);
    std::vector<std::uint8_t> seen(rows.size() * static_cast<std::size_t>(vocab));
    for (std::size_t i = 0; i < rows.size() && !text.prompts.empty(); ++i)
      for (const std::int64_t id : text.prompts[static_cast<std::size_t>(rows[i])])
        if (id >= 0 && id < vocab) seen[i * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(id)] = 1;
    seen_ = cast(Tensor::from(seen, {static_cast<std::int64_t>(rows.size()), vocab}, text.logits.device()), DType::boolean);
  }
  /// Logits (R, V) from which the next tokens are chosen.
  Tensor penalized(const Tensor& logits) const {
    if (!seen_.defined()) return logits;
    return where(seen_, where(lt(logits, 0.0), logits * penalty_, logits / penalty_), logits);
  }
  void add(const Tensor& next) {
    if (seen_.defined()) seen_ = scatter(seen_, 1, unsqueeze(next, 1), 1.0);
  }
  void select(const Tensor& rows) {
    if (seen_.defined()) seen_ = index_select(seen_, 0, rows);
  }

 private:
  double penalty_;
  Tensor seen_;
};

/// Greedy decoding and sampling: one hypothesis at a time.
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
  SeenTokens seen(text, row_of, options.repetition_penalty);
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
    const Tensor logits = cast(text.logits, DType::f32), penalized = seen.penalized(logits);
    Tensor next, largest;
    if (draws_tokens) {
      largest = max(penalized, {1});
      next = drawn(penalized, largest, numbers.uniform(places, step), options);
    } else {
      next = argmax(penalized);
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
      seen.select(rows);
      text.select(rows, false);
    }
    seen.add(next);
    text.logits = text.next(next);
  }
}

}  // namespace

static void check(const GenerateOptions& o) {
  if (o.max_new_tokens < 0) fail("generate", fmt::format("expected max_new_tokens >= 0 but got {}", o.max_new_tokens));
  if (!std::isfinite(o.length_penalty)) fail("generate", fmt::format("expected a finite length_penalty but got {}", o.length_penalty));
  if (o.n_best < 1) fail("generate", fmt::format("expected n_best >= 1 but got {}", o.n_best));
  if (o.search == Search::greedy && o.n_best != 1) fail("generate", fmt::format("expected n_best = 1 of greedy but got {}", o.n_best));
  if (o.search == Search::beam && o.beam < o.n_best)
    fail("generate", fmt::format("expected a beam >= n_best but got {} and {}", o.beam, o.n_best));
  if (!(o.repetition_penalty > 0) || !std::isfinite(o.repetition_penalty))
    fail("generate", fmt::format("expected a finite repetition_penalty > 0 but got {}", o.repetition_penalty));
  if (o.search == Search::beam && o.repetition_penalty != 1)
    fail("generate", fmt::format("expected no repetition_penalty in a beam search but got {}: use greedy or sample", o.repetition_penalty));
  if (o.search != Search::sample) return;
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail("generate", fmt::format("expected a finite temperature >= 0 but got {}", o.temperature));
  if (o.top_k < 0) fail("generate", fmt::format("expected top_k >= 0 but got {}", o.top_k));
  if (!(o.top_p > 0 && o.top_p <= 1)) fail("generate", fmt::format("expected top_p in (0, 1] but got {}", o.top_p));
}

std::vector<std::vector<Hypothesis>> generate(Continuation text, const GenerateOptions& options) {
  check(options);
  const auto rows = static_cast<std::int64_t>(text.limits.size());
  if (rows == 0) return {};
  if (text.logits.dims() != 2 || text.logits.size(0) != rows || text.logits.size(1) < 1 || !is_floating(text.logits.dtype()))
    fail("generate", fmt::format("expected floating logits ({}, V), a row for each limit, but got {} {}", rows, name(text.logits.dtype()),
                                 to_string(text.logits.shape())));
  for (std::int64_t& limit : text.limits) {
    if (limit < 1) fail("generate", fmt::format("expected limits >= 1 but got {}", limit));
    if (options.max_new_tokens > 0) limit = std::min(limit, options.max_new_tokens);
  }
  const std::int64_t copies = options.search == Search::beam ? options.beam : options.n_best, most = std::int64_t(1) << 30;
  if (copies > most / rows)
    fail("generate", fmt::format("expected at most 2^30 hypotheses at once but got {} of each of {} rows", copies, rows));
  // Scores are f32: beyond its range no hypothesis would be better than another.
  const auto longest = static_cast<double>(*std::max_element(text.limits.begin(), text.limits.end()));
  if (!(std::pow(longest, std::abs(options.length_penalty)) < 1e34))
    fail("generate",
         fmt::format("expected a length_penalty whose power of {} tokens is below 1e34 but got {}", longest, options.length_penalty));
  if (text.numbers.empty()) {
    text.numbers.resize(text.limits.size());
    std::iota(text.numbers.begin(), text.numbers.end(), std::int64_t{0});
  }
  if (text.numbers.size() != text.limits.size())
    fail("generate", fmt::format("expected {} numbers, one for each row, but got {}", rows, text.numbers.size()));
  for (std::int64_t& number : text.numbers) number += options.first_number;
  if (!text.prompts.empty() && text.prompts.size() != text.limits.size())
    fail("generate", fmt::format("expected {} prompts, one for each row, or none, but got {}", rows, text.prompts.size()));
  if (options.on_token)
    text.next = [&options, next = std::move(text.next)](const Tensor& ids) {
      options.on_token();
      return next(ids);
    };
  const NoGrad unrecorded;
  const NoAutotune untuned;
  return options.search == Search::beam ? parts::beam_search(text, options) : pick_tokens(text, options);
}

}  // namespace tern::nn
