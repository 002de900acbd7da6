// GELUs of linear layers as epilogues of their products, where nobody sees the difference.
#include <functional>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"
#include "tensor/context.h"

using namespace tern;

namespace {

constexpr std::int64_t rows = 6, in_width = 24, width = 40;

using OfHidden = std::function<Tensors(const Tensor& x, const Tensor& weight, const Tensor& bias)>;

/// Number of kernels of that op in the program of a function, whose results are those as written in four calls.
std::size_t kernels_in(const OfHidden& f, const std::string& op, DType dtype) {
  auto compiled = tern::compile([&](const Tensors& in) { return f(in[0], in[1], in[2]); }, default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 4; ++call) {
    const Tensors in = {randn({2, rows, in_width}, 0, 1, dtype), randn({width, in_width}, 0, 0.3, dtype), randn({width}, 0, 1, dtype)};
    const Tensors want = f(in[0], in[1], in[2]), got = compiled(in);
    // An epilogue rounds once: by a unit of the dtype, of values of up to 8.
    const double bound = dtype == DType::f32 ? default_device() == cpu ? 0 : 4e-5 : 0.0625;
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(allclose(got[i], want[i], bound, bound));
  }
  std::size_t count = 0;
  for (const auto& group : compiled.overview().groups)
    for (const std::string& kernel : group.kernels) count += kernel == op;
  return count;
}

void epilogues(DType dtype) {
  const auto count = [&](const OfHidden& f, const char* op = "linear_gelu") { return kernels_in(f, op, dtype); };
  const OfHidden plain = [](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors { return {gelu_tanh(linear(x, w, b))}; };
  CHECK(count(plain) == 1);
  CHECK(count(plain, "gelu_tanh") == 0);
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor&) -> Tensors { return {gelu_tanh(linear(x, w))}; }) == 1);
  // With gradients, for which the layer's result is kept, and with somebody else who reads it.
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors {
          const Tensor leaf = w.detach().set_requires_grad(), before = linear(x, leaf, b), y = gelu_tanh(before);
          return {grad({y * y}, {leaf}, {y.detach()})[0], y.detach(), before.detach() + 1.0};
        }) == 1);
  // Of two GELUs the first.
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors {
          const Tensor before = linear(x, w, b);
          return {gelu_tanh(before) * 2.0, gelu_tanh(before) + 1.0};
        }) == 1);
  // Another function; a result that is edited before; parts of it; another order; a place in memory that another kernel writes first.
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors { return {gelu(linear(x, w, b))}; }) == 0);
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors {
          Tensor before = linear(x, w, b);
          add_(before, 1.0);
          return {gelu_tanh(before)};
        }) == 0);
  for (const int dim : {0, 2})
    for (const std::int64_t first : {0, 1})
      CHECK(count([=](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors {
              return {gelu_tanh(slice(linear(x, w, b), dim, first, first + 1))};
            }) == 0);
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors { return {gelu_tanh(transpose(linear(x, w, b), 1, 2))}; }) ==
        0);
  CHECK(count([](const Tensor& x, const Tensor& w, const Tensor& b) -> Tensors {
          return {cat({relu(linear(x, w)), gelu_tanh(linear(x, w, b))}, 0)};
        }) == 0);
}

}  // namespace

TEST_CASE("A GELU of a linear layer is an epilogue of its product in programs of a GPU") {
  for (const DType dtype : {DType::f32, DType::bf16}) epilogues(dtype);
}
TEST_CASE("A GELU of a linear layer is an epilogue of its product on a GPU", "[cuda]") {
  const DeviceScope on_gpu(cuda());
  for (const DType dtype : {DType::f32, DType::bf16}) epilogues(dtype);
}
