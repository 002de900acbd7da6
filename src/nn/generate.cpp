#include "nn/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

using detail::Places, detail::places_of, detail::rows_to_keep;

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

namespace {

/// Hypotheses on the device, one for each row.
struct Rows {
  Tensor tokens;                     ///< (R, T), i64
  Tensor counts;                     ///< (R), i64: number of valid tokens, eos included
  Tensor has_eos;                    ///< (R), bool: the last valid token is eos
  Tensor log_p;                      ///< (R), f32; in a beam search -inf: no hypothesis
  std::vector<std::size_t> origins;  ///< (R): row of `generate` that each belongs to
};

/// Copies the hypotheses to the host and adds each to the result of its row. Of a beam search, those with log_p = -inf are left out.
void collect(const Rows& rows, const GenerateOptions& options, std::vector<std::vector<Hypothesis>>& result) {
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

Tensor indices(const std::vector<std::int64_t>& places, Device device) {
  return Tensor::from(places, {static_cast<std::int64_t>(places.size())}, device);
}

std::vector<std::size_t> picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places) {
  std::vector<std::size_t> result;
  for (std::int64_t place : places) result.push_back(values[static_cast<std::size_t>(place)]);
  return result;
}

/// Throws Error that names the first row whose logits are invalid, and the token: from is_number (R), logits (R k, V) and the rows'
/// origins.
[[noreturn]] void fail_without_number(const Tensor& is_number, const Tensor& logits, const std::vector<std::size_t>& origins,
                                      std::int64_t step) {
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

// Note [Beam search]: a sentence has B active hypotheses, and up to B complete ones. A step takes the 2 B most probable continuations of
// all active ones. Those of the first B that end with eos are complete; the first B without eos stay active (there are enough, since each
// hypothesis has only one continuation by eos). A stop rule or the limit also completes hypotheses. Of the complete ones the best B by
// score are kept. A sentence is done when it has B and the best active one, at its current length, scores no more than the worst of them:
// with length_penalty 0 none could become better, and otherwise it rarely does. So a beam of 1 is greedy decoding. (fairseq, Ott et al.,
// 2019, always stops at B complete ones.) All of it runs on the device, for all sentences at once; -inf marks a missing hypothesis.

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Hypotheses of S sentences, n each.
struct Group {
  Tensor scores, log_p, counts, has_eos;  ///< (S, n)
  Tensor tokens;                          ///< (S, n, T)
};

/// Gathers x (S, n, ...) at indices (S, k) of the second dimension.
Tensor gathered(const Tensor& x, const Tensor& places) {
  const std::int64_t sentences = x.size(0), n = x.size(1);
  const Tensor starts = unsqueeze(arange(sentences, DType::i64, x.device()) * static_cast<double>(n), 1);
  Shape shape = x.shape(), flat = {sentences * n};
  for (int d = 2; d < x.dims(); ++d) flat.push_back(shape[d]);
  shape[1] = places.size(1);
  return reshape(index_select(reshape(x, flat), 0, reshape(places + starts, {sentences * places.size(1)})), shape);
}

/// The best n hypotheses of all groups, by score.
Group best_of(const std::vector<Group>& groups, std::int64_t n) {
  const auto join = [&](Tensor Group::* member) {
    Tensors parts;
    for (const Group& group : groups) parts.push_back(group.*member);
    return cat(parts, 1);
  };
  const Sorted best = topk(join(&Group::scores), n);
  const auto pick = [&](Tensor Group::* member) { return gathered(join(member), best.indices); };
  return {best.values, pick(&Group::log_p), pick(&Group::counts), pick(&Group::has_eos), pick(&Group::tokens)};
}

class BeamSearch {
 public:
  BeamSearch(Continuation& text, const GenerateOptions& options);
  std::vector<std::vector<Hypothesis>> run();

 private:
  std::int64_t sentences() const { return static_cast<std::int64_t>(origins_.size()); }
  double power() const { return std::pow(static_cast<double>(step_ + 1), options_.length_penalty); }
  /// Group of hypotheses with these log probabilities (S, n), if is_there.
  Group group(const Tensor& log_p, const Tensor& is_there, const Tensor& tokens, bool has_eos) const;
  std::int64_t advance();
  void retire(const Tensor& rows, const std::vector<std::size_t>& origins);
  void drop_done(std::int64_t keeping);

  Continuation& text_;
  const GenerateOptions& options_;
  const std::int64_t beam_;
  const Device device_;
  std::vector<std::vector<Hypothesis>> result_;
  std::vector<std::size_t> origins_;  // of the current sentences
  std::int64_t min_limit_ = 0, step_ = 0;
  Tensor limits_;     // (S, 1)
  Tensor active_;     // (S, 1), bool
  Tensor starts_;     // (S, 1): the first row of each sentence
  Tensor log_p_;      // (S, B), of the active hypotheses
  Tensor tokens_;     // (S, B, step)
  Tensor rows_;       // (S, B): rows that they continue
  Tensor next_;       // (S, B): their last tokens
  Tensor is_number_;  // (S, 1), bool: the last logits were valid
  Group complete_;
};

BeamSearch::BeamSearch(Continuation& text, const GenerateOptions& options)
    : text_(text), options_(options), beam_(options.beam), device_(text.logits.device()), result_(text.limits.size()) {
  const auto count = static_cast<std::int64_t>(text.limits.size());
  if (text.logits.size(1) < 2) fail("generate", "expected a vocabulary of 2 tokens or more for a beam search but got 1");
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    origins_.push_back(static_cast<std::size_t>(i));
    rows.insert(rows.end(), static_cast<std::size_t>(beam_), i);
  }
  if (beam_ > 1) {
    const Tensor repeated = indices(rows, device_);
    text.select(repeated, false);
    text.logits = index_select(text.logits, 0, repeated);
  }
  min_limit_ = *std::min_element(text.limits.begin(), text.limits.end());
  limits_ = unsqueeze(indices(text.limits, device_), 1);
  active_ = full({count, 1}, 1, DType::boolean, device_);
  starts_ = unsqueeze(arange(count, DType::i64, device_) * static_cast<double>(beam_), 1);
  // All rows of a sentence are equal at first: only one of them is active.
  const Tensor is_first = eq(arange(beam_, DType::i64, device_), 0);
  log_p_ = contiguous(broadcast_to(where(is_first, zeros({beam_}, DType::f32, device_), -infinity), {count, beam_}));
  const Tensor none = full({count, beam_}, -infinity, DType::f32, device_);
  complete_ = {none, none, zeros({count, beam_}, DType::i64, device_), zeros({count, beam_}, DType::boolean, device_), {}};
}

Group BeamSearch::group(const Tensor& log_p, const Tensor& is_there, const Tensor& tokens, bool has_eos) const {
  const Tensor known = where(is_there, log_p, -infinity);
  return {known / power(), known, full(log_p.shape(), static_cast<double>(step_ + 1), DType::i64, device_),
          full(log_p.shape(), has_eos ? 1 : 0, DType::boolean, device_), tokens};
}

/// Appends a token to all active hypotheses. Returns the number of sentences that are not done, or -1 if a logit is invalid.
std::int64_t BeamSearch::advance() {
  const std::int64_t count = sentences(), vocab = text_.logits.size(1);
  const Tensor fresh = reshape(log_softmax(cast(text_.logits, DType::f32)), {count, beam_, vocab});
  const Sorted top = topk(reshape(unsqueeze(log_p_, 2) + fresh, {count, beam_ * vocab}), 2 * beam_);
  // topk counts NaN as largest. Sentences that are done are ignored.
  is_number_ = logical_or(gt(slice(top.values, 1, 0, 1), -infinity), logical_not(active_));
  const Tensor parents = cast(cast(top.indices, DType::f64) / static_cast<double>(vocab), DType::i64);
  const Tensor ids = top.indices - parents * static_cast<double>(vocab), is_end = eq(ids, static_cast<double>(options_.eos));

  const auto first = [&](const Tensor& x) { return slice(x, 1, 0, beam_); };
  const Tensor filling = zeros({count, beam_, 1}, DType::i64, device_);
  const auto longer = [&](const Tensor& places, const Tensor& last) {
    return tokens_.defined() ? cat({gathered(tokens_, places), last}, 2) : last;
  };
  const Tensor ends = logical_and(first(is_end), active_);
  const Group ended = group(first(top.values), ends, longer(first(parents), filling), true);

  // The first B without eos, in their order: topk takes the first among equals.
  const Tensor going = topk(cast(logical_not(is_end), DType::i32), beam_).indices;
  log_p_ = gather(top.values, 1, going);
  const Tensor from = gather(parents, 1, going);
  next_ = gather(ids, 1, going);
  tokens_ = longer(from, unsqueeze(next_, 2));
  rows_ = from + starts_;

  if (complete_.tokens.defined()) complete_.tokens = cat({complete_.tokens, filling}, 2);
  else complete_.tokens = filling;
  std::vector<Group> groups = {complete_, ended};
  if (options_.stop || step_ + 1 >= min_limit_) {
    Tensor stops = broadcast_to(le(limits_, static_cast<double>(step_ + 1)), log_p_.shape());
    if (options_.stop) stops = logical_or(stops, reshape(options_.stop(reshape(tokens_, {count * beam_, step_ + 1})), log_p_.shape()));
    groups.push_back(group(log_p_, logical_and(stops, active_), tokens_, false));
    log_p_ = where(stops, -infinity, log_p_);
  }
  complete_ = best_of(groups, beam_);
  const Tensor worst = slice(complete_.scores, 1, beam_ - 1);
  active_ = logical_and(active_, gt(max(log_p_, {1}, true) / power(), worst));
  log_p_ = where(active_, log_p_, -infinity);
  return where(all(is_number_), sum(active_), -1.0).item<std::int64_t>();
}

/// Copies the results of some of the sentences to the host.
void BeamSearch::retire(const Tensor& rows, const std::vector<std::size_t>& origins) {
  const std::int64_t n = options_.n_best, count = rows.size(0);
  const auto of = [&](const Tensor& x) { return reshape(index_select(slice(x, 1, 0, n), 0, rows), {count * n}); };
  const Tensor tokens = reshape(index_select(slice(complete_.tokens, 1, 0, n), 0, rows), {count * n, complete_.tokens.size(2)});
  Rows done{tokens, of(complete_.counts), of(complete_.has_eos), of(complete_.log_p), {}};
  for (std::size_t origin : origins) done.origins.insert(done.origins.end(), static_cast<std::size_t>(n), origin);
  collect(done, options_, result_);
}

/// Keeps `keeping` sentences, among them all that are not done.
void BeamSearch::drop_done(std::int64_t keeping) {
  const Places split = places_of(squeeze(active_, 1), keeping);
  retire(indices(split.dropped, device_), picked(origins_, split.dropped));
  origins_ = picked(origins_, split.kept);
  const Tensor kept = indices(split.kept, device_);
  for (Tensor* x : {&limits_, &active_, &log_p_, &tokens_, &rows_, &next_, &complete_.scores, &complete_.log_p, &complete_.counts,
                    &complete_.has_eos, &complete_.tokens})
    *x = index_select(*x, 0, kept);
  starts_ = slice(starts_, 0, 0, sentences());
  min_limit_ = std::numeric_limits<std::int64_t>::max();
  for (std::size_t origin : origins_) min_limit_ = std::min(min_limit_, text_.limits[origin]);
}

std::vector<std::vector<Hypothesis>> BeamSearch::run() {
  while (true) {
    const std::int64_t left = advance();
    if (left < 0) fail_without_number(squeeze(is_number_, 1), text_.logits, origins_, step_);
    if (left == 0) break;
    const std::int64_t keeping = rows_to_keep(left, sentences(), device_);
    const bool drops = keeping < sentences();
    if (drops) drop_done(keeping);
    const std::int64_t rows = sentences() * beam_;
    if (beam_ > 1 || drops) text_.select(reshape(rows_, {rows}), !drops);
    text_.logits = text_.next(reshape(next_, {rows}));
    ++step_;
  }
  retire(arange(sentences(), DType::i64, device_), origins_);
  return std::move(result_);
}

}  // namespace

static void check(const GenerateOptions& o) {
  if (o.max_new_tokens < 0) fail("generate", fmt::format("expected max_new_tokens >= 0 but got {}", o.max_new_tokens));
  if (!std::isfinite(o.length_penalty)) fail("generate", fmt::format("expected a finite length_penalty but got {}", o.length_penalty));
  if (o.n_best < 1) fail("generate", fmt::format("expected n_best >= 1 but got {}", o.n_best));
  if (o.search == Search::greedy && o.n_best != 1) fail("generate", fmt::format("expected n_best = 1 of greedy but got {}", o.n_best));
  if (o.search == Search::beam && o.beam < o.n_best)
    fail("generate", fmt::format("expected a beam >= n_best but got {} and {}", o.beam, o.n_best));
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
  if (options.on_token)
    text.next = [&options, next = std::move(text.next)](const Tensor& ids) {
      options.on_token();
      return next(ids);
    };
  const NoGrad unrecorded;
  const NoAutotune untuned;
  return options.search == Search::beam ? BeamSearch(text, options).run() : pick_tokens(text, options);
}

}  // namespace tern::nn
