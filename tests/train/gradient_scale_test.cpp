// Gradients of whole models below float32, by their size. Adam divides the size out, so that losses of trainings with it are much the same
// where a gradient is half of what it should be.

#include <cmath>

#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/train.h"

using namespace tern;

namespace {

double length_of(const Tensor& x) { return std::sqrt(sum(square(cast(x, DType::f64))).item<double>()); }

/// A model with each kind of parameter, and a batch.
struct Task {
  explicit Task(nn::NormKind norm, Device device) {
    manual_seed(21);
    model = nn::DecoderLM({.vocab = 50, .length = 12, .width = 32, .layers = 2, .heads = 4, .ff = 48, .dropout = 0, .norm = norm});
    nn::to(model, device);
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < 8 * 13; ++i) tokens.push_back((7 * i + i * i) % 50);
    const Tensor all = to(Tensor::from(tokens, {8, 13}), device);
    ids = slice(all, 1, 0, 12);
    labels = slice(all, 1, 1, 13);
  }
  nn::DecoderLM model;
  Tensor ids, labels;
};

void check_gradients(Device device) {
  for (const bool is_fused : {false, true})
    for (const auto norm : {nn::NormKind::layer, nn::NormKind::rms})
      for (const auto precision : {train::Precision::bf16, train::Precision::fp16}) {
        const FusedKernels kernels(is_fused);
        Task exact(norm, device), narrow(norm, device);
        train::set_precision(narrow.model, precision);
        // 2^6: gradients of fp16 well above its smallest numbers.
        (exact.model.loss(exact.ids, exact.labels) * 64).backward();
        (narrow.model.loss(narrow.ids, narrow.labels) * 64).backward();
        const auto want = nn::named_parameters(exact.model), got = nn::named_parameters(narrow.model);
        REQUIRE(want.size() == got.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          INFO(want[i].name << ", precision " << int(precision) << ", fused " << is_fused);
          const Tensor w = cast(want[i].tensor.grad(), DType::f64), g = cast(got[i].tensor.grad(), DType::f64);
          // The bias of keys shifts all scores of a row, whose softmax does not change: that part of its gradient is 0 but for rounding.
          REQUIRE(length_of(w) > 1e-3);
          CHECK(length_of(g) / length_of(w) == Approx(1).epsilon(0.03));
          CHECK(length_of(g - w) < 0.06 * length_of(w));
        }
      }
}

/// How far SGD's steps, which have the size of the gradients, take the parameters.
void check_sgd(Device device) {
  std::vector<std::vector<float>> losses;
  std::vector<double> lengths;
  for (const auto precision : {train::Precision::fp32, train::Precision::bf16}) {
    Task task(nn::NormKind::layer, device);
    train::set_precision(task.model, precision);
    Tensors first;
    for (const auto& master : nn::named_masters(task.model)) first.push_back(clone(master.tensor.detach()));
    train::SGD optimizer(nn::parameters(task.model), {.lr = 0.3});
    losses.emplace_back();
    for (int step = 0; step < 20; ++step) {
      const Tensor loss = task.model.loss(task.ids, task.labels);
      losses.back().push_back(cast(loss, DType::f32).item<float>());
      train::update(loss, optimizer, {});
    }
    double moved = 0;
    const auto masters = nn::named_masters(task.model);
    for (std::size_t i = 0; i < first.size(); ++i) moved += std::pow(length_of(masters[i].tensor.detach() - first[i]), 2);
    lengths.push_back(std::sqrt(moved));
  }
  CHECK(losses[0].back() < 0.8f * losses[0].front());
  CHECK(losses[0].front() - losses[0].back() == Approx(losses[1].front() - losses[1].back()).epsilon(0.03));
  CHECK(lengths[1] == Approx(lengths[0]).epsilon(0.03));
}

}  // namespace

TEST_CASE("Each gradient of a model in 16 bits has the size of float32's", "[precision]") { check_gradients(cpu); }
TEST_CASE("Each gradient of a model in 16 bits has the size of float32's on a GPU", "[precision][cuda]") { check_gradients(cuda()); }
TEST_CASE("SGD goes as far in bf16 as in float32", "[precision]") { check_sgd(cpu); }
TEST_CASE("SGD goes as far in bf16 as in float32 on a GPU", "[precision][cuda]") { check_sgd(cuda()); }
