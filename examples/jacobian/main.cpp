// The Jacobian of f: R^n -> R^k both ways. vjp gives a row of it, v^T J, by one backward pass; jvp gives a column, J v, by two, as the
// derivative of the vjp with respect to v. Rows are the way for a loss of many parameters, k = 1; columns where few inputs have many
// outputs: curves of a few knobs, sensitivities. expected.txt is what this prints.
#include <tern/tern.h>

#include <chrono>
#include <cstdio>

using namespace tern;

namespace {

/// (length): the unit vector of coordinate i.
Tensor unit(std::int64_t length, std::int64_t i) { return cast(eq(arange(0, length), double(i)), DType::f64); }

/// (k, n), by k products.
Tensor by_rows(const TensorFunction& f, const Tensor& x, std::int64_t outputs) {
  Tensors rows;
  for (std::int64_t i = 0; i < outputs; ++i) rows.push_back(vjp(f, {x}, {unit(outputs, i)}).products[0]);
  return stack(rows, 0);
}

/// (k, n), by n products.
Tensor by_columns(const TensorFunction& f, const Tensor& x) {
  Tensors columns;
  for (std::int64_t i = 0; i < x.size(0); ++i) columns.push_back(jvp(f, {x}, {unit(x.size(0), i)}).products[0]);
  return stack(columns, 1);
}

struct Timed {
  Tensor result;
  double seconds;
};
Timed timed(const std::function<Tensor()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  Tensor result = f();
  return {result, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

void compare(std::int64_t inputs, std::int64_t outputs) {
  manual_seed(1);
  const Tensor in = cast(randn({64, inputs}), DType::f64) * 0.1, out = cast(randn({outputs, 64}), DType::f64) * 0.1;
  const TensorFunction f = [&](const Tensors& x) { return Tensors{matmul(out, tanh(matmul(in, x[0])))}; };
  const Tensor x = cast(randn({inputs}), DType::f64);
  const Timed rows = timed([&] { return by_rows(f, x, outputs); }), columns = timed([&] { return by_columns(f, x); });
  const double difference = max(abs(rows.result - columns.result)).item();
  std::printf("%lld inputs, %lld outputs: %s, %s by fewer calls\n", static_cast<long long>(inputs), static_cast<long long>(outputs),
              difference < 1e-12 ? "the same Jacobian" : "two Jacobians",
              (columns.seconds < rows.seconds) == (inputs < outputs) ? "faster" : "slower");
}

}  // namespace

int main() {
  compare(3, 300);
  compare(300, 3);
}
