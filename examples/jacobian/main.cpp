// The Jacobian of f: R^n -> R^k both ways. vjp gives a row of it, v^T J, by a call and a backward pass; jvp gives a column, J v, by a call
// that carries derivatives along, and keeps nothing for later. Rows are the way for a loss of many parameters, k = 1; columns where few
// inputs have many outputs: curves of a few knobs, sensitivities. One within the other is a product with the Hessian, without the Hessian:
// what Newton's method with conjugate gradients asks for. expected.txt is what this prints.
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

/// Layers x -> tanh(W x), of which a graph would keep each result.
TensorFunction network(const Tensor& weight, int layers) {
  return [=](const Tensors& x) {
    Tensor y = x[0];
    for (int i = 0; i < layers; ++i) y = tanh(matmul(y, weight));
    return Tensors{y};
  };
}

/// The most memory that jvp of the layers takes at a time, in bytes.
double peak(const Tensor& weight, const Tensor& x, int layers) {
  const std::size_t before = memory_statistics(cpu).allocated;
  reset_peak_memory(cpu);
  jvp(network(weight, layers), {x}, {x});
  return static_cast<double>(memory_statistics(cpu).peak_allocated - before);
}

void measure_memory() {
  const Tensor weight = randn({64, 64}), x = randn({256, 64});
  peak(weight, x, 1);  // buffers that the kernels keep from then on
  const double shallow = peak(weight, x, 8), deep = peak(weight, x, 64);
  std::printf("forward mode through 64 layers: %s than through 8\n", deep <= 1.1 * shallow ? "no more memory" : "more memory");
}

/// H v of a loss, against the difference of two gradients along v.
void multiply_by_hessian() {
  const Tensor weight = cast(randn({16, 16}), DType::f64) * 0.5, x = cast(randn({4, 16}), DType::f64), v = cast(randn({4, 16}), DType::f64);
  const TensorFunction loss = [&](const Tensors& in) { return Tensors{sum(square(network(weight, 3)(in)[0]))}; };
  const TensorFunction gradient = [&](const Tensors& in) { return vjp(loss, in, {ones({}, DType::f64)}).products; };
  const Tensor product = jvp(gradient, {x}, {v}).products[0];
  const double step = 1e-5;
  const Tensor difference = (gradient({x + v * step})[0] - gradient({x - v * step})[0]) / (2 * step);
  const double off = max(abs(product - difference)).item() / max(abs(product)).item();
  std::printf("Hessian-vector product: %s\n", off < 1e-7 ? "as differences of the gradient" : "not as differences of the gradient");
}

}  // namespace

int main() {
  compare(3, 300);
  compare(300, 3);
  measure_memory();
  multiply_by_hessian();
}
