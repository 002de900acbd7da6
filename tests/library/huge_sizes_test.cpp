// Sizes, strides, offsets, paddings and dilations that do not fit into 64 bits, or only just: one line of Error from each, and no wrong
// result.
#include <tern/tern.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catch.h"
#include "message.h"
#include "plain.h"

using namespace tern;

namespace {

constexpr std::int64_t most = INT64_MAX, half = std::int64_t(1) << 62, quarter = std::int64_t(1) << 61;
/// A multiple of these is a small number modulo 2^64.
constexpr std::int64_t third = 6148914691236517206, fourth = half;

struct Attempt {
  const char* text;
  std::function<void()> call;
};

/// Checks that each is an Error of one line that begins with [a name].
void check_refused(const std::vector<Attempt>& attempts) {
  for (const Attempt& attempt : attempts) {
    INFO(attempt.text);
    const std::string message = message_of(attempt.call);
    CAPTURE(message);
    CHECK(message.starts_with('['));
    CHECK(message.find('\n') == std::string::npos);
  }
}

const Tensor image = ones({1, 1, 4, 4}), signal = ones({1, 1, 4}), vector = ones({4}), matrix = ones({2, 3});

}  // namespace

TEST_CASE("Windows beyond 64 bits are errors") {
  check_refused({
      {"conv2d dilation 2^62", [] { conv2d(image, ones({1, 1, 5, 5}), {}, {.dilation = {half, half}}); }},
      {"conv2d dilation 2^61", [] { conv2d(image, ones({1, 1, 9, 9}), {}, {.dilation = {quarter, quarter}}); }},
      {"plain conv2d dilation", test::plain([] { conv2d(image, ones({1, 1, 5, 5}), {}, {.dilation = {half, half}}); })},
      {"conv1d dilation", [] { conv1d(signal, ones({1, 1, 5}), {}, {.dilation = half}); }},
      {"conv2d padding 2^62", [] { conv2d(image, ones({1, 1, 1, 1}), {}, {.stride = {half, half}, .padding = {half, half}}); }},
      {"conv2d padding 2^63 - 1", [] { conv2d(image, ones({1, 1, 3, 3}), {}, {.padding = {most, most}}); }},
      {"conv2d padding 2^61 - 3",
       [] { conv2d(image, ones({1, 1, 3, 3}), {}, {.stride = {half, half}, .padding = {quarter - 3, quarter - 3}}); }},
      {"conv1d padding", [] { conv1d(signal, ones({1, 1, 3}), {}, {.padding = most}); }},
      {"conv2d groups", [] { conv2d(ones({1, 0, 4, 4}), ones({fourth, 4, 1, 1}), {}, {.groups = fourth}); }},
      {"unfold dilation", [] { unfold(image, {.kernel = {5, 5}, .dilation = {half, half}}); }},
      {"unfold padding", [] { unfold(image, {.kernel = {2, 2}, .padding = {most, most}}); }},
      {"unfold kernel", [] { unfold(image, {.kernel = {most, most}, .padding = {half, half}}); }},
      {"fold dilation", [] { fold(ones({1, 25, 16}), 4, 4, {.kernel = {5, 5}, .dilation = {half, half}}); }},
      {"fold height", [] { fold(ones({1, 4, 9}), most, most, {.kernel = {2, 2}, .padding = {1, 1}}); }},
      {"avg_pool2d stride and padding", [] { avg_pool2d(image, {.kernel = {2, 2}, .stride = {most, most}, .padding = {2, 2}}); }},
      {"max_pool2d kernel", [] { max_pool2d(image, {.kernel = {most, most}, .padding = {most / 2, most / 2}}); }},
      {"max_pool2d padding", [] { max_pool2d(image, {.kernel = {2, 2}, .padding = {half, half}}); }},
      {"avg_pool2d padding", [] { avg_pool2d(image, {.kernel = {most, most}, .padding = {half, half}}); }},
      {"depthwise_conv1d left", [] { depthwise_conv1d(ones({1, 4, 2}), ones({2, 3}), {}, {.padding = ConvPadding::given, .left = most}); }},
      {"sliding_window size", [] { sliding_window(vector, 0, most, 1); }},
      {"upsample_nearest", [] { upsample_nearest(image, most); }},
      {"nn::Conv2d dilation", [] { nn::Conv2d(1, 1, 5, {.dilation = half})(image); }},
      {"nn::Conv2d kernel", [] { nn::Conv2d(1, 1, most); }},
      {"nn::MaxPool2d padding", [] { nn::MaxPool2d(3, {.padding = half})(image); }},
  });
  // A stride or a dilation that is never taken may be any number.
  CHECK(conv2d(image, ones({1, 1, 1, 1}), {}, {.stride = {most, most}, .dilation = {most, most}}).shape() == Shape{1, 1, 1, 1});
  CHECK(sum(unfold(image, {.kernel = {1, 1}, .stride = {most, most}, .dilation = {most, most}})).item() == 1);
  CHECK(sum(avg_pool2d(image, {.kernel = {2, 2}, .stride = {most, most}, .padding = {1, 1}})).item() == 0.25);
  CHECK(sum(sliding_window(vector, 0, 2, most)).item() == 2);
}

TEST_CASE("Shapes beyond 64 bits are errors") {
  float number = 0;
  const auto blob = [&](const Shape& shape, const Strides& strides) { from_blob(&number, shape, DType::f32, {}, {.strides = strides}); };
  check_refused({
      {"zeros", [] { zeros({half, 4}); }},
      {"zeros of no elements", [] { zeros({0, half, 4}); }},
      {"rand", [] { rand({half, 4}); }},
      {"randint", [] { randint(0, 2, {half, 2}); }},
      {"randperm", [] { randperm(half); }},
      {"arange", [] { arange(0, 1e300, 1); }},
      {"arange of a range that is infinite", [] { arange(-1e308, 1e308, 1, DType::f64); }},
      {"linspace", [] { linspace(0, 1, most); }},
      {"linspace of a range that is infinite", [] { linspace(-1.7e308, 1.7e308, 5, DType::f64); }},
      {"eye", [] { eye(most, most); }},
      {"expand", [] { expand(ones({1, 1}), {half, 4}); }},
      {"broadcast_to", [] { broadcast_to(ones({1, 1}), {most, most}); }},
      {"reshape", [] { reshape(vector, {half, 4, -1}); }},
      {"reshape of a wrapped product", [] { reshape(vector, {half, 4, 4}); }},
      {"repeat", [] { repeat(vector, half, 0); }},
      {"tile", [] { tile(vector, {half}); }},
      {"tile of a wrapped product", [] { tile(ones({2}), {most, 2}); }},
      {"pad", [] { pad(vector, 0, most, most); }},
      {"pad by one too many", [] { pad(vector, 0, most - 3, 0); }},
      {"cat", [] { cat({expand(ones({1}), {most}), vector}); }},
      {"stack", [] { stack({expand(ones({1}), {most}), expand(ones({1}), {most})}); }},
      {"diag", [] { diag(vector, most); }},
      {"diag below", [] { diag(vector, INT64_MIN); }},
      {"one_hot", [] { one_hot(zeros({4}, DType::i64), half); }},
      {"bincount", [] { bincount(Tensor::from({most}, {1})); }},
      {"bincount of a least size", [] { bincount(zeros({1}, DType::i64), {}, most); }},
      {"outer product", [] { expand(ones({1, 1}), {half, 1}) * expand(ones({1, 1}), {1, 4}); }},
      {"window stride", [] { vector.window({2}, {INT64_MIN}, 0); }},
      {"window offset", [] { vector.window({2}, {1}, most); }},
      {"window strides", [] { vector.window({3, 3}, {half, half}, 0); }},
      {"from_blob shape", [&] { from_blob(&number, {half, 4}, DType::f32); }},
      {"from_blob strides", [&] { blob({3, 3}, {half, half}); }},
      {"from_blob of both signs", [&] { blob({2, 2}, {most, -most}); }},
      {"from_blob of the least stride", [&] { blob({2}, {INT64_MIN}); }},
      {"rope_table", [] { rope_table(half, 8); }},
      {"sinusoid_table", [] { nn::sinusoid_table(half, 8); }},
      {"multinomial", [] { multinomial(vector, most, true); }},
  });
  // Numbers that are never used may be any, and slices end at the bounds.
  CHECK(flip(from_blob(&number, {1}, DType::f32, {}, {.strides = Strides{INT64_MIN}}), {0}).numel() == 1);
  CHECK(unsqueeze(from_blob(nullptr, {0, 5}, DType::f32, {}, {.strides = Strides{most, most}}), 1).numel() == 0);
  CHECK(diagonal(matrix, INT64_MIN).numel() == 0);
  CHECK(diagonal(matrix, most).numel() == 0);
  CHECK(diagonal(matrix, 2).to_vector<float>() == std::vector<float>{1});
  CHECK(chunk(vector, most).size() == 4);
  CHECK(split(vector, most).size() == 1);
  CHECK(slice(vector, 0, INT64_MIN, most, most).numel() == 1);
  CHECK(roll(vector, INT64_MIN, 0).numel() == 4);
  CHECK(sum(tril(matrix, INT64_MIN)).item() == 0);
  CHECK(sum(triu(matrix, INT64_MIN)).item() == 6);
}

TEST_CASE("Results that no memory holds end in OutOfMemory, and more rows in a chunk than there are is all of them") {
  const std::int64_t many = std::int64_t(1) << 45;
  CHECK_THROWS_AS(adaptive_avg_pool2d(ones({1, 1, 2, 2}), {many + 1, 1}), OutOfMemory);
  CHECK_THROWS_AS(adaptive_max_pool2d(ones({1, 1, 2, 2}), {1, many + 1}), OutOfMemory);
  const Tensor x = randn({3, 4}), weight = randn({5, 4}), targets = full({3}, 2, DType::i64);
  const Tensor whole = linear_cross_entropy(x, weight, {}, targets);
  CHECK(linear_cross_entropy(x, weight, {}, targets, {}, most).item() == whole.item());
}

TEST_CASE("A window of attention beyond 64 bits hides nothing, forward and backward") {
  manual_seed(1);
  const Tensor q = randn({1, 3, 1, 2}).set_requires_grad(), k = randn({1, 3, 1, 2}).set_requires_grad(), v = randn({1, 3, 1, 2});
  const auto gradients = [&](std::int64_t window) {
    const Tensors g = grad({sum(square(scaled_dot_product_attention(q, k, v, {.mask = {.causal = true, .window = window}})))}, {q, k});
    return cat({g[0], g[1]}).to_vector<float>();
  };
  for (const bool fused : {false, true}) {
    const FusedKernels kernels(fused);
    for (const std::int64_t window : {half, most}) CHECK(gradients(window) == gradients(8));
  }
}

TEST_CASE("Modules and searches of sizes beyond 64 bits are errors") {
  check_refused({
      {"nn::Linear", [] { nn::Linear(half, 4); }},
      {"nn::Embedding", [] { nn::Embedding(half, 4); }},
      {"nn::LSTM", [] { nn::LSTM(3, fourth); }},
      {"nn::GRU", [] { nn::GRU(3, third); }},
      {"nn::MultiHeadAttention head_dim", [] { nn::MultiHeadAttention(8, {.heads = 4, .head_dim = fourth}); }},
      {"nn::MultiHeadAttention width", [] { nn::MultiHeadAttention(third, {.heads = 2}); }},
      {"nn::DecoderLM", [] { nn::DecoderLM({.vocab = half, .length = 8, .width = 8, .layers = 1, .heads = 2, .ff = 16}); }},
      {"nn::DecoderLM ff", [] { nn::DecoderLM({.vocab = 8, .length = 8, .width = 8, .layers = 1, .heads = 2, .ff = half}); }},
      {"nn::KvCache", [] { nn::KvCache(most, most, 1); }},
  });
  for (const nn::Search search : {nn::Search::beam, nn::Search::sample}) {
    nn::Continuation text;
    text.logits = zeros({1, 4});
    text.limits = {2};
    text.select = [](const Tensor&, bool) {};
    text.next = [](const Tensor& ids) { return zeros({ids.size(0), 4}); };
    check_refused({{"generate", [&] { nn::generate(text, {.search = search, .n_best = most, .beam = most}); }}});
  }
}
