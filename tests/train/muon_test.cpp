// Muon's matrices: singular values, batches, and their memory. Its formula is a row of optimizer_rules_test.cpp.
#include <cmath>

#include "backend/memory.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"
#include "support.h"
#include "train/train.h"

using namespace tern;
using Vector = std::vector<double>;

TEST_CASE("Orthogonalised matrices have singular values near 1", "[optim]") {
  // A rotation times a diagonal: the singular values are the diagonal's.
  const double c = std::cos(0.3), s = std::sin(0.3);
  const Tensor turn = Tensor::from(Vector{c, -s, 0, s, c, 0, 0, 0, 1}, {3, 3}), sizes = Tensor::from(Vector{3, 0.5, 1}, {1, 3});
  const Vector left = matmul(transpose(turn, 0, 1), train::orthogonalize(turn * sizes)).to_vector<double>();
  for (std::size_t i = 0; i < 9; ++i) {
    if (i % 4 != 0) CHECK(std::abs(left[i]) < 1e-9);
    else CHECK((left[i] > 0.65 && left[i] < 1.25));
  }
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {  // squares beyond the 16-bit floats' range are no harm
    const Tensor x = cast(full({2, 2}, dtype == DType::f16 ? 3e4 : 1e15) * Tensor::from(std::vector<float>{1, 0, 0, 1}, {2, 2}), dtype);
    const std::vector<float> y = floats(cast(train::orthogonalize(x), DType::f32));
    CHECK((y[0] > 0.65f && y[0] < 1.25f));
    CHECK(y[1] == 0);
  }
  CHECK(distance(floats(train::orthogonalize(zeros({3, 2}))), std::vector<float>(6)) == 0);
  CHECK_THROWS_WITH(train::orthogonalize(zeros({3})), "[orthogonalize] expected matrices but got (3,)");
  // Each of a batch is what it is alone.
  const Tensor tall = randn({4, 2}, DType::f64), larger = randn({4, 2}, DType::f64) * 100.0;
  const Tensor batch = train::orthogonalize(stack({tall, larger}));
  CHECK(distance(select(batch, 0, 0).to_vector<double>(), train::orthogonalize(tall).to_vector<double>()) < 1e-12);
  CHECK(distance(select(batch, 0, 1).to_vector<double>(), train::orthogonalize(larger).to_vector<double>()) < 1e-12);
}

TEST_CASE("Muon orthogonalises together what it has memory for", "[optim]") {
  const auto temporaries = [](std::size_t count) {
    Tensors x;
    for (std::size_t i = 0; i < count; ++i) {
      x.push_back(zeros({1, (1 << 24) + 1}).set_requires_grad());
      x.back().set_grad(ones_like(x.back()));
    }
    train::Muon optimizer(x, {.iterations = 1, .dtype = DType::f32});
    optimizer.step();
    backend::reset_peak_memory(Cpu{}, cpu);
    const std::size_t before = backend::memory_statistics(Cpu{}, cpu).allocated;
    optimizer.step();
    return static_cast<double>(backend::memory_statistics(Cpu{}, cpu).peak_allocated - before);
  };
  CHECK(temporaries(2) < 1.1 * temporaries(1));
}
