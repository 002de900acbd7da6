#include "nn/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

namespace {

void check(const DecoderLM& model, const std::vector<TokenIds>& prompts, const GreedyOptions& options) {
  const DecoderLMOptions& o = model.options;
  if (options.max_length < 1 || options.max_length > o.length)
    fail("greedy", fmt::format("expected max_length in [1, {}], the model's length, but got {}", o.length, options.max_length));
  if (options.batch_size < 1) fail("greedy", "expected batch_size >= 1 but got 0");
  for (std::int64_t id : {options.eos, options.pad})
    if (id < 0 || id >= o.vocab) fail("greedy", fmt::format("expected eos and pad in [0, {}) but got {}", o.vocab, id));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) fail("greedy", fmt::format("expected prompts of one token or more but prompt {} is empty", i));
    for (std::int64_t id : prompts[i])
      if (id < 0 || id >= o.vocab) fail("greedy", fmt::format("expected ids in [0, {}) but got {} in prompt {}", o.vocab, id, i));
  }
}

/// Continues the prompts rows[i], all shorter than max_length. Row i has lengths[i] tokens in ids (B, max_length), then padding: causality
/// keeps it from the tokens before, so that a row's result does not depend on the others' lengths.
std::vector<TokenIds> decode(const DecoderLM& model, const std::vector<const TokenIds*>& rows, const GreedyOptions& options) {
  const auto batch = static_cast<std::int64_t>(rows.size());
  const std::int64_t limit = options.max_length;
  const Device device = model.tokens.weight.device();
  std::vector<std::int64_t> padded(static_cast<std::size_t>(batch * limit), options.pad), prompt_lengths;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i]->begin(), rows[i]->end(), padded.begin() + static_cast<std::int64_t>(i) * limit);
    prompt_lengths.push_back(static_cast<std::int64_t>(rows[i]->size()));
  }
  Tensor ids = Tensor::from(padded, {batch, limit}, device);
  Tensor lengths = Tensor::from(prompt_lengths, {batch}, device);
  const Tensor prompt_ends = lengths, columns = reshape(arange(limit, DType::i64, device), {1, limit});
  Tensor active = full({batch}, 1, DType::boolean, device), is_number = active;

  const std::int64_t width = *std::max_element(prompt_lengths.begin(), prompt_lengths.end());
  const bool resets = options.reset_position >= 0;
  const std::int64_t last_position = model.options.length - 1;
  KvCache cache = model.cache(batch, limit);
  Tensor states = model.hidden(slice(ids, 1, 0, width), {.causal = true, .prefix = options.is_prefix_visible ? prompt_ends : Tensor()},
                               resets ? reset_position_ids(prompt_ends, width, options.reset_position, last_position) : Tensor(), &cache);
  // The head sees one position of each row, its last.
  const Tensor row_starts = arange(batch, DType::i64, device) * static_cast<double>(width);
  states = embedding(reshape(states, {batch * width, states.size(2)}), row_starts + lengths - 1);
  while (true) {
    const Tensor logits = model.head.forward(states), next = argmax(logits);
    // A NaN is an extreme to argmax: where one is among the logits, it is the one taken. Rows that have ended do not count.
    const Tensor taken = squeeze(gather(logits, 1, unsqueeze(next, 1)), 1);
    is_number = logical_and(is_number, logical_or(eq(taken, taken), logical_not(active)));
    active = logical_and(active, ne(next, static_cast<double>(options.eos)));
    const Tensor is_here = logical_and(eq(columns, unsqueeze(lengths, 1)), unsqueeze(active, 1));
    ids = where(is_here, unsqueeze(next, 1), ids);
    lengths = lengths + cast(active, DType::i64);
    active = logical_and(active, lt(lengths, static_cast<double>(limit)));
    if (!any(active).item<bool>()) break;
    // A row that has ended reads some token again and again, in the place of its last one.
    copy_(cache.lengths, lengths - 1);
    Tensor position_ids;
    if (resets) position_ids = minimum(unsqueeze(lengths - 1 - prompt_ends + double(options.reset_position), 1), double(last_position));
    states = squeeze(model.hidden(unsqueeze(next, 1), {.causal = true}, position_ids, &cache), 1);
  }

  if (!all(is_number).item<bool>())
    fail("greedy", "expected logits that are numbers but the model made a NaN: AnomalyMode names the module");
  const std::vector<std::int64_t> tokens = ids.to_vector<std::int64_t>(), ends = lengths.to_vector<std::int64_t>();
  std::vector<TokenIds> result;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = tokens.begin() + static_cast<std::int64_t>(i) * limit;
    result.emplace_back(row + prompt_lengths[i], row + ends[i]);
  }
  return result;
}

}  // namespace

std::vector<TokenIds> greedy(const DecoderLM& model, const std::vector<TokenIds>& prompts, const GreedyOptions& options) {
  check(model, prompts, options);
  const NoGrad unrecorded;
  DecoderLM quiet = model;  // shares the parameters; the mode is its own
  quiet.eval();
  // Prompts of like length together: a row's padding costs as much as its tokens.
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    if (static_cast<std::int64_t>(prompts[i].size()) < options.max_length) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return prompts[a].size() < prompts[b].size(); });
  std::vector<TokenIds> result(prompts.size());
  for (std::size_t first = 0; first < order.size(); first += options.batch_size) {
    const std::size_t last = std::min(order.size(), first + options.batch_size);
    std::vector<const TokenIds*> rows;
    for (std::size_t i = first; i < last; ++i) rows.push_back(&prompts[order[i]]);
    std::vector<TokenIds> continuations = decode(quiet, rows, options);
    for (std::size_t i = first; i < last; ++i) result[order[i]] = std::move(continuations[i - first]);
  }
  return result;
}

}  // namespace tern::nn
