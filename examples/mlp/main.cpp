// A multilayer perceptron from ready-made modules: which points lie within a ring. expected.txt is what this prints.
#include <tern/tern.h>

#include <iostream>

using namespace tern;

namespace {

/// Points (count, 2), and 1 for those in the ring of radii 0.5 to 1.2.
struct Points {
  Tensor xy, labels;
};
Points draw(std::int64_t count) {
  const Tensor xy = randn({count, 2}), radius = sqrt(sum(square(xy), 1));
  return {xy, cast(logical_and(radius > 0.5, radius < 1.2), DType::i64)};
}

double accuracy(const nn::Sequential& model, const Points& points) {
  const NoGrad unrecorded;
  return mean(cast(argmax(model(points.xy)) == points.labels, DType::f32)).item();
}

}  // namespace

int main() {
  manual_seed(1);
  nn::Sequential model(nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 32), nn::ReLU(), nn::Dropout(0.1), nn::Linear(32, 2));
  std::cout << model << "\n\n" << nn::summary(model) << '\n';

  const Points seen = draw(512), unseen = draw(512);
  train::AdamW optimizer(nn::parameters(model), {.lr = 0.01});
  for (int step = 0; step < 200; ++step) train::update(cross_entropy(model(seen.xy), seen.labels), optimizer);
  model.eval();  // no dropout
  std::cout << "more than 90 % of unseen points right: " << (accuracy(model, unseen) > 0.9 ? "yes" : "no") << '\n';
}
