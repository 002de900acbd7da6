// The CUDA text of groups compiles, for several architectures, on a machine without a GPU.
#include <cstdlib>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "compile/generated.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"
#include "written_ops.h"

using namespace tern;
using namespace tern::test;

namespace {

/// The code of a function's program.
template <class F, class... X>
std::vector<std::string> kernels_of(F f, const X&... arguments) {
  auto compiled = tern::compile(f);
  for (int i = 0; i < 2; ++i) compiled(arguments...);
  const std::string code = compiled.show(Stage::code);
  std::vector<std::string> kernels;
  for (std::size_t at = code.find("#include"); at != std::string::npos;) {
    const std::size_t end = code.find("#include", at + 1);
    kernels.push_back(code.substr(at, end - at));
    at = end;
  }
  return kernels;
}

void check(const std::vector<std::string>& kernels) {
  if (!compiler::has_nvrtc()) test::skip("no NVRTC");
  for (const std::string& text : kernels) {
    INFO(text);
    for (const char* architecture : {"sm_80", "sm_90a", "sm_100a"}) CHECK_FALSE(compiler::compile_cuda(text, architecture).empty());
  }
}

/// The same, with the gradients of the arguments.
template <class F>
std::vector<std::string> kernels_with_gradient(F f, const Tensor& x, const Tensor& weights) {
  return kernels_of(
      [&](const Tensor& a, const Tensor& b) -> Tensors {
        Tensor leaf = a.detach();
        leaf.set_requires_grad();
        const Tensor y = f(leaf);
        Tensors leaves{leaf};
        return {y.detach(), grad({y}, leaves, {b})[0]};
      },
      x, weights);
}

}  // namespace

TEST_CASE("The softmax of ops is one kernel") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t columns : {16, 37, 64, 1000, 4096, 16384}) {
      INFO(name(dtype) << " " << columns);
      const auto kernels = kernels_of(softmax_of_ops, cast(randn({5, 3, columns}), dtype));
      CHECK(kernels.size() == 1);
      check(kernels);
    }
}

TEST_CASE("Norms and activations of ops are few kernels") {
  const Tensor x = randn({33, 128}), w = randn({33, 128}), gamma = randn({128}), beta = randn({128});
  const auto norm = kernels_of([&](const Tensor& a) { return layer_norm_of_ops(a, gamma, beta); }, x);
  CHECK(norm.size() == 1);
  check(norm);
  check(kernels_with_gradient([&](const Tensor& a) { return layer_norm_of_ops(a, gamma, beta); }, x, w));
  const auto both_ways = kernels_with_gradient([](const Tensor& a) { return softmax_of_ops(a); }, x, w);
  CHECK(both_ways.size() == 1);
  check(both_ways);
  CHECK(kernels_of([](const Tensor& a) { return exp(sum(a, {0, 2}, true)); }, randn({4, 32, 64})).empty());  // no sum of rows
  const auto gelu = kernels_with_gradient([](const Tensor& a) { return gelu_of_ops(a); }, x, w);
  CHECK(gelu.size() <= 2);
  check(gelu);
}

TEST_CASE("Rows of several dimensions, sums of columns and values computed again have code") {
  const Tensor mask = triu(full({64, 64}, -1e4), 1), gamma = rand({128}), beta = rand({128});
  // Attention but for a factor.
  const auto attention =
      kernels_with_gradient([&](const Tensor& a) { return matmul(softmax_of_ops(matmul(a, transpose(a, -2, -1)) * 0.1 + mask) * 2.0, a); },
                            randn({4, 64, 32}), randn({4, 64, 32}));
  REQUIRE(attention.size() == 2);  // rows whose mask has another stride along each dimension
  check(attention);
  const auto norm = kernels_of(
      [&](const Tensor& a, const Tensor& g) -> Tensors {
        Tensors leaves{a.detach(), gamma.detach(), beta.detach()};
        for (Tensor& x : leaves) x.set_requires_grad();
        return grad({layer_norm_of_ops(leaves[0], leaves[1], leaves[2])}, leaves, {g});
      },
      cast(randn({7, 9, 128}), DType::f32), randn({7, 9, 128}));
  REQUIRE(norm.size() == 1);
  CHECK(contains(norm[0], "data[parts + 1]"));
  check(norm);
  const Tensor weight = randn({128, 128});
  const auto gelu =
      kernels_with_gradient([&](const Tensor& a) { return matmul(tanh(matmul(gelu_of_ops(matmul(a, weight)), weight)), weight); },
                            randn({1024, 128}), randn({1024, 128}));
  REQUIRE(gelu.size() == 3);  // a GELU, tanh and its gradient, the GELU's gradient
  CHECK(contains(gelu[2], "functors::gradient(functors::Tanh{}, "));
  CHECK(contains(gelu[2], "functors::Tanh{}(convert"));  // again
  CHECK(contains(gelu[2], "void* data[1][3]"));
  check(gelu);
  check(kernels_of([](const Tensor& a) { return logsumexp(a * 2.0, -1); }, randn({5, 1000})));
  const auto after = kernels_of([](const Tensor& a) { return a * sum(a * 2.0, 0); }, randn({50, 64}));
  REQUIRE(after.size() == 1);  // the sum is there after its kernel
  CHECK(contains(after[0], "void* data[1][2]"));
  check(after);
}

TEST_CASE("An optimizer of ops is one kernel for each parameter") {
  const Tensor x = randn({64, 128}), m = zeros({64, 128}), v = zeros({64, 128});
  const auto kernels = kernels_of(
      [&](const Tensor& gradient) {
        const NoGrad unrecorded;
        copy_(m, m * 0.9 + gradient * 0.1);
        copy_(v, v * 0.999 + gradient * gradient * 0.001);
        copy_(x, x * (1 - 1e-5) - m / (sqrt(v) + 1e-8) * 1e-3);
        return sum(x, 0);
      },
      randn({64, 128}));
  REQUIRE(kernels.size() == 1);
  CHECK(contains(kernels[0], "void* data[1][5]"));  // moments and all between them stay in registers; the last are parts of the sum
  check(kernels);
}

TEST_CASE("An optimizer of ops is one kernel for 64 parameters of any sizes") {
  struct Parameter {
    Tensor x, gradient, m;
  };
  const auto kernels_for = [](std::size_t count, std::int64_t offset) {
    std::vector<Parameter> all;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t size = 4 * static_cast<std::int64_t>(i + 1);
      const Tensor memory = zeros({size + offset});
      all.push_back({i % 2 == 0 ? zeros({size}) : slice(memory, 0, offset, size + offset), randn({size}), zeros({size})});
    }
    return kernels_of(
        [all](const Tensor& unused) {
          const NoGrad unrecorded;
          for (const Parameter& p : all) {
            copy_(p.m, p.m * 0.9 + p.gradient);
            copy_(p.x, p.x - p.m * 0.1);
          }
          return unused;
        },
        zeros({1}));
  };
  const auto kernels = kernels_for(100, 4);
  REQUIRE(kernels.size() == 2);
  CHECK(contains(kernels[0], "void* data[64][3]"));
  CHECK(contains(kernels[1], "void* data[36][3]"));
  check(kernels);
  CHECK(kernels_for(10, 1).size() == 10);  // half of them cannot be read by vectors
}

TEST_CASE("A group takes in what it alone needs") {
  const auto kernels = kernels_of(
      [](const Tensor& a, const Tensor& b) {
        const Tensor doubled = a * 2.0;
        return matmul(b, b) + doubled;
      },
      randn({64, 64}), randn({64, 64}));
  CHECK(kernels.size() == 1);
  check(kernels);
}

TEST_CASE("Kernels that share an operand read it once") {
  const auto kernels = kernels_of([](const Tensor& a) -> Tensors { return {exp(a), sin(a)}; }, randn({64, 64}));
  REQUIRE(kernels.size() == 1);
  CHECK(contains(kernels[0], "void* data[1][3]"));
  check(kernels);
}

TEST_CASE("Generated code rounds each result to its dtype") {
  const auto kernels = kernels_of([](const Tensor& a) { return a * a + 1.0; }, cast(randn({64, 64}), DType::bf16));
  REQUIRE(kernels.size() == 1);
  CHECK(contains(kernels[0], "convert<bf16>(functors::Mul{}(convert<float>("));
  check(kernels);
}

TEST_CASE("Dropout, conversions, conditions and strides have code") {
  const Tensor x = randn({33, 128}), flags = randint(0, 2, {33, 128}), row = randn({128});
  check(kernels_of([&](const Tensor& a) { return dropout(relu(a) * 2.0, 0.5) + a; }, x));
  check(kernels_of([&](const Tensor& a) { return dropout(exp(a), 0.5) / sum(a * a, -1, true); }, cast(x, DType::bf16)));
  check(kernels_of([&](const Tensor& a) { return where(gt(a, 0.5), cast(cast(a, DType::bf16) * 2.0, DType::f32), clamp(a, -1, 1)); }, x));
  check(kernels_of([&](const Tensor& a) { return a * cast(flags, DType::f32) + row; }, x));
  check(kernels_of([&](const Tensor& a) { return transpose(a, 0, 1) * 2.0 + broadcast_to(slice(row, 0, 0, 33), {128, 33}); }, x));
  check(kernels_of([&](const Tensor& a) { return pow(cast(a, DType::f64), 2) + cast(a, DType::f64) * 0.1; }, slice(x, 1, 1, 100)));
}

TEST_CASE("A user's file of CUDA compiles, its kernels have their names in the code, and an error has its line") {
  if (!compiler::has_nvrtc()) return test::skip("no NVRTC");
  compiler::CudaFile file{"mine.cu", "", {"twice<float>", "plain", "here::inside"}};
  file.text =
      "#include <math.h>\ntemplate <class T> __global__ void twice(T* x) { x[0] = fmaxf(2 * x[0], -INFINITY); }\n"
      "extern \"C\" __global__ void plain(int* x) { x[0] = 1; }\nnamespace here { __global__ void inside(int64_t* x) { x[0] = 1; } }\n";
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100a"}) {
    const compiler::CudaFileCode found = compiler::compile_cuda(file, architecture);
    CHECK(found.names == std::vector<std::string>{"_Z5twiceIfEvPT_", "plain", "_ZN4here6insideEPx"});
    for (const std::string& name : found.names) CHECK(contains(found.code, ".text." + name));
  }
  file.text += "__global__ void wrong(float* x) { x[0] = ; }\n";
  CHECK(contains(message_of([&] { compiler::compile_cuda(file, "sm_80"); }), "mine.cu(5): error: expected an expression"));
}
