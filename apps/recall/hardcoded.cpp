#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "common/program.h"
#include "io/files.h"
#include "io/svg.h"
#include "nn/nn.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "recall/commands.h"
#include "recall/data_set.h"
#include "text/unicode.h"

namespace tern::recall {

using io::svg::HeatMap;

namespace {

// Note [Hard-coded recall]: with N positions and V tokens the residual stream has N + 2 V dimensions in three blocks: P, the
// position; T, the token; C, the token before. All weights but these are 0, with g = ln N + 10, for which the softmax over N
// scores of 0 and one of g is all but one-hot. Row-vector convention: q = x W_Q.
//   Layer 1, the previous-token head: position i attends to i - 1, and copies its token into C.
//     W_Q[P_i, P_(i-1)] = g sqrt(d);  W_K[P_i, P_i] = 1;  W_V[T_t, C_t] = 1
//   Layer 2, the induction head: a token attends to positions whose previous token it is, and adds their tokens to T.
//     W_Q[T_t, T_t] = g sqrt(d);  W_K[C_t, T_t] = 1;  W_K[P_0, T_t] = -1;  W_V[T_t, T_t] = 2
// The prediction is the argmax of T. The factor 2 outweighs the position's own token, which the residual stream keeps in T. With a causal
// mask position 0 can attend only to itself in layer 1, so that its own token is in C; the entry at P_0 compensates.
/// A model that solves recall without training: two attention layers of one head with residual connections, without MLP and norm.
nn::DecoderLM hardcoded_model(std::int64_t vocab, std::int64_t length, Device device) {
  const std::int64_t width = length + 2 * vocab, token = length, before = length + vocab;
  nn::DecoderLM model({.vocab = vocab,
                       .length = length,
                       .width = width,
                       .layers = 2,
                       .heads = 1,
                       .ff = 0,
                       .dropout = 0,
                       .bias = false,
                       .norm = nn::NormKind::none,
                       .final_norm = false,
                       .head_bias = false});
  const auto columns = static_cast<std::size_t>(width);
  // Sets entries of a matrix of `rows` x width. The weight of Linear is transposed: (out, in).
  const auto set = [&](const Tensor& weight, const auto& fill) {
    std::vector<float> values(static_cast<std::size_t>(weight.size(0)) * columns);
    fill([&](std::int64_t row, std::int64_t column, double value) {
      values[static_cast<std::size_t>(row) * columns + static_cast<std::size_t>(column)] = static_cast<float>(value);
    });
    const NoGrad unrecorded;
    copy_(weight, Tensor::from(values, weight.shape()));
  };
  const double gain = (std::log(static_cast<double>(length)) + 10) * std::sqrt(static_cast<double>(width));
  const auto unit_rows = [](std::int64_t count, std::int64_t block) {
    return [=](const auto& entry) {
      for (std::int64_t i = 0; i < count; ++i) entry(i, block + i, 1);
    };
  };
  set(model.positions->weight, unit_rows(length, 0));
  set(model.tokens.weight, unit_rows(vocab, token));
  set(model.head.weight, unit_rows(vocab, token));
  for (nn::TransformerLayer& block : model.blocks) set(block.attn.proj.weight, unit_rows(width, 0));

  // Rows of qkv.weight are the outputs: queries from 0, keys from `key`, values from `value`.
  const std::int64_t key = width, value = 2 * width;
  set(model.blocks[0].attn.qkv->weight, [&](const auto& entry) {
    for (std::int64_t i = 1; i < length; ++i) entry(i - 1, i, gain);
    for (std::int64_t i = 0; i < length; ++i) entry(key + i, i, 1);
    for (std::int64_t t = 0; t < vocab; ++t) entry(value + before + t, token + t, 1);
  });
  set(model.blocks[1].attn.qkv->weight, [&](const auto& entry) {
    for (std::int64_t t = 0; t < vocab; ++t) {
      entry(token + t, token + t, gain);
      entry(key + token + t, before + t, 1);
      entry(key + token + t, 0, -1);
      entry(value + token + t, token + t, 2);
    }
  });
  nn::set_requires_grad(model, false);
  nn::to(model, device);
  model.eval();
  return model;
}

/// The recall task with a vocabulary of `vocab` tokens and inputs of `length`: (length - 2) / 2 pairs, keys and values in halves.
Task hardcoded_task(std::int64_t vocab, std::int64_t length) {
  const std::int64_t keys = (vocab - 1) / 2;
  return {.pairs = (length - 2) / 2, .keys = keys, .values = vocab - 1 - keys};
}

/// (count, columns), row-major: true for columns whose key occurred before, so that its value is determined.
std::vector<bool> repeated_keys(const Task& task, const Examples& examples) {
  std::vector<bool> result(examples.inputs.size());
  for (std::int64_t row = 0; row < examples.count; ++row) {
    std::vector<bool> seen(static_cast<std::size_t>(task.keys));
    for (std::int64_t column = 0; column < examples.columns; ++column) {
      const auto at = static_cast<std::size_t>(row * examples.columns + column);
      if (examples.inputs[at] >= task.keys) continue;
      const auto key = static_cast<std::size_t>(examples.inputs[at]);
      result[at] = seen[key];
      seen[key] = true;
    }
  }
  return result;
}

/// Q, K, scores and probabilities of each layer for one input, a row of task.columns() ids.
std::vector<std::vector<HeatMap>> attention_maps(const nn::DecoderLM& model, const Task& task, const std::vector<std::int64_t>& input) {
  const NoGrad unrecorded;
  const auto length = static_cast<std::int64_t>(input.size());
  const Tensor ids = Tensor::from(input, {1, length}, model.tokens.weight.device());
  std::vector<std::string> names;
  for (std::int64_t id : input) names.push_back(token_name(task, id));
  const std::vector<HeatMap::Block> blocks = {{"P", 0}, {"T", model.options.length}, {"C", model.options.length + task.ids()}};
  const auto map = [&](const char* title, const Tensor& matrix) {
    const Tensor host = to(contiguous(matrix), cpu);
    return HeatMap{title, host.size(0), host.size(1), host.to_vector<float>(), names, {}, {}};
  };
  const auto features = [&](const char* title, const Tensor& matrix) {
    HeatMap result = map(title, matrix);
    result.blocks = blocks;
    return result;
  };
  const auto square = [&](const char* title, const Tensor& matrix) {
    HeatMap result = map(title, matrix);
    result.column_names = names;
    return result;
  };
  const AttentionMask mask{.causal = true};
  std::vector<std::vector<HeatMap>> result;
  Tensor x = model.tokens.forward(ids) + slice(model.positions->weight, 0, 0, length);
  for (const nn::TransformerLayer& block : model.blocks) {
    const Tensors parts = split(select(block.attn.qkv->forward(x), 0, 0), model.options.width, 1);
    const Tensor &q = parts[0], &k = parts[1];
    const Tensor scores = matmul(q, transpose(k, 0, 1), 1 / std::sqrt(static_cast<double>(model.options.width)));
    HeatMap visible = square("scores", scores);
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = i + 1; j < length; ++j)
        visible.values[static_cast<std::size_t>(i * length + j)] = -std::numeric_limits<float>::infinity();
    result.push_back({features("Q", q), features("K", k), visible, square("probabilities", attention_softmax(scores, mask))});
    x = block.forward(x, mask);
  }
  return result;
}

constexpr std::int64_t max_shown = 5;  // failing examples, and columns to show before the failure

void print_failure(const Task& task, const Examples& examples, std::size_t at, std::int64_t predicted) {
  const auto column = static_cast<std::int64_t>(at) % examples.columns;
  std::string read = column > max_shown ? "..." : "";
  for (std::int64_t i = std::min(column, max_shown); i >= 0; --i)
    read += " " + token_name(task, examples.inputs[at - static_cast<std::size_t>(i)]);
  fmt::print("  failed: example {}, column {}: {} -> {} instead of {}\n", static_cast<std::int64_t>(at) / examples.columns, column, read,
             token_name(task, predicted), token_name(task, examples.targets[at]));
}

/// Scores one size, and lists the errors.
Score score(const Task& task, const nn::DecoderLM& model, const Examples& examples, Device device) {
  const NoGrad unrecorded;
  const std::vector<bool> asked = repeated_keys(task, examples);
  const std::int64_t batch = std::max<std::int64_t>(1, 4000 / examples.columns);
  Score score;
  for (std::int64_t row = 0; row < examples.count; row += batch) {
    const std::int64_t rows = std::min(batch, examples.count - row);
    const auto first = examples.inputs.begin() + row * examples.columns;
    const std::vector<std::int64_t> ids(first, first + rows * examples.columns);
    const Tensor logits = model.forward(Tensor::from(ids, {rows, examples.columns}, device));
    const std::vector<std::int64_t> predicted = argmax(logits).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < predicted.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(row * examples.columns) + i;
      if (!asked[at]) continue;
      ++score.answers;
      if (predicted[i] == examples.targets[at]) ++score.correct;
      else if (score.answers - score.correct <= max_shown) print_failure(task, examples, at, predicted[i]);
    }
  }
  return score;
}

void draw(const std::string& directory, const Task& task, const nn::DecoderLM& model, const Examples& examples) {
  const auto maps = attention_maps(model, task, {examples.inputs.begin(), examples.inputs.begin() + examples.columns});
  const char* const roles[] = {"the previous-token head", "the induction head"};
  for (std::size_t layer = 0; layer < maps.size(); ++layer) {
    const std::string name = fmt::format("v{}-n{}-layer{}", task.ids(), examples.columns, layer + 1);
    const std::string title = fmt::format("Layer {}, {}: V = {}, N = {}", layer + 1, roles[layer], task.ids(), examples.columns);
    io::write_file_atomically(std::filesystem::path(directory) / (name + ".svg"), to_svg(title, maps[layer]));
  }
}

}  // namespace

void hardcoded(const HardcodedOptions& options) {
  if ((options.vocab > 0) != (options.length > 0))
    throw apps::UsageError("--vocab and --length: expected both or neither, for the four sizes in turn");
  if (options.length % 2 != 0)
    throw apps::UsageError(fmt::format("--length: expected an even number, pairs and a question, but got {}", options.length));
  const Device device = apps::use(options);
  if (!options.out.empty()) apps::make_directory("--out", options.out);

  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{10, 12}, {20, 102}, {50, 12}, {20, 1002}};
  if (options.vocab > 0) sizes = {{options.vocab, options.length}};
  for (const auto& [vocab, length] : sizes) {
    const Task task = hardcoded_task(vocab, length);
    const std::int64_t count = options.examples > 0 ? options.examples : std::max<std::int64_t>(24'000 / length, 1);
    const Examples examples = make_data_set(task, static_cast<std::uint64_t>(options.seed), count, 0, 0).train;
    const nn::DecoderLM model = hardcoded_model(vocab, length, device);
    const Score scored = score(task, model, examples, device);
    fmt::print("V {:>3}  N {:>5}  width {:>5}  {} of {} repeated keys in {} examples: {:.2f}%\n", vocab, length, length + 2 * vocab,
               scored.correct, scored.answers, count, 100 * scored.accuracy());
    std::fflush(stdout);
    if (!options.out.empty()) draw(options.out, task, model, examples);
  }
  if (!options.out.empty()) fmt::print("heat maps of each size's first example are in {}\n", text::printable(options.out));
}

}  // namespace tern::recall
