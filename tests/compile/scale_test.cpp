// Functions of very many kernels: the time to note, plan and compare them grows with their number, not with its square.
#include <ctime>

#include "catch.h"
#include "compile/compile.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

/// Seconds of the processor, which other programs do not count in.
template <class F>
double seconds(F&& f) {
  const std::clock_t start = std::clock();
  f();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double slowness = 10;  // of a sanitizer
#else
constexpr double slowness = 1;
#endif

/// Three calls and the fourth, compiled, beside what three take as written. An algorithm that compares each kernel, block or free range
/// with each other takes minutes.
template <class F>
void check_scale(const F& f, const Tensor& x) {
  Tensor want;
  const double written = seconds([&] {
    for (int call = 0; call < 3; ++call) want = f(x);
  });
  auto compiled = tern::compile(f);
  const double traced = seconds([&] {
    for (int call = 0; call < 3; ++call) compiled(x);
  });
  CHECK(compiled(x).template to_vector<float>() == want.to_vector<float>());
  INFO(compiled.report() << written << " s as written");
  CHECK(traced < 3 * slowness + 4 * written);
}

}  // namespace

TEST_CASE("A function of 20000 different kernels compiles in time") {
  Tensor w = eye(4);
  w.set_requires_grad();
  check_scale(
      [&](const Tensor& x) {
        w.set_grad({});
        Tensor y = x;
        Tensors values;
        for (int i = 0; i < 1000; ++i) {
          y = matmul(y, w) + transpose(softmax(y * 0.5, i % 2), 0, 1) * 0.125;
          values.push_back(sum(y, {0}));
        }
        const Tensor result = sum(cat(values, 0));
        result.backward();
        return w.grad() + result.detach();
      },
      ones({4, 4}));
}

TEST_CASE("A function of 20000 values that live long compiles in time") {
  check_scale(
      [&](const Tensor& x) {
        Tensors values{x};
        for (std::size_t i = 0; i < 20000; ++i) values.push_back(cumsum(values[i / 2], 0));
        Tensor y = x;
        for (std::size_t i = 0; i < 20000; ++i)
          y = cumsum(i % 64 == 0 ? y * values[i * 7919 % 20000] : y, 0), y = sum(y, {0}, true) * 0.125;
        return y;
      },
      ones({3}));
}

TEST_CASE("A function of 40000 additions of a scalar compiles in time") {
  check_scale(
      [&](const Tensor& x) {
        Tensor y = x;
        for (int i = 0; i < 40000; ++i) y = y + x;
        return y;
      },
      Tensor::scalar(1.0f));
}

TEST_CASE("A function of 40000 elementwise kernels on values that live long compiles in time") {
  check_scale(
      [&](const Tensor& x) {
        Tensors values{x};
        for (std::size_t i = 0; i < 20000; ++i) values.push_back(values[i / 2] * 0.5);
        Tensor y = x;
        for (std::size_t i = 0; i < 20000; ++i) y = y + values[i * 7919 % 20000];
        return y;
      },
      ones({3}));
}
