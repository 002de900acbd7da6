#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "nn/generate.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/join.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern::nn {

namespace {

/// Note [Two rows]: on the CPU a product of a single row sums in another order than one of several (src/ops/cpu/matmul.cpp). A row that is
/// alone is read twice, so that its logits are the same bits as in company.
Tensor in_company(const Tensor& x) { return x.size(0) == 1 && x.device() == cpu ? cat({x, x}) : x; }

struct Padded {
  Tensor ids;      ///< (N, T), filled up with id 0
  Tensor lengths;  ///< (N)
  std::int64_t longest = 0;
};

Padded padded(const char* op, const std::vector<TokenIds>& rows, std::int64_t most, std::int64_t vocab, Device device) {
  Padded result;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    lengths.push_back(static_cast<std::int64_t>(rows[i].size()));
    if (lengths[i] < 1 || lengths[i] > most)
      fail(op, fmt::format("expected rows of 1 to {} tokens but row {} has {}", most, i, lengths[i]));
    for (std::int64_t id : rows[i])
      if (id < 0 || id >= vocab) fail(op, fmt::format("expected ids in [0, {}) but got {} in row {}", vocab, id, i));
    result.longest = std::max(result.longest, lengths[i]);
  }
  // On a GPU each shape of a product is planned at its first use: few widths.
  if (device != cpu) result.longest = std::min((result.longest + 7) / 8 * 8, most);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count * result.longest));
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), ids.begin() + static_cast<std::ptrdiff_t>(i) * result.longest);
  result.ids = in_company(Tensor::from(ids, {count, result.longest}, device));
  result.lengths = in_company(Tensor::from(lengths, {count}, device));
  return result;
}

/// What a decoder LM has read.
struct PromptState {
  DecoderLM model;  // shares the parameters; the mode is its own
  PromptOptions options;
  KvCache cache;
  std::int64_t longest = 0;  // of the rows with their new tokens
  std::int64_t reset = -1;   // the position of the next token, where it is one for all rows

  Tensor next(const Tensor& ids) {
    const NoGrad unrecorded;
    // A row that has ended but has not been dropped reads its last token again and again.
    if (longest >= cache.capacity()) copy_(cache.lengths, minimum(cache.lengths, static_cast<double>(cache.capacity() - 1)));
    const Tensor newest = unsqueeze(in_company(ids), 1);
    Tensor position_ids;
    if (reset >= 0) {
      const std::int64_t position = std::min(reset++, model.options.length - 1);
      position_ids = full(newest.shape(), static_cast<double>(position), DType::i64, newest.device());
    }
    const Tensor states = model.hidden(newest, {.causal = true}, position_ids, &cache);
    longest = std::min(longest + 1, cache.capacity());
    return slice(model.head.forward(squeeze(states, 1)), 0, 0, ids.size(0));
  }
};

/// What an encoder-decoder has read.
struct SourceState {
  EncoderDecoder model;  // shares the parameters; the mode is its own
  Memory memory;
  KvCache cache;
  std::int64_t count = 0;  // of each row's tokens

  Tensor next(const Tensor& ids) {
    const NoGrad unrecorded;
    const Tensor states = model.hidden(unsqueeze(in_company(ids), 1), memory, &cache);
    ++count;
    return slice(model.head.forward(squeeze(states, 1)), 0, 0, ids.size(0));
  }
};

}  // namespace

Continuation read_prompts(const DecoderLM& model, const std::vector<TokenIds>& prompts, const PromptOptions& options) {
  const NoGrad unrecorded;
  const NoAutotune untuned;
  const std::int64_t length = model.options.length, limit = options.max_length == 0 ? length : options.max_length;
  if (limit < 2 || limit > length)
    fail("read_prompts", fmt::format("expected max_length in [2, {}], the model's length, but got {}", length, limit));
  if (prompts.empty()) return {};
  const Device device = model.tokens.device();
  const Padded rows = padded("read_prompts", prompts, limit - 1, model.options.vocab, device);
  const std::int64_t width = rows.longest, batch = rows.ids.size(0);
  const auto state = std::make_shared<PromptState>(PromptState{model, options, model.cache(batch, limit), width, options.reset_position});
  state->model.eval();
  const bool resets = options.reset_position >= 0;
  const Tensor position_ids = resets ? reset_position_ids(rows.lengths, width, options.reset_position, length - 1) : Tensor();
  const AttentionMask mask{.causal = true, .prefix = options.is_prefix_visible ? rows.lengths : Tensor()};
  const Tensor states = state->model.hidden(rows.ids, mask, position_ids, &state->cache);
  copy_(state->cache.lengths, rows.lengths);
  // The head sees one position of each row, its last.
  const Tensor starts = arange(batch, DType::i64, device) * static_cast<double>(width);
  const Tensor last = embedding(reshape(states, {batch * width, states.size(2)}), starts + rows.lengths - 1);

  Continuation result;
  result.logits = slice(state->model.head.forward(last), 0, 0, static_cast<std::int64_t>(prompts.size()));
  for (const TokenIds& prompt : prompts) result.limits.push_back(limit - static_cast<std::int64_t>(prompt.size()));
  result.next = [state](const Tensor& ids) { return state->next(ids); };
  result.select = [state](const Tensor& chosen, bool) { state->cache.select(in_company(chosen), false, state->longest); };
  return result;
}

Continuation read_sources(const EncoderDecoder& model, const std::vector<TokenIds>& sources, const SourceOptions& options) {
  const NoGrad unrecorded;
  const NoAutotune untuned;
  const std::int64_t length = model.options.length, limit = options.max_length == 0 ? length : options.max_length;
  if (limit < 1 || limit > length)
    fail("read_sources", fmt::format("expected max_length in [1, {}], the model's length, but got {}", length, limit));
  if (options.start < 0 || options.start >= model.options.vocab)
    fail("read_sources", fmt::format("expected start in [0, {}) but got {}", model.options.vocab, options.start));
  if (sources.empty()) return {};
  const Device device = model.head.device();
  const Padded rows = padded("read_sources", sources, length, model.options.vocab, device);
  const auto count = static_cast<std::int64_t>(sources.size());
  const auto state = std::make_shared<SourceState>(SourceState{model, {}, model.cache(rows.ids.size(0), limit)});
  state->model.eval();
  state->memory = state->model.encode(rows.ids, rows.lengths);
  Continuation result;
  result.logits = state->next(full({count}, static_cast<double>(options.start), DType::i64, device));
  result.limits.assign(sources.size(), limit);
  result.next = [state](const Tensor& ids) { return state->next(ids); };
  result.select = [state](const Tensor& chosen, bool keeps_sources) {
    const bool keeps = keeps_sources && chosen.size(0) > 1;
    state->cache.select(in_company(chosen), keeps, state->count);
  };
  return result;
}

std::vector<std::vector<Hypothesis>> generate(const EncoderDecoder& model, const std::vector<TokenIds>& sources,
                                              const SourceOptions& source_options, const GenerateOptions& options, std::size_t batch_size) {
  std::vector<std::int64_t> lengths;
  for (const TokenIds& source : sources) lengths.push_back(static_cast<std::int64_t>(source.size()));
  const auto read = [&](const std::vector<std::size_t>& picks) {
    std::vector<TokenIds> batch;
    for (std::size_t pick : picks) batch.push_back(sources[pick]);
    return read_sources(model, batch, source_options);
  };
  return generate_in_batches(lengths, read, options, batch_size);
}

std::vector<std::vector<Hypothesis>> generate(const DecoderLM& model, const std::vector<TokenIds>& prompts,
                                              const PromptOptions& prompt_options, const GenerateOptions& options, std::size_t batch_size) {
  const auto limit = static_cast<std::size_t>(prompt_options.max_length == 0 ? model.options.length : prompt_options.max_length);
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<Hypothesis>> result(prompts.size(), {Hypothesis{}});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) fail("generate", fmt::format("expected prompts of one token or more but prompt {} is empty", i));
    if (prompts[i].size() >= limit) continue;
    rows.push_back(i);
    lengths.push_back(static_cast<std::int64_t>(prompts[i].size()));
  }
  const auto read = [&](const std::vector<std::size_t>& picks) {
    std::vector<TokenIds> batch;
    for (std::size_t pick : picks) batch.push_back(prompts[rows[pick]]);
    Continuation text = read_prompts(model, batch, prompt_options);
    for (std::size_t pick : picks) text.numbers.push_back(static_cast<std::int64_t>(rows[pick]));
    return text;
  };
  std::vector<std::vector<Hypothesis>> hypotheses = generate_in_batches(lengths, read, options, batch_size);
  for (std::size_t i = 0; i < rows.size(); ++i) result[rows[i]] = std::move(hypotheses[i]);
  return result;
}

}  // namespace tern::nn
