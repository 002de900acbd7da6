// Decoding of models beside decoding one row at a time, with all logits on the host. search_test.cpp has the searches themselves.
#include "nn/generate.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "nn/fixture.h"
#include "nn/layers.h"
#include "nn/results.h"
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

nn::EncoderDecoder some_translator(Device device = cpu) {
  manual_seed(13);
  nn::EncoderDecoderOptions options;
  options.vocab = vocab, options.length = limit, options.width = 16, options.layers = 2, options.heads = 4, options.ff = 16;
  nn::EncoderDecoder model(options);
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

nn::TokenIds naive(nn::EncoderDecoder model, const nn::TokenIds& source, std::int64_t start, std::int64_t eos) {
  const NoGrad unrecorded;
  model.eval();
  nn::TokenIds ids = {start};
  const Device device = model.head.weight.device();
  const nn::Memory memory = model.encode(Tensor::from(source, {1, std::int64_t(source.size())}, device));
  while (std::int64_t(ids.size()) <= limit) {
    const std::vector<float> logits = floats(model.forward(Tensor::from(ids, {1, std::int64_t(ids.size())}, device), memory));
    const auto last = logits.end() - vocab;
    const std::int64_t next = std::max_element(last, logits.end()) - last;
    if (next == eos) break;
    ids.push_back(next);
  }
  return {ids.begin() + 1, ids.end()};
}

void check_greedy(Device device, bool is_fused) {
  const FusedKernels kernels(is_fused);
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
      CHECK(best(nn::generate(model, prompts, {.is_prefix_visible = is_prefix_visible}, {.eos = eos, .has_scores = false}, batch_size)) ==
            expected);
      CHECK(best(nn::generate(model, prompts, {.is_prefix_visible = is_prefix_visible}, {.search = nn::Search::beam, .eos = eos, .beam = 1},
                              batch_size)) == expected);
    }
  }
}

void check_translation(Device device) {
  const nn::EncoderDecoder model = some_translator(device);
  const std::vector<nn::TokenIds> sources = some_prompts();
  const std::int64_t start = 4, eos = naive(model, sources[1], start, -1)[2];
  std::vector<nn::TokenIds> expected;
  for (const nn::TokenIds& source : sources) expected.push_back(naive(model, source, start, eos));
  for (std::size_t batch_size : {1, 2, 4, 64}) {
    INFO("batch size " << batch_size);
    CHECK(best(nn::generate(model, sources, nn::SourceOptions{.start = start}, {.eos = eos}, batch_size)) == expected);
    CHECK(best(nn::generate(model, sources, nn::SourceOptions{.start = start}, {.search = nn::Search::beam, .eos = eos, .beam = 1},
                            batch_size)) == expected);
  }
}

}  // namespace

TEST_CASE("greedy decoding does not depend on the batch", "[generate]") {
  check_greedy(cpu, true);
  check_greedy(cpu, false);
}
TEST_CASE("greedy decoding on a GPU does not depend on the batch", "[generate][cuda]") {
  check_greedy(cuda(), true);
  check_greedy(cuda(), false);
}
TEST_CASE("greedy translation encodes a source once", "[generate]") { check_translation(cpu); }
TEST_CASE("greedy translation on a GPU encodes a source once", "[generate][cuda]") { check_translation(cuda()); }

static void check_company(const nn::DecoderLM& model, const nn::EncoderDecoder& translator) {
  const std::vector<nn::TokenIds> prompts = some_prompts();
  const std::vector<nn::TokenIds> reversed(prompts.rbegin(), prompts.rend());
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample}) {
    CAPTURE(int(search));
    nn::GenerateOptions options{.search = search, .eos = 7, .beam = 3, .seed = 5};
    if (search == nn::Search::beam) options.n_best = 2;
    const auto check = [&](const auto& decode) {
      const Results expected = decode(prompts, std::size_t{1});
      for (const std::size_t batch_size : {2, 4, 64}) CHECK(is_same(decode(prompts, batch_size), expected));
      if (search == nn::Search::sample) return;  // a draw belongs to a row's number
      Results turned = decode(reversed, 4);
      std::reverse(turned.begin(), turned.end());
      CHECK(is_same(turned, expected));
    };
    check([&](const auto& rows, std::size_t batch_size) {
      return nn::generate(model, rows, {.is_prefix_visible = true, .reset_position = 6}, options, batch_size);
    });
    check([&](const auto& rows, std::size_t batch_size) { return nn::generate(model, rows, nn::PromptOptions{}, options, batch_size); });
    check(
        [&](const auto& rows, std::size_t batch_size) { return nn::generate(translator, rows, nn::SourceOptions{}, options, batch_size); });
  }
}

TEST_CASE("Results are the same bits in any company and order", "[generate]") {
  nn::DecoderLM model = some_model();
  nn::EncoderDecoder translator = some_translator();
  check_company(model, translator);
  // A quantised model reads a row that is alone as one row: Note [Two rows].
  nn::quantize(translator, QuantFormat::q8_0);
  nn::DecoderLM mixed = some_model();
  nn::quantize(mixed, QuantFormat::q4_0);
  mixed.head = some_model().head;
  check_company(mixed, translator);
  nn::quantize(model, QuantFormat::q4_0);
  check_company(model, translator);
}

TEST_CASE("greedy decoding stops at the limit and leaves the model's mode alone", "[generate]") {
  const nn::DecoderLM model = some_model();
  nn::TokenIds full(limit, 3), nearly(limit - 1, 3);
  const auto result = best(nn::generate(model, {full, nearly, {4}}, nn::PromptOptions{}, {.eos = 22}));
  CHECK(result[0].empty());
  CHECK(result[1].size() <= 1);
  CHECK(result[2].size() <= std::size_t(limit - 1));
  CHECK(best(nn::generate(model, {nearly}, {.max_length = 5}))[0].empty());
  CHECK(nn::generate(model, {}, {.max_length = 5}).empty());
  CHECK(best(nn::generate(model, {{4}, {5}}, nn::PromptOptions{}, {.eos = -1, .max_new_tokens = 3}))[1].size() == 3);
  CHECK(model.training);
  CHECK(model.drop.training);
}

TEST_CASE("A generation ends when it is asked to before a token, by one thread and by several", "[generate]") {
  const nn::DecoderLM model = some_model();
  const int threads = num_threads();
  for (const int count : {1, 2})
    for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample}) {
      INFO(count << " threads, search " << static_cast<int>(search));
      set_num_threads(count);
      std::atomic<int> calls = 0;
      const nn::GenerateOptions options{.search = search, .eos = -1, .max_new_tokens = 5, .on_token = [&] {
                                          if (++calls == 3) throw Error("asked to end");
                                        }};
      CHECK_THROWS_AS(nn::generate(model, std::vector<nn::TokenIds>(40, {3, 4}), {}, options), Error);
      CHECK(calls >= 3);
    }
  set_num_threads(threads);
}

TEST_CASE("A repetition penalty counts the prompts that a model and an ensemble read", "[generate]") {
  const nn::DecoderLM model = some_model();
  const std::vector<nn::TokenIds> prompts = some_prompts();
  const nn::GenerateOptions options{.eos = -1, .max_new_tokens = 1, .repetition_penalty = 1e6};
  const auto in_prompt = [&](const Results& results) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      count += std::size_t(std::count(prompts[i].begin(), prompts[i].end(), results[i].at(0).tokens.at(0)));
    return count;
  };
  // The largest logit is above 0, and so is that of some token that the prompt lacks.
  CHECK(in_prompt(nn::generate(model, prompts, {}, {.eos = -1, .max_new_tokens = 1})) > 0);
  CHECK(in_prompt(nn::generate(model, prompts, {}, options)) == 0);
  CHECK(in_prompt(nn::generate(nn::ensemble({nn::read_prompts(model, prompts), nn::read_prompts(model, prompts)}), options)) == 0);
}

TEST_CASE("generate refuses what it cannot continue", "[generate]") {
  const nn::DecoderLM model = some_model();
  const auto decode = [&](const nn::TokenIds& prompt, const nn::PromptOptions& room, const nn::GenerateOptions& options = {},
                          std::size_t batch_size = 4) { nn::generate(model, {prompt}, room, options, batch_size); };
  CHECK_THROWS_WITH(decode({}, {}), "[generate] expected prompts of one token or more but prompt 0 is empty");
  CHECK_THROWS_WITH(decode({vocab}, {}), "[read_prompts] expected ids in [0, 23) but got 23 in row 0");
  CHECK_THROWS_WITH(decode({1}, {.max_length = limit + 1}),
                    "[read_prompts] expected max_length in [2, 14], the model's length, but got 15");
  CHECK_THROWS_WITH(decode({1}, {}, {}, 0), "[generate] expected batch_size >= 1 but got 0");
  CHECK_THROWS_WITH(decode({1}, {}, {.n_best = 2}), "[generate] expected n_best = 1 of greedy but got 2");
  CHECK_THROWS_WITH(decode({1}, {}, {.search = nn::Search::beam, .n_best = 6}), "[generate] expected a beam >= n_best but got 5 and 6");
  CHECK_THROWS_WITH(decode({1}, {}, {.search = nn::Search::sample, .temperature = -1}),
                    "[generate] expected a finite temperature >= 0 but got -1");
  CHECK_THROWS_WITH(decode({1}, {}, {.search = nn::Search::sample, .top_k = -1}), "[generate] expected top_k >= 0 but got -1");
  CHECK_THROWS_WITH(decode({1}, {}, {.search = nn::Search::sample, .top_p = 0}), "[generate] expected top_p in (0, 1] but got 0");
  const nn::EncoderDecoder translator = some_translator();
  CHECK_THROWS_WITH(nn::generate(translator, {{}}, nn::SourceOptions{}), "[read_sources] expected rows of 1 to 14 tokens but row 0 has 0");
  CHECK_THROWS_WITH(nn::generate(translator, {{1}}, nn::SourceOptions{.start = vocab}),
                    "[read_sources] expected start in [0, 23) but got 23");
}

TEST_CASE("A model that makes NaN generates nothing", "[generate]") {
  const nn::DecoderLM model = some_model();
  {
    const NoGrad unrecorded;
    fill_(slice(model.head.weight, 0, 3, 4), std::nan(""));
  }
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample})
    CHECK_THROWS_WITH(nn::generate(model, {{1}, {2, 1}}, {.max_length = 5}, {.search = search}),
                      "[generate] expected logits below +inf, none of them NaN and not all -inf, but row 0 has NaN at token 3 in those for "
                      "its new token 0: "
                      "AnomalyMode names the module");
}
