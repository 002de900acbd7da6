// Groups of rows on a GPU: reductions of rows, sums of columns, values computed again, copies that are dropped. Sums have another order
// than those as written, so results are compared by the norm of their difference.
#include <cmath>
#include <functional>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "written_ops.h"

using namespace tern;
using namespace tern::test;

namespace {

using Function = std::function<Tensor(const Tensors&)>;

/// The function and its gradients with respect to all arguments, compiled, beside those as written; twice, for parts that a first run
/// leaves.
void check(const Function& f, const std::vector<Shape>& shapes, DType dtype, std::size_t most_kernels) {
  const Tensor weights = randn({1 << 21});
  const double bound = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 3e-3 : 2e-2;
  const auto both = [&](const Tensors& in) -> Tensors {
    Tensors leaves;
    for (const Tensor& x : in) leaves.push_back(x.detach()), leaves.back().set_requires_grad();
    const Tensor y = f(leaves);
    Tensors results = grad({y}, leaves, {cast(reshape(slice(weights, 0, 0, y.numel()), y.shape()), dtype)});
    results.push_back(y.detach());
    return results;
  };
  auto compiled = tern::compile(both, default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 5; ++call) {
    Tensors in;
    for (const Shape& shape : shapes) in.push_back(randn(shape, 0, 1, dtype));
    const Tensors want = both(in), got = compiled(in);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto a = cast(want[i], DType::f64).to_vector<double>(), b = cast(got[i], DType::f64).to_vector<double>();
      double distance = 0, norm = 1e-30;
      for (std::size_t k = 0; k < a.size(); ++k) distance += (a[k] - b[k]) * (a[k] - b[k]), norm += a[k] * a[k];
      if (!(std::sqrt(distance / norm) < bound))
        FAIL_CHECK("call " << call << ", result " << i << ": " << std::sqrt(distance / norm) << "\n" << compiled.show(Stage::code));
    }
  }
  const std::string report = compiled.report();
  INFO(report);
  CHECK_FALSE(contains(report, "op by op"));
  if (default_device() == cpu) return;
  const std::size_t at = report.find(" kernels in ");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoul(report.substr(at + 12)) <= most_kernels);
}

void norms() {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Shape& shape :
         {Shape{3, 5, 16}, Shape{700, 37}, Shape{4, 512, 512}, Shape{129, 1000}, Shape{33, 4096}, Shape{70, 10000}, Shape{5, 16384}}) {
      INFO(to_string(shape) << " " << name(dtype));
      const std::int64_t columns = shape.back();
      check([](const Tensors& in) { return layer_norm_of_ops(in[0], in[1], in[2]); }, {shape, {columns}, {columns}}, dtype, 8);
    }
}

void softmaxes() {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor mask = triu(full({65, 65}, -1e4), 1);
    check([&](const Tensors& in) { return cast(softmax_of_ops(cast(in[0], DType::f32) * 0.5 + mask), dtype); }, {{2, 3, 65, 65}}, dtype, 5);
    check([&](const Tensors& in) { return softmax_of_ops(in[0] * in[1]) + in[2]; }, {{4, 3, 64, 128}, {3, 1, 128}, {4, 1, 64, 1}}, dtype,
          12);
    check([&](const Tensors& in) { return logsumexp(in[0] * 2.0, -1) + mean(in[0], -1); }, {{77, 1000}}, dtype, 6);
  }
  // A row without a finite element.
  auto f = tern::compile([](const Tensor& x) { return logsumexp(x * 1.0, -1); }, default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 5; ++call) {
    const Tensor x = cat({full({1, 64}, -INFINITY), full({1, 64}, INFINITY), full({1, 64}, NAN), zeros({1, 64})}, 0);
    const auto y = f(x).to_vector<float>();
    CHECK((y[0] == -INFINITY && y[1] == INFINITY && std::isnan(y[2]) && std::abs(y[3] - std::log(64.f)) < 1e-5f));
  }
}

void heads() {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto attention = [](const Tensors& in) {
      const std::int64_t batch = 2, length = 48, heads = 3, d = 32;
      const Tensor all = transpose(reshape(matmul(in[0], in[1]) + in[2], {batch, length, 3 * heads, d}), 1, 2);
      const Tensors qkv = split(all, heads, 1);
      const Tensor scores = matmul(qkv[0], transpose(qkv[1], -2, -1)) * 0.005;
      const Tensor mixed = reshape(transpose(matmul(softmax_of_ops(scores), qkv[2]), 1, 2), {batch, length, heads * d});
      return matmul(norm_of_ops(mixed + in[0]), in[3]);
    };
    check(attention, {{2, 48, 96}, {96, 288}, {288}, {96, 96}}, dtype, 40);
    const auto chain = [](const Tensors& in) {
      const Tensor x = matmul(in[0], in[1]);
      return matmul(gelu_of_ops(x) + in[3], in[2]);
    };
    check(chain, {{1000, 64}, {64, 512}, {512, 64}, {512}}, dtype, 14);
  }
}

void batch_norms() {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{8, 6, 16, 16}, Shape{32, 64, 4, 4}, Shape{3, 5, 70, 33}, Shape{4, 3, 1, 5}, Shape{2, 70, 9}}) {
      INFO(to_string(shape) << " " << name(dtype));
      const Shape channels = shape.size() == 4 ? Shape{shape[1], 1, 1} : Shape{shape[1], 1};
      check([](const Tensors& in) { return batch_norm_of_ops(in[0], in[1], in[2]); }, {shape, channels, channels}, dtype, 30);
    }
}

void columns() {
  const Tensor weight = randn({64}), x = randn({300, 64});
  const auto passes = [&](const Tensor& leaf, const Tensor& a) {
    for (int pass = 0; pass < 2; ++pass) backward({sum(tanh(a * leaf) * (leaf + pass))});  // the second adds to the first's
  };
  Tensor expected = weight.detach(), leaf = weight.detach();
  expected.set_requires_grad(), leaf.set_requires_grad();
  auto step = tern::compile(
      [&](const Tensor& a) {
        leaf.set_grad({});
        passes(leaf, a);
        return zeros({1});
      },
      default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 6; ++call) {
    step(x + call);
    expected.set_grad({});
    passes(expected, x + call);
    const auto a = expected.grad().to_vector<float>(), b = leaf.grad().to_vector<float>();
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-4f * (1 + std::abs(a[i])));
  }
}

/// A result and a copy of it that has other strides, and a product of which only such a copy is read.
void copied() {
  const NoGrad unrecorded;
  const auto f = [](const Tensors& in) -> Tensors {
    const Tensor y = matmul(in[0], in[1]);
    return {y, contiguous(transpose(y, 0, 1)), sum(contiguous(transpose(matmul(in[0], in[2]), 0, 1)), 1)};
  };
  auto compiled = tern::compile(f, default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 5; ++call) {
    const Tensors in{randn({200, 30}), randn({30, 100}), randn({30, 90})}, want = f(in), got = compiled(in);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(norm(want[i] - got[i]).item<float>() <= 1e-5f * norm(want[i]).item<float>());
  }
}

/// Operands of values are edited before those are read again.
void edited() {
  const Tensor w = randn({320, 320});
  const auto f = [&](const Tensor& a) {
    const NoGrad unrecorded;
    const Tensor x = a * 0.5, first = exp(x), second = sin(x), product = matmul(first + second, w);
    copy_(x, transpose(product, 0, 1));  // a kernel of its own
    return first * product + second * x;
  };
  auto compiled = tern::compile(f, default_device(), {.as_on_gpu = true});
  for (int call = 0; call < 5; ++call) {
    const Tensor a = randn({320, 320}), difference = f(a) - compiled(a);
    CHECK(norm(difference).item<float>() <= 1e-4f * norm(f(a)).item<float>());
  }
}

}  // namespace

TEST_CASE("Groups of rows, kernel by kernel, give the results and gradients as written") {
  norms();
  softmaxes();
  heads();
  batch_norms();
  columns();
  copied();
  edited();
}
TEST_CASE("Norms of ops with their gradients, sums of columns among them, on a GPU", "[cuda]") {
  const DeviceScope here(cuda());
  norms();
}
TEST_CASE("Softmax of ops with masks and scales that rows share, on a GPU", "[cuda]") {
  const DeviceScope here(cuda());
  softmaxes();
}
TEST_CASE("Batch norms of ops on a GPU", "[cuda]") {
  const DeviceScope here(cuda());
  batch_norms();
}
TEST_CASE("Sums over a batch and its pixels are sums of rows, and sums of these, of which one kernel has several") {
  const auto f = [](const Tensors& in) {
    const Tensor x = in[0].detach().set_requires_grad();
    return grad({batch_norm_of_ops(x, in[1], in[2])}, {x}, {in[3]});
  };
  auto compiled = tern::compile(f, cpu, {.as_on_gpu = true});
  Tensors in;
  for (const Shape& shape : {Shape{4, 6, 16, 16}, Shape{6, 1, 1}, Shape{6, 1, 1}, Shape{4, 6, 16, 16}}) in.push_back(randn(shape));
  for (int call = 0; call < 3; ++call) compiled(in);
  const std::string code = compiled.show(Stage::code);
  INFO(code);
  CHECK(contains(code, "reduce_row<RowSum, 16>"));
  // Those of f64, which no kernel of a group adds up, stay whole, and have their bits.
  auto wide = tern::compile([](const Tensors& x) { return Tensors{sum(x[0], {0, 2})}; }, cpu, {.as_on_gpu = true});
  in = {randn({4, 6, 16}, DType::f64)};
  for (int call = 0; call < 3; ++call) wide(in);
  CHECK(wide.overview().groups.size() == 1);
}
TEST_CASE("Heads that are put beside each other, and chains between products, on a GPU", "[cuda]") {
  const DeviceScope here(cuda());
  heads();
}
TEST_CASE("Sums of columns go to the gradients that the leaves have, on a GPU", "[cuda]") {
  const DeviceScope here(cuda());
  columns();
  copied();
  edited();
}
