// Convolutions and max_pool2d of the CPU's kernels beside their compositions, at sizes that the op table is too slow for: several bands,
// blocks of the depth, panels of channels, and what is left over at each edge.
#include <array>
#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

using namespace tern;

namespace {

struct Shapes {
  Shape x, w;
  ConvOptions options = {};
};
const std::vector<Shapes> shapes = {
    {{3, 3, 16, 16}, {16, 3, 3, 3}, {.padding = {1, 1}}},
    {{2, 16, 8, 8}, {32, 16, 3, 3}, {.padding = {1, 1}}},
    {{1, 40, 9, 11}, {47, 40, 3, 3}, {.padding = {1, 1}}},                  // depth 360, channels 47
    {{1, 2, 70, 65}, {5, 2, 5, 3}, {.padding = {2, 0}}},                    // rows in several bands
    {{1, 3, 40, 301}, {4, 3, 3, 3}},                                        // a row is more than a band
    {{2, 4, 33, 17}, {6, 4, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},  // phases
    {{2, 4, 14, 15}, {6, 4, 1, 1}, {.stride = {2, 3}}},                     // elements that no window sees
    {{1, 6, 19, 21}, {9, 2, 3, 4}, {.stride = {2, 3}, .padding = {3, 2}, .dilation = {3, 2}, .groups = 3}},
    {{2, 20, 7, 7}, {20, 1, 3, 3}, {.padding = {1, 1}, .groups = 20}},
    {{5, 3, 4, 1}, {2, 3, 2, 1}, {.padding = {1, 4}}},    // columns of padding alone
    {{130, 2, 3, 3}, {70, 2, 3, 3}},                      // one position, three panels of channels
    {{7, 3, 32, 32}, {5, 3, 3, 3}, {.padding = {1, 1}}},  // as columns: a product for each image
    {{7, 6, 24, 24}, {5, 6, 1, 1}},                       // the images are the columns
    {{7, 6, 5, 5}, {5, 6, 1, 1}},
};

/// y, and the gradients of the operands from a gradient of y that differs from place to place.
template <class F>
Tensors all_of(F f, const Tensors& operands) {
  Tensors leaves;
  for (const Tensor& operand : operands) leaves.push_back(clone(operand).set_requires_grad());
  const Tensor y = f(leaves);
  manual_seed(3);
  backward({y}, {to(randn(y.shape(), y.dtype()), y.device())});
  Tensors all = {to(y, cpu)};
  for (const Tensor& leaf : leaves) all.push_back(to(leaf.grad(), cpu));
  return all;
}

/// The largest difference, of the largest element.
double distance(const Tensor& a, const Tensor& b) { return max(abs(a - b)).item<double>() / std::max(max(abs(b)).item<double>(), 1e-3); }

}  // namespace

TEST_CASE("convolutions by columns are the same whatever number of images a product has", "[convolution]") {
  for (const DType dtype : {DType::f64, DType::bf16})
    for (const Shapes& s : shapes) {
      INFO(name(dtype) << " x " << to_string(s.x) << " w " << to_string(s.w));
      std::int64_t of_image = static_cast<std::int64_t>(size_of(dtype)) * s.x[1];
      for (int i = 0; i < 2; ++i) {
        const auto d = static_cast<std::size_t>(i);
        const std::int64_t rest = s.x[2 + i] + 2 * s.options.padding[d] - s.options.dilation[d] * (s.w[2 + i] - 1) - 1;
        of_image *= s.w[2 + i] * (rest / s.options.stride[d] + 1);
      }
      manual_seed(6);
      // Small integers: sums are exact, in bf16 too before they are rounded, whatever their order.
      const auto integers = [&](const Shape& shape) { return cast(floor(rand(shape) * 3) - 1, dtype); };
      const Tensors operands = {integers(s.x), integers(s.w), integers({s.w[0]})};
      const auto by = [&](std::int64_t bytes) {
        return all_of([&](const Tensors& t) { return detail::conv2d_by_columns(t[0], t[1], t[2], s.options, bytes); }, operands);
      };
      const Tensors wanted = all_of([&](const Tensors& t) { return conv2d(t[0], t[1], t[2], s.options); }, operands);
      for (const std::int64_t images : {1, 3, 1000}) {
        const Tensors got = by(images * of_image);
        for (std::size_t i = 0; i < got.size(); ++i) {
          INFO(images << " images, result " << i);
          // In bf16 the weights' gradient is rounded for each run of images, and the columns' before they are folded.
          CHECK(distance(cast(got[i], DType::f64), cast(wanted[i], DType::f64)) < (dtype == DType::f64 ? 1e-14 : 0.03));
        }
      }
    }
}

TEST_CASE("a convolution by columns has few of them at a time and keeps none", "[convolution]") {
  const Tensor x = ones({256, 3, 16, 16}), w = ones({2, 3, 3, 3}).set_requires_grad();
  const std::size_t of_image = 4 * 3 * 9 * 256, of_all = 256 * of_image, of_y = 4 * 256 * 2 * 256;
  const std::size_t before = memory_statistics(cpu).allocated;
  reset_peak_memory(cpu);
  const Tensor y = detail::conv2d_by_columns(x, w, {}, {.padding = {1, 1}}, 4 * of_image);
  CHECK(memory_statistics(cpu).peak_allocated - before < of_y + of_all / 8);
  CHECK(memory_statistics(cpu).allocated - before < of_y + of_image);
  backward({y}, {ones_like(y)});
  CHECK(memory_statistics(cpu).peak_allocated - before < 2 * of_y + of_all / 8);
}

TEST_CASE("max_pool2d hands on a NaN", "[convolution]") {
  const Tensor x = Tensor::from(std::vector<float>{1, std::nanf(""), 3, 4, 5, 6, 7, 8}, {1, 1, 2, 4});
  for (const PoolOptions& options : {PoolOptions{.kernel = {2, 2}}, {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}}}) {
    const std::vector<float> y = max_pool2d(x, options).to_vector<float>();
    CHECK(std::isnan(options.padding[0] ? y[1] : y[0]));
    CHECK(y.back() == 8);
  }
}
