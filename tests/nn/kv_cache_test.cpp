// Reading with a cache is reading all at once.
#include "backend/memory.h"
#include "nn/fixture.h"
#include "nn/small_decoder.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = test::small_vocab, length = 12;

Tensor some_ids(std::int64_t batch, std::int64_t count, Device device) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * count; ++i) ids.push_back((i * i * 5 + i * 3 + 1) % vocab);
  return to(Tensor::from(ids, {batch, count}), device);
}

void check_model(const nn::DecoderLMOptions& options, Device device) {
  const NoGrad unrecorded;
  nn::DecoderLM model = test::small_decoder(options, length, device);
  const Tensor ids = some_ids(3, length, device), expected = model.hidden(ids);
  const std::int64_t first = 5;
  nn::KvCache cache = model.cache(3, length);
  CHECK(cache.empty());
  CHECK(distance(model.hidden(slice(ids, 1, 0, first), {.causal = true}, {}, &cache), slice(expected, 1, 0, first)) < 1e-6);
  CHECK_FALSE(cache.empty());
  for (std::int64_t t = first; t < length; ++t)
    CHECK(distance(model.hidden(slice(ids, 1, t, t + 1), {.causal = true}, {}, &cache), slice(expected, 1, t, t + 1)) < 1e-5);
  CHECK(to(cache.lengths, cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>(3, length));
}

void check_models(Device device) {
  for (const bool is_fused : {false, true}) {
    CAPTURE(is_fused);
    const FusedKernels kernels(is_fused);
    check_model({}, device);
    check_model({.kv_heads = 2, .positions = nn::Positions::none}, device);
    check_model({.kv_heads = 3, .gated = true, .bias = false, .norm = nn::NormKind::rms, .positions = nn::Positions::rotary}, device);
    check_model({.kv_heads = 2,
                 .head_dim = 8,
                 .positions = nn::Positions::rotary,
                 .rope_base = 50,
                 .rope_pairs = RopePairs::halves,
                 .rope_scaling = {.factor = 2, .original_length = 6}},
                device);
  }
}

}  // namespace

TEST_CASE("A model that reads token by token with a cache gives what it gives at once") { check_models(cpu); }
TEST_CASE("A model on a GPU that reads token by token with a cache gives what it gives at once", "[cuda]") { check_models(cuda()); }

TEST_CASE("Rows of a cache may have different lengths") {
  const NoGrad unrecorded;
  for (const nn::Positions positions : {nn::Positions::learned, nn::Positions::rotary}) {
    const nn::DecoderLM model = test::small_decoder({.positions = positions}, length, cpu);
    const Tensor ids = some_ids(2, length, cpu), expected = model.hidden(ids);
    nn::KvCache cache = model.cache(2, length);
    model.hidden(slice(ids, 1, 0, 7), {.causal = true}, {}, &cache);
    // The second row has read four tokens, and filling.
    copy_(cache.lengths, Tensor::from(std::vector<std::int64_t>{7, 4}, {2}));
    for (std::int64_t t = 0; t < 5; ++t) {
      const Tensor next = cat({slice(slice(ids, 0, 0, 1), 1, 7 + t, 8 + t), slice(slice(ids, 0, 1, 2), 1, 4 + t, 5 + t)}, 0);
      const Tensor states = model.hidden(next, {.causal = true}, {}, &cache);
      CHECK(distance(slice(states, 0, 0, 1), slice(slice(expected, 0, 0, 1), 1, 7 + t, 8 + t)) < 1e-5);
      CHECK(distance(slice(states, 0, 1, 2), slice(slice(expected, 0, 1, 2), 1, 4 + t, 5 + t)) < 1e-5);
    }
  }
}

TEST_CASE("A cache on the CPU grows with its longest row, and then stays") {
  const NoGrad unrecorded;
  manual_seed(5);
  nn::DecoderLM model({.vocab = vocab, .length = 400, .width = 24, .layers = 2, .heads = 6, .ff = 16});
  model.eval();
  const Tensor ids = some_ids(3, 90, cpu), expected = model.hidden(ids);
  nn::KvCache cache = model.cache(3, 400);
  constexpr std::size_t token = std::size_t{2} * 3 * 2 * 24 * sizeof(float);  // of keys and values: two layers, three rows
  const auto check = [&](std::int64_t first) {
    model.hidden(slice(ids, 1, 0, first), {.causal = true}, {}, &cache);
    for (std::int64_t t = first; t < 90; ++t)
      REQUIRE(distance(model.hidden(slice(ids, 1, t, t + 1), {.causal = true}, {}, &cache), slice(expected, 1, t, t + 1)) < 1e-5);
  };
  const std::size_t before = backend::memory_statistics(Cpu{}, cpu).allocated;
  check(3);
  const std::size_t grown = backend::memory_statistics(Cpu{}, cpu).allocated - before;
  CHECK(grown > 90 * token);
  CHECK(grown < 200 * token);
  cache.restart(3);
  check(20);
  CHECK(backend::memory_statistics(Cpu{}, cpu).allocated - before == grown);
}

TEST_CASE("Rows of a cache can be selected") {
  const NoGrad unrecorded;
  const nn::DecoderLM model = test::small_decoder({}, length, cpu);
  const Tensor ids = some_ids(3, 6, cpu);
  for (const std::vector<std::int64_t>& picked : {std::vector<std::int64_t>{2, 0, 0}, {1}, {2, 2, 1, 0}}) {
    const Tensor rows = Tensor::from(picked, {static_cast<std::int64_t>(picked.size())});
    nn::KvCache cache = model.cache(3, length);
    model.hidden(slice(ids, 1, 0, 5), {.causal = true}, {}, &cache);
    cache.select(rows);
    CHECK(cache.batch() == rows.size(0));
    const Tensor chosen = index_select(ids, 0, rows);
    CHECK(distance(model.hidden(slice(chosen, 1, 5, 6), {.causal = true}, {}, &cache), slice(model.hidden(chosen), 1, 5, 6)) < 1e-5);
  }
}

TEST_CASE("Cross attention keeps the keys and values of its memory") {
  const NoGrad unrecorded;
  manual_seed(8);
  nn::TransformerLayer layer({.width = 16, .heads = 4, .ff = 8, .dropout = 0}, true);
  const Tensor x = randn({2, 5, 16}), memory = randn({2, 7, 16});
  const AttentionMask lengths{.key_lengths = Tensor::from(std::vector<std::int64_t>{7, 3}, {2})};
  const Tensor expected = layer.forward(x, {.causal = true}, memory, lengths);
  nn::KvCache cache(2, 5, 1);
  for (std::int64_t t = 0; t < 5; ++t) {
    cache.begin(zeros({2, 1}, DType::i64));
    const nn::LayerCache own = cache.layer(0);
    nn::ResidualStream stream{slice(x, 1, t, t + 1)};
    // Later tokens take what is kept: another memory changes nothing.
    layer.forward(stream, {.causal = true}, t == 0 ? memory : memory * 2, lengths, &own);
    cache.end();
    CHECK(distance(stream.value(), slice(expected, 1, t, t + 1)) < 1e-5);
  }
}

TEST_CASE("A cache refuses what it has no place for") {
  const NoGrad unrecorded;
  const nn::DecoderLM model = test::small_decoder({}, length, cpu);
  CHECK_THROWS_WITH(model.cache(1, length + 1), "[DecoderLM] expected a cache of at most 12 tokens, the model's length, but got 13");
  CHECK_THROWS_WITH(model.cache(0, 3), "[KvCache] expected sizes >= 1 but got 0 rows of 3 tokens");
  nn::KvCache cache = model.cache(2, 3);
  const auto read = [&](std::int64_t batch, std::int64_t count, const AttentionMask& mask = {.causal = true}) {
    model.hidden(some_ids(batch, count, cpu), mask, {}, &cache);
  };
  CHECK_THROWS_WITH(read(3, 1), "[KvCache] expected ids of 2 rows but got (3, 1), in module DecoderLM");
  CHECK_THROWS_WITH(read(2, 4), "[KvCache] expected ids of 1 to 3 tokens, the cache's capacity, but got (2, 4), in module DecoderLM");
  read(2, 2);
  CHECK_THROWS_WITH(read(2, 2),
                    "[KvCache] expected ids of one token a row, as the cache has tokens already, but got (2, 2), in module DecoderLM");
  CHECK_THROWS_WITH(read(2, 1, {.causal = true, .key_lengths = Tensor::from(std::vector<std::int64_t>{1, 1}, {2})}),
                    "[KvCache] expected no padding or key_lengths: a token that joins others in a cache sees all of its row, in module "
                    "blocks.0.attn (MultiHeadAttention)");
  read(2, 1);
  CHECK_THROWS_WITH(read(2, 1),
                    "[KvCache] expected rows of fewer tokens than the cache's capacity, 3, but one is full, in module DecoderLM");
}
