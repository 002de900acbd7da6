// A small convolutional network: stripes in noise, across, along or diagonal. expected.txt is what this prints.
#include <tern/tern.h>

#include <iostream>

using namespace tern;

namespace {

constexpr std::int64_t side = 12, kinds = 3;

/// Images (count, 1, side, side) of noise with stripes, and the stripes' direction.
struct Images {
  Tensor pixels, labels;
};
Images draw(std::int64_t count) {
  std::vector<std::int64_t> labels;
  std::vector<float> pixels;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t kind = n % kinds, shift = n / kinds % 4;
    labels.push_back(kind);
    for (std::int64_t row = 0; row < side; ++row)
      for (std::int64_t column = 0; column < side; ++column) {
        const std::int64_t across = kind == 0 ? row : kind == 1 ? column : row + column;
        pixels.push_back((across + shift) % 4 < 2 ? 1.f : -1.f);
      }
  }
  return {Tensor::from(pixels, {count, 1, side, side}) + randn({count, 1, side, side}, 0, 1.5), Tensor::from(labels, {count})};
}

struct Net final : nn::Callable<Net> {
  nn::Sequential features{nn::Conv2d(1, 8, 3, {.padding = 1, .bias = false}),  nn::BatchNorm2d(8),  nn::ReLU(), nn::MaxPool2d(2),
                          nn::Conv2d(8, 16, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(16), nn::ReLU(), nn::AvgPool2d(3)};
  nn::Linear head{16 * 2 * 2, kinds};

  void visit(nn::Visitor& v) override {
    v("features", features);
    v("head", head);
  }
  Tensor forward(const Tensor& images) const { return head(flatten(features(images), 1)); }
};

}  // namespace

int main() {
  manual_seed(1);
  Net net;
  std::cout << net << "\n\n" << nn::summary(net) << '\n';

  train::AdamW optimizer(nn::parameters(net), {.lr = 0.01});
  for (int step = 0; step < 60; ++step) {
    const Images batch = draw(48);
    train::update(cross_entropy(net(batch.pixels), batch.labels), optimizer);
  }
  net.eval();  // BatchNorm takes its running statistics
  const NoGrad unrecorded;
  const Images unseen = draw(300);
  const double right = mean(cast(argmax(net(unseen.pixels)) == unseen.labels, DType::f32)).item();
  std::cout << "more than 95 % of unseen images right: " << (right > 0.95 ? "yes" : "no") << '\n';
  try {
    net(zeros({1, 3, side, side}));
  } catch (const Error& error) {
    std::cout << error.what() << '\n';
  }
}
