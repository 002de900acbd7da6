// Batches that threads decode side by side give what one thread gives, bit for bit.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "message.h"
#include "nn/fixture.h"
#include "nn/results.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "threads.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 29, length = 40;

template <class Model, class Options>
Model some_model() {
  manual_seed(31);
  Options options;
  options.vocab = vocab, options.length = length, options.width = 32, options.layers = 2, options.heads = 4, options.ff = 48;
  options.dropout = 0;
  return Model(options);
}

/// Rows of 1 to 9 tokens.
std::vector<nn::TokenIds> some_rows(std::size_t count) {
  std::vector<nn::TokenIds> rows(count);
  for (std::size_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j <= std::int64_t(i * 5) % 9; ++j) rows[i].push_back((std::int64_t(i) * 7 + j * j * 3) % vocab);
  return rows;
}

template <class Model, class ReadOptions>
void check_searches(const Model& model, ReadOptions options) {
  nn::DecodingGraphs graphs;
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample})
    for (const std::size_t count : {std::size_t{70}, std::size_t{33}, std::size_t{49}}) {
      CAPTURE(int(search), count);
      const nn::GenerateOptions how{.search = search, .eos = 7, .n_best = search == nn::Search::greedy ? 1 : 2, .beam = 3, .seed = 5};
      const std::vector<nn::TokenIds> rows = some_rows(count);
      const auto decode = [&](int threads, nn::DecodingGraphs* kept) {
        const test::Threads scope(threads);
        options.graphs = kept;
        return nn::generate(model, rows, options, how, 16);
      };
      const Results expected = decode(1, nullptr);
      CHECK(is_same(decode(3, nullptr), expected));
      CHECK(is_same(decode(3, &graphs), expected));
      CHECK(is_same(decode(2, &graphs), expected));
    }
}

/// Batches that generate_in_batches reads of so many rows: their sizes, the kernel threads that each has, and the threads that read them.
struct Batches {
  std::vector<std::size_t> sizes;
  std::vector<int> kernel_threads;
  std::vector<std::thread::id> readers;
};

Batches batches_of(std::size_t rows, bool is_thread_safe = true) {
  Batches result;
  std::mutex mutex;
  const auto read = [&](const std::vector<std::size_t>& picks) {
    const std::lock_guard lock(mutex);
    result.sizes.push_back(picks.size());
    result.kernel_threads.push_back(num_threads());
    result.readers.push_back(std::this_thread::get_id());
    const auto count = static_cast<std::int64_t>(picks.size());
    return nn::Continuation{.logits = zeros({count, vocab}), .limits = std::vector<std::int64_t>(picks.size(), 1)};
  };
  nn::generate_in_batches(std::vector<std::int64_t>(rows, 4), read, {}, 32, is_thread_safe);
  return result;
}

}  // namespace

TEST_CASE("Batches side by side have the bits of batches one by one", "[generate]") {
  check_searches(some_model<nn::DecoderLM, nn::DecoderLMOptions>(), nn::PromptOptions{});
  check_searches(some_model<nn::EncoderDecoder, nn::EncoderDecoderOptions>(), nn::SourceOptions{.start = 3});
}

TEST_CASE("Threads get even batches, and one kernel thread each", "[generate]") {
  const test::Threads scope(2);
  for (const auto& [rows, sizes] : std::vector<std::pair<std::size_t, std::vector<std::size_t>>>{
           {70, {18, 17, 18, 17}}, {64, {32, 32}}, {40, {20, 20}}, {32, {16, 16}}}) {
    CAPTURE(rows);
    Batches batches = batches_of(rows);
    std::vector<std::size_t> expected = sizes;
    std::sort(batches.sizes.begin(), batches.sizes.end());
    std::sort(expected.begin(), expected.end());
    CHECK(batches.sizes == expected);
    CHECK(batches.kernel_threads == std::vector<int>(sizes.size(), 1));
  }
}

TEST_CASE("Threads that decode have the kernels of the thread that they work for", "[generate]") {
  const test::Threads scope(2);
  for (const bool fused : {false, true}) {
    const FusedKernels kernels(fused);
    std::mutex mutex;
    std::condition_variable begun;
    std::map<std::thread::id, bool> readers;
    const auto read = [&](const std::vector<std::size_t>& picks) {
      std::unique_lock lock(mutex);
      readers[std::this_thread::get_id()] = context().kernels.fused;
      begun.notify_all();
      begun.wait_for(lock, std::chrono::seconds(10), [&] { return readers.size() == 2; });  // else one of them may read all
      const auto count = static_cast<std::int64_t>(picks.size());
      return nn::Continuation{.logits = zeros({count, vocab}), .limits = std::vector<std::int64_t>(picks.size(), 1)};
    };
    nn::generate_in_batches(std::vector<std::int64_t>(70, 4), read, {}, 32, true);
    CHECK(readers.size() == 2);
    for (const auto& [reader, is_fused] : readers) CHECK(is_fused == fused);
  }
}

TEST_CASE("Batches come one by one where threads would not help, or must not see them", "[generate]") {
  const test::Threads scope(2);
  const auto check = [](const Batches& batches, const std::vector<std::size_t>& sizes) {
    CHECK(batches.sizes == sizes);
    CHECK(batches.kernel_threads == std::vector<int>(sizes.size(), 2));
    CHECK(batches.readers == std::vector<std::thread::id>(sizes.size(), std::this_thread::get_id()));
  };
  check(batches_of(31), {31});
  check(batches_of(70, false), {32, 32, 6});
  {
    const Autocast autocast(DType::bf16);
    check(batches_of(70), {32, 32, 6});
  }
  // A stop rule is the caller's, and may know nothing of threads.
  const auto model = some_model<nn::DecoderLM, nn::DecoderLMOptions>();
  bool is_elsewhere = false;
  const auto stop = [&, here = std::this_thread::get_id()](const Tensor& tokens) {
    is_elsewhere |= std::this_thread::get_id() != here || num_threads() != 2;
    return zeros({tokens.size(0)}, DType::boolean);
  };
  nn::generate(model, some_rows(64), nn::PromptOptions{.max_length = 12}, {.stop = stop}, 16);
  CHECK_FALSE(is_elsewhere);
}

TEST_CASE("An error in a thread that decodes is the caller's", "[generate]") {
  const test::Threads scope(2);
  const auto model = some_model<nn::DecoderLM, nn::DecoderLMOptions>();
  std::vector<nn::TokenIds> rows = some_rows(64);
  for (const std::size_t place : {3, 40}) {
    std::vector<nn::TokenIds> bad = rows;
    bad[place] = {3, vocab};
    CHECK(message_of([&] {
            nn::generate(model, bad, nn::PromptOptions{}, {}, 64);
          }).starts_with("[read_prompts] expected ids in [0, 29) but got 29 in row "));
    CHECK(num_threads() == 2);
  }
  CHECK(nn::generate(model, rows, nn::PromptOptions{.max_length = 10}).size() == 64);
}
