#include <algorithm>
#include <cmath>

#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/view.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 23, limit = 14;

nn::DecoderLM some_model(Device device = cpu) {
  manual_seed(12);
  nn::DecoderLM model({.vocab = vocab, .length = limit, .width = 16, .layers = 2, .heads = 4, .ff = 16, .dropout = 0.3});
  nn::to(model, device);
  return model;
}

std::vector<nn::TokenIds> some_prompts() {
  std::vector<nn::TokenIds> prompts;
  for (std::int64_t i = 0; i < 9; ++i) {
    nn::TokenIds prompt;
    for (std::int64_t j = 0; j <= (i * 5) % 8; ++j) prompt.push_back((i * 7 + j * j * 3 + 1) % vocab);
    prompts.push_back(prompt);
  }
  return prompts;
}

/// One row at a time, all logits on the host.
nn::TokenIds naive(nn::DecoderLM model, nn::TokenIds ids, std::int64_t eos, bool is_prefix_visible) {
  const NoGrad unrecorded;
  model.eval();
  const auto prompt = std::int64_t(ids.size());
  while (std::int64_t(ids.size()) < limit) {
    const auto length = std::int64_t(ids.size());
    AttentionMask mask{.causal = true};
    const Device device = model.head.weight.device();
    if (is_prefix_visible) mask.prefix = Tensor::from(std::vector<std::int64_t>{prompt}, {1}, device);
    const std::vector<float> logits = floats(model.forward(Tensor::from(ids, {1, length}, device), mask));
    const auto last = logits.end() - vocab;
    const std::int64_t next = std::max_element(last, logits.end()) - last;
    if (next == eos) break;
    ids.push_back(next);
  }
  return {ids.begin() + prompt, ids.end()};
}

void check_greedy(Device device) {
  const nn::DecoderLM model = some_model(device);
  const std::vector<nn::TokenIds> prompts = some_prompts();
  for (bool is_prefix_visible : {false, true}) {
    // An end token that occurs in some continuations and not in others.
    const std::int64_t eos = naive(model, prompts[1], -1, is_prefix_visible)[2];
    std::vector<nn::TokenIds> expected;
    std::size_t stopped = 0;
    for (const nn::TokenIds& prompt : prompts) {
      expected.push_back(naive(model, prompt, eos, is_prefix_visible));
      stopped += std::int64_t(prompt.size() + expected.back().size()) < limit;
    }
    REQUIRE(stopped > 0);
    for (std::size_t batch_size : {1, 2, 4, 64}) {
      INFO("batch size " << batch_size << ", prefix " << is_prefix_visible);
      CHECK(nn::greedy(model, prompts,
                       {.eos = eos, .max_length = limit, .batch_size = batch_size, .is_prefix_visible = is_prefix_visible}) == expected);
    }
    std::vector<nn::TokenIds> reversed(prompts.rbegin(), prompts.rend());
    std::vector<nn::TokenIds> result =
        nn::greedy(model, reversed, {.eos = eos, .max_length = limit, .batch_size = 4, .is_prefix_visible = is_prefix_visible});
    std::reverse(result.begin(), result.end());
    CHECK(result == expected);
  }
}

}  // namespace

TEST_CASE("greedy decoding does not depend on the batch", "[generate]") { check_greedy(cpu); }
TEST_CASE("greedy decoding on a GPU does not depend on the batch", "[generate][cuda]") { check_greedy(cuda()); }

TEST_CASE("greedy decoding stops at the limit and leaves the model's mode alone", "[generate]") {
  const nn::DecoderLM model = some_model();
  nn::TokenIds full(limit, 3), nearly(limit - 1, 3);
  const auto result = nn::greedy(model, {full, nearly, {4}}, {.eos = 22, .max_length = limit});
  CHECK(result[0].empty());
  CHECK(result[1].size() <= 1);
  CHECK(result[2].size() <= std::size_t(limit - 1));
  CHECK(nn::greedy(model, {nearly}, {.max_length = 5})[0].empty());
  CHECK(nn::greedy(model, {}, {.max_length = 5}).empty());
  CHECK(model.training);
  CHECK(model.drop.training);
}

TEST_CASE("greedy decoding refuses what it cannot continue", "[generate]") {
  const nn::DecoderLM model = some_model();
  CHECK_THROWS_AS(nn::greedy(model, {{}}, {.max_length = 5}), Error);
  CHECK_THROWS_AS(nn::greedy(model, {{vocab}}, {.max_length = 5}), Error);
  CHECK_THROWS_AS(nn::greedy(model, {{1}}, {.max_length = limit + 1}), Error);
  CHECK_THROWS_AS(nn::greedy(model, {{1}}, {.eos = vocab, .max_length = 5}), Error);
  CHECK_THROWS_AS(nn::greedy(model, {{1}}, {.max_length = 5, .batch_size = 0}), Error);
}

TEST_CASE("A model that makes NaN generates nothing", "[generate]") {
  const nn::DecoderLM model = some_model();
  const NoGrad unrecorded;
  fill_(slice(model.head.weight, 0, 3, 4), std::nan(""));
  CHECK_THROWS_WITH(nn::greedy(model, {{1}, {2, 1}}, {.max_length = 5}),
                    "[greedy] expected logits that are numbers but the model made a NaN: AnomalyMode names the module");
}
