#include "nn/likelihood.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/loss.h"

namespace tern::nn {

std::vector<double> log_likelihoods(const DecoderLM& model, const std::vector<ScoredTokens>& rows, std::size_t batch_size) {
  constexpr const char* where = "log_likelihoods";
  constexpr std::int64_t ignored = -100;
  const auto longest = static_cast<std::size_t>(model.options.length) + 1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [tokens, first] = rows[i];
    if (tokens.size() < 2 || tokens.size() > longest || first < 1 || first > tokens.size())
      fail(where, fmt::format("expected rows of 2 to {} tokens, scored from the second or a later one, but row {} has {}, scored from {}",
                              longest, i, tokens.size(), first));
    for (const std::int64_t id : tokens)
      if (id < 0 || id >= model.options.vocab)
        fail(where, fmt::format("expected ids in [0, {}) but got {} in row {}", model.options.vocab, id, i));
  }
  if (batch_size < 1) fail(where, "expected batch_size >= 1 but got 0");
  const NoGrad unrecorded;
  DecoderLM evaluated = model;  // shares the parameters; the mode is its own
  evaluated.eval();
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rows[a].tokens.size() < rows[b].tokens.size(); });
  std::vector<double> result(rows.size());
  for (std::size_t begin = 0; begin < order.size(); begin += batch_size) {
    const std::size_t end = std::min(order.size(), begin + batch_size), width = rows[order[end - 1]].tokens.size() - 1;
    std::vector<std::int64_t> ids((end - begin) * width), labels((end - begin) * width, ignored);
    for (std::size_t i = begin; i < end; ++i) {
      const auto& [tokens, first] = rows[order[i]];
      const auto at = static_cast<std::ptrdiff_t>((i - begin) * width), from = static_cast<std::ptrdiff_t>(first);
      std::copy(tokens.begin(), tokens.end() - 1, ids.begin() + at);
      std::copy(tokens.begin() + from, tokens.end(), labels.begin() + at + from - 1);
    }
    const Shape shape{static_cast<std::int64_t>(end - begin), static_cast<std::int64_t>(width)};
    const Device device = model.tokens.device();
    const Tensor losses = evaluated.loss(Tensor::from(ids, shape, device), Tensor::from(labels, shape, device),
                                         {.ignore_index = ignored, .reduction = Reduction::none});
    const std::vector<float> values = losses.to_vector<float>();
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t t = 0; t < width; ++t) result[order[i]] -= values[(i - begin) * width + t];
  }
  return result;
}

double log_likelihood(const DecoderLM& model, const TokenIds& tokens, std::size_t first, std::size_t overlap, std::size_t batch_size) {
  const auto length = static_cast<std::size_t>(model.options.length);
  if (overlap >= length)
    fail("log_likelihood", fmt::format("expected an overlap below the model's length, {}, but got {}", length, overlap));
  double sum = 0;
  std::vector<ScoredTokens> windows;
  for (std::size_t begin = 0, scored = first; scored < tokens.size(); begin += length - overlap) {
    const std::size_t end = std::min(tokens.size(), begin + length + 1);
    if (end <= scored) continue;
    windows.push_back({TokenIds(tokens.begin() + std::ptrdiff_t(begin), tokens.begin() + std::ptrdiff_t(end)), scored - begin});
    scored = end;
    if (windows.size() < batch_size && scored < tokens.size()) continue;
    for (const double log_p : log_likelihoods(model, windows, batch_size)) sum += log_p;
    windows.clear();
  }
  return sum;
}

}  // namespace tern::nn
