#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

// Note [Beam search]: a sentence has B active hypotheses, and up to B complete ones. A step takes the 2 B most probable continuations of
// all active ones. Those of the first B that end with eos are complete; the first B without eos stay active (there are enough, since each
// hypothesis has only one continuation by eos). A stop rule or the limit also completes hypotheses. Of the complete ones the best B by
// score are kept. A sentence is done when it has B and the best active one, at its current length, scores no more than the worst of them:
// with length_penalty 0 none could become better, and otherwise it rarely does. So a beam of 1 is greedy decoding. (fairseq, Ott et al.,
// 2019, always stops at B complete ones.) All of it runs on the device, for all sentences at once; -inf marks a missing hypothesis.

namespace {

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

std::vector<std::vector<Hypothesis>> parts::beam_search(Continuation& text, const GenerateOptions& options) {
  return BeamSearch(text, options).run();
}

}  // namespace tern::nn
