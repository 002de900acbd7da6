// Likelihoods of texts beside the logits of each row alone.
#include "nn/likelihood.h"

#include "message.h"
#include "nn/fixture.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 23, length = 10;

nn::DecoderLM some_model() {
  manual_seed(4);
  return nn::DecoderLM({.vocab = vocab, .length = length, .width = 16, .layers = 2, .heads = 4, .ff = 16, .dropout = 0.3});
}

/// The same from all logits, in float64.
double reference(nn::DecoderLM model, const nn::ScoredTokens& row) {
  const NoGrad unrecorded;
  model.eval();
  const nn::TokenIds read(row.tokens.begin(), row.tokens.end() - 1);
  const std::vector<float> logits = floats(model.forward(Tensor::from(read, {1, std::int64_t(read.size())})));
  double sum = 0;
  for (std::size_t t = row.first; t < row.tokens.size(); ++t) {
    double total = 0;
    for (std::int64_t i = 0; i < vocab; ++i) total += std::exp(double(logits[(t - 1) * vocab + std::size_t(i)]));
    sum += logits[(t - 1) * vocab + std::size_t(row.tokens[t])] - std::log(total);
  }
  return sum;
}

}  // namespace

TEST_CASE("Likelihoods are those of each row alone, whatever the batches are and the mode") {
  nn::DecoderLM model = some_model();
  std::vector<nn::ScoredTokens> rows = {{{1, 2}, 1}, {{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 1}, {{22, 0, 22, 0}, 3}, {{5, 5, 5}, 2}};
  rows.push_back({{7, 8, 9}, 3});  // of which nothing is scored
  for (const std::size_t batch : {1, 2, 16}) {
    const std::vector<double> found = nn::log_likelihoods(model, rows, batch);
    REQUIRE(found.size() == rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(found[i] == Approx(reference(model, rows[i])).epsilon(1e-5).margin(1e-9));
    CHECK(found[4] == 0);
  }
  CHECK(model.training);
  CHECK(nn::log_likelihoods(model, {}).empty());
}

TEST_CASE("A long text is scored once, in windows that overlap") {
  const nn::DecoderLM model = some_model();
  nn::TokenIds tokens;
  for (std::int64_t i = 0; i < 47; ++i) tokens.push_back((i * i + 3 * i) % vocab);
  for (const std::size_t count : {2, 11, 12, 47})
    for (const std::size_t overlap : {0, 4, 9})
      for (const std::size_t first : {1, 2, 15}) {
        const nn::TokenIds text(tokens.begin(), tokens.begin() + std::ptrdiff_t(count));
        double want = 0;
        for (std::size_t at = 1, begin = 0; at < count; ++at) {
          if (at > begin + length) begin += length - overlap;
          const nn::TokenIds seen(text.begin() + std::ptrdiff_t(begin), text.begin() + std::ptrdiff_t(at) + 1);
          if (at >= first) want += reference(model, {seen, seen.size() - 1});
        }
        INFO(count << " tokens from " << first << ", overlap " << overlap);
        for (const std::size_t batch : {1, 3}) CHECK(nn::log_likelihood(model, text, first, overlap, batch) == Approx(want).epsilon(1e-5));
      }
  CHECK(message_of([&] { nn::log_likelihood(model, tokens, 1, length); }).find("an overlap below the model's length, 10, but got 10") !=
        std::string::npos);
}

TEST_CASE("Rows that cannot be scored are refused") {
  const nn::DecoderLM model = some_model();
  const auto refusal = [&](const nn::ScoredTokens& row) { return message_of([&] { nn::log_likelihoods(model, {{{1, 2}, 1}, row}); }); };
  CHECK(refusal({{1}, 1}).find("rows of 2 to 11 tokens, scored from the second or a later one, but row 1 has 1") != std::string::npos);
  CHECK(refusal({nn::TokenIds(12, 1), 1}).find("row 1 has 12") != std::string::npos);
  CHECK(refusal({{1, 2}, 0}).find("scored from 0") != std::string::npos);
  CHECK(refusal({{1, 2}, 3}).find("scored from 3") != std::string::npos);
  for (const std::int64_t id : {std::int64_t{-1}, vocab}) CHECK(refusal({{1, id}, 1}).find("ids in [0, 23)") != std::string::npos);
  CHECK(message_of([&] { nn::log_likelihoods(model, {}, 0); }).find("batch_size >= 1") != std::string::npos);
}
