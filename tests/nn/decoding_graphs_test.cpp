// Decoding by graphs, in a cache that stays, gives what decoding as written gives, bit for bit.
#include "nn/fixture.h"
#include "nn/results.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "skip.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 29, length = 24;

template <class Options>
Options some_options() {
  manual_seed(21);
  Options options;
  options.vocab = vocab, options.length = length, options.width = 32, options.layers = 2, options.heads = 4, options.ff = 48;
  options.dropout = 0;
  return options;
}

/// Rows of 1 to 9 tokens.
std::vector<nn::TokenIds> some_rows(std::size_t count, std::int64_t first) {
  std::vector<nn::TokenIds> rows(count);
  for (std::size_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j <= std::int64_t(i * 5 + std::size_t(first)) % 9; ++j)
      rows[i].push_back((std::int64_t(i) * 7 + j * j * 3 + first) % vocab);
  return rows;
}

/// Texts of changing numbers of rows, by every search, all with the same graphs, beside the same without any.
template <class Model, class ReadOptions>
void check_searches(const Model& model, ReadOptions options) {
  nn::DecodingGraphs graphs;
  ReadOptions with_graphs = options;
  with_graphs.graphs = &graphs;
  std::size_t max_nodes = 0;
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample, nn::Search::greedy})
    for (const std::size_t count : {std::size_t{3}, std::size_t{8}, std::size_t{1}, std::size_t{5}}) {
      CAPTURE(int(search), count);
      const nn::GenerateOptions how{.search = search, .eos = 7, .n_best = search == nn::Search::greedy ? 1 : 2, .beam = 3, .seed = 5};
      const std::vector<nn::TokenIds> rows = some_rows(count, std::int64_t(count));
      CHECK(is_same(nn::generate(model, rows, with_graphs, how), nn::generate(model, rows, options, how)));
      max_nodes = std::max(max_nodes, graphs.nodes());
    }
  const Device device = nn::parameters(model).front().device();
  CHECK((max_nodes > 20) == (device != cpu));  // the graphs were used where there are any
}

void check_models(Device device) {
  for (const nn::Positions positions : {nn::Positions::learned, nn::Positions::rotary}) {
    auto options = some_options<nn::DecoderLMOptions>();
    options.positions = positions;
    nn::DecoderLM model(options);
    nn::to(model, device);
    check_searches(model, nn::PromptOptions{});
    const bool has_table = positions == nn::Positions::learned;
    check_searches(model, nn::PromptOptions{.max_length = 20, .is_prefix_visible = true, .reset_position = has_table ? 9 : -1});
  }
  nn::EncoderDecoder translator(some_options<nn::EncoderDecoderOptions>());
  nn::to(translator, device);
  check_searches(translator, nn::SourceOptions{.start = 3});
}

}  // namespace

TEST_CASE("Decoding in a cache that stays gives what it gives in a fresh one", "[generate]") { check_models(cpu); }
TEST_CASE("Decoding by graphs gives what it gives as written", "[generate][cuda]") { check_models(cuda()); }

TEST_CASE("Graphs serve another model, other options and another precision anew", "[generate]") {
  const nn::EncoderDecoder first(some_options<nn::EncoderDecoderOptions>());
  manual_seed(22);
  nn::EncoderDecoderOptions wider = some_options<nn::EncoderDecoderOptions>();
  wider.width = 48;
  const nn::EncoderDecoder second(wider);
  const std::vector<nn::TokenIds> rows = some_rows(4, 2);
  nn::DecodingGraphs graphs;
  for (const std::int64_t start : {3, 4})
    for (const nn::EncoderDecoder* model : {&first, &second, &first})
      for (const std::int64_t limit : {length, std::int64_t{5}}) {
        const nn::SourceOptions options{.start = start, .max_length = limit};
        nn::SourceOptions with_graphs = options;
        with_graphs.graphs = &graphs;
        CHECK(is_same(nn::generate(*model, rows, with_graphs), nn::generate(*model, rows, options)));
      }
}

TEST_CASE("Graphs on a GPU follow the precision of products, and stand aside for autocast", "[generate][cuda]") {
  nn::EncoderDecoder model(some_options<nn::EncoderDecoderOptions>());
  nn::to(model, cuda());
  const std::vector<nn::TokenIds> rows = some_rows(4, 2);
  nn::DecodingGraphs graphs;
  const auto check = [&](bool has_graphs) {
    Results by_graphs;
    for (int time = 0; time < 3; ++time) by_graphs = nn::generate(model, rows, {.start = 3, .graphs = &graphs}, {.eos = -1});
    CHECK(is_same(by_graphs, nn::generate(model, rows, {.start = 3}, {.eos = -1})));
    CHECK((graphs.nodes() > 0) == has_graphs);
  };
  check(true);
  {
    const ScopedValue<MatmulPrecision> scope(context().kernels.matmul_precision, MatmulPrecision::tf32);
    check(true);
  }
  {
    const PlainKernels scope;
    check(true);
  }
  const Autocast scope(DType::bf16);
  const std::size_t before = graphs.nodes();
  CHECK(is_same(nn::generate(model, rows, {.start = 3, .graphs = &graphs}), nn::generate(model, rows, {.start = 3})));
  CHECK(graphs.nodes() == before);
}

TEST_CASE("A cache that starts anew holds a text as a fresh one does, in the same memory", "[generate]") {
  const NoGrad unrecorded;
  auto options = some_options<nn::EncoderDecoderOptions>();
  nn::EncoderDecoder model(options);
  model.eval();
  nn::KvCache kept = model.cache(5, length, length);
  const void* place = kept.lengths.view().data;
  const auto states = [&](nn::KvCache& cache, std::int64_t batch, std::int64_t sources) {
    std::vector<std::int64_t> ids, lengths;
    for (std::int64_t i = 0; i < batch * sources; ++i) ids.push_back((i * 5 + batch) % vocab);
    for (std::int64_t i = 0; i < batch; ++i) lengths.push_back(1 + (i * 3 + 1) % sources);
    const nn::Memory memory = model.encode(Tensor::from(ids, {batch, sources}), Tensor::from(lengths, {batch}));
    std::vector<float> result;
    for (std::int64_t t = 0; t < 4; ++t) {
      const Tensor x = model.hidden(full({batch, 1}, double(t + 2), DType::i64), memory, &cache);
      const std::vector<float> values = floats(x);
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  };
  const auto check_selected = [&](std::int64_t sources) {
    kept.restart(3, sources);
    nn::KvCache fresh = model.cache(3, length);
    CHECK(states(kept, 3, sources) == states(fresh, 3, sources));
    const Tensor rows = Tensor::from(std::vector<std::int64_t>{2, 0, 1, 2, 2}, {5});
    kept.select(rows), fresh.select(rows);
    const Tensor ids = full({5, 1}, 9, DType::i64);
    CHECK(floats(model.hidden(ids, {.states = ids}, &kept)) == floats(model.hidden(ids, {.states = ids}, &fresh)));
  };
  for (const auto& [batch, sources] : {std::pair{5, 9}, std::pair{2, 13}, std::pair{4, 3}, std::pair{5, int(length)}}) {
    CAPTURE(batch, sources);
    kept.restart(batch);
    CHECK(kept.empty());
    nn::KvCache fresh = model.cache(batch, length);
    CHECK(states(kept, batch, sources) == states(fresh, batch, sources));
    CHECK(kept.lengths.view().data == place);
  }
  check_selected(17);
  check_selected(4);
  kept.restart(6);
  CHECK(kept.reserved() == 6);
  CHECK_THROWS_WITH(kept.restart(0), "[KvCache] expected one row or more but got 0");
  CHECK_THROWS_WITH(kept.restart(2, length + 1), "[KvCache] expected memory_used in [0, 24], the memories' capacity, but got 25");
  CHECK_THROWS_WITH(model.cache(2, 3, -1), "[KvCache] expected a memory_capacity >= 0 but got -1");
  nn::KvCache shallow = model.cache(2, length, 4);
  CHECK_THROWS_WITH(
      states(shallow, 2, 5),
      "[KvCache] expected memories of at most 4 tokens but got 5, in module decoder.blocks.0.cross_attn (MultiHeadAttention)");
}
