// Each module that has one natural input is called as a function, and errors name it.
#include "catch.h"
#include "message.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

using namespace tern;

namespace {

/// m(x) is m.forward(x), for a const module and one that is not; m(args...) passes further arguments on.
template <class M, class... Args>
void check_call(const M& module, const Args&... args) {
  M own = module;
  const Tensor expected = module.forward(args...);
  CHECK(all(eq(module(args...), expected)).template item<bool>());
  CHECK(all(eq(own(args...), expected)).template item<bool>());
}

}  // namespace

TEST_CASE("Each module of the library is called as a function", "[module]") {
  manual_seed(1);
  const Tensor x = randn({2, 3, 8}), images = randn({2, 4, 6, 6}), ids = Tensor::from({1, 2, 0, 3, 1, 2}, {2, 3});
  const auto evaluated = [](auto module) {
    module.eval();
    return module;
  };
  check_call(nn::Linear(8, 2), x);
  check_call(nn::Embedding(4, 8), ids);
  check_call(nn::LayerNorm(8), x);
  check_call(nn::RMSNorm(8), x);
  check_call(evaluated(nn::Dropout(0.5)), x);
  check_call(nn::GELU(), x);
  check_call(nn::ReLU(), x);
  check_call(nn::SiLU(), x);
  check_call(nn::Tanh(), x);
  check_call(nn::Sigmoid(), x);
  check_call(nn::LeakyReLU(), x);
  check_call(nn::ELU(), x);
  check_call(nn::Softplus(), x);
  check_call(nn::Flatten(), x);
  check_call(nn::Identity(), x);
  check_call(nn::Conv2d(4, 2, 3), images);
  check_call(nn::ConvTranspose2d(4, 2, 3), images);
  check_call(nn::Conv1d(3, 2, 3), x);
  check_call(nn::MaxPool2d(2), images);
  check_call(nn::AvgPool2d(2), images);
  check_call(nn::AdaptiveAvgPool2d(1), images);
  check_call(nn::AdaptiveMaxPool2d({2, 4}), images);
  check_call(evaluated(nn::BatchNorm1d(3)), x);
  check_call(evaluated(nn::BatchNorm2d(4)), images);
  check_call(nn::GroupNorm(2, 4), images);
  check_call(nn::FeedForward(8, 5), x);
  check_call(nn::MultiHeadAttention(8, {.heads = 2}), x);
  check_call(nn::MultiHeadAttention(8, {.heads = 2, .cross = true}), x, x);
  check_call(nn::TransformerLayer({.width = 8, .heads = 2, .ff = 5, .dropout = 0}), x);
  check_call(nn::TransformerLayer({.width = 8, .heads = 2, .ff = 5, .dropout = 0}), x, AttentionMask{.causal = true});
  check_call(nn::TransformerLayer({.width = 8, .heads = 2, .ff = 5, .dropout = 0}, true), x, AttentionMask{}, x, AttentionMask{});
  check_call(nn::Sequential(nn::TransformerLayer({.width = 8, .heads = 2, .ff = 5, .dropout = 0}), nn::Linear(8, 1)), x);
  check_call(nn::DecoderLM({.vocab = 4, .length = 3, .width = 8, .layers = 1, .heads = 2, .dropout = 0}), ids);
  const nn::EncoderDecoder translator(
      nn::EncoderDecoderOptions{{.vocab = 4, .length = 3, .width = 8, .layers = 1, .heads = 2, .ff = 5, .dropout = 0}, 1});
  check_call(translator, ids, Tensor::from({3, 2}, {2}), ids);
  CHECK(nn::LSTM(8, 5)(x).y.shape() == Shape{2, 3, 5});
  CHECK(nn::GRU(8, 5)(x).y.shape() == Shape{2, 3, 5});
}

TEST_CASE("A called module is named once in an error", "[module]") {
  const nn::TransformerLayer layer({.width = 8, .heads = 2, .ff = 5, .dropout = 0});
  CHECK(contains(message_of([&] { layer(ones({2, 3, 7})); }), "norm1 (LayerNorm)"));
  const nn::FeedForward ff(8, 5);
  CHECK(contains(message_of([&] { ff(ones({2, 7})); }), "in module fc (Linear)"));
}

TEST_CASE("A transposed convolution's sizes, settings and errors are PyTorch's", "[module]") {
  manual_seed(2);
  const nn::ConvTranspose2d up(4, 6, {4, 2}, {.stride = {2, 1}, .padding = {1, 0}, .groups = 2});
  CHECK(up.weight.shape() == Shape{4, 3, 4, 2});
  CHECK(up.bias.shape() == Shape{6});
  CHECK(max(abs(up.weight)).item() <= 1 / std::sqrt(3.0 * 4 * 2));
  CHECK(max(abs(up.bias)).item() <= 1 / std::sqrt(3.0 * 4 * 2));
  CHECK(up(zeros({1, 4, 5, 5})).shape() == Shape{1, 6, 10, 6});
  CHECK(up.settings() == "in=4, out=6, kernel=(4, 2), stride=(2, 1), padding=(1, 0), groups=2");
  CHECK(nn::ConvTranspose2d(1, 1, 3, {.stride = 2, .output_padding = 1, .bias = false}).settings() ==
        "in=1, out=1, kernel=3, stride=2, output_padding=1, bias=false");
  CHECK_THROWS_WITH(nn::ConvTranspose2d(1, 1, 3, {.output_padding = 1}),
                    "[ConvTranspose2d] expected an output_padding below the stride but got 1 and 1");
  CHECK(contains(message_of([&] { nn::ConvTranspose2d(2, 3, 3, {.groups = 2}); }), "groups that divide in and out"));
  CHECK(nn::AdaptiveAvgPool2d({2, 3}).settings() == "size=(2, 3)");
  CHECK(nn::AdaptiveMaxPool2d(2).settings() == "size=2");
}
