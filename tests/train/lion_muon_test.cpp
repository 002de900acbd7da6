// Lion and Muon against loops in f64, and with all that optimizers have to do with: groups, flat buffers, masters, scales, captured steps.

#include <cmath>
#include <limits>

#include "nn/fixture.h"
#include "ops/captured_step.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/train.h"

using namespace tern;

namespace {

using Vector = std::vector<double>;

Vector doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

struct NaiveLion {
  double lr, b1, b2, decay;
  Vector m = {};
  void step(Vector& p, const Vector& g) {
    m.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double c = b1 * m[i] + (1 - b1) * g[i];
      p[i] -= lr * ((c > 0) - (c < 0) + decay * p[i]);
      m[i] = b2 * m[i] + (1 - b2) * g[i];
    }
  }
};

/// (rows, inner) times (inner, columns); `turned` has the second as (columns, inner).
Vector product(const Vector& a, const Vector& b, std::size_t rows, std::size_t inner, std::size_t columns, bool turned) {
  Vector result(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < inner; ++k)
        result[i * columns + j] += a[i * inner + k] * (turned ? b[j * inner + k] : b[k * columns + j]);
  return result;
}

struct NaiveMuon {
  std::size_t rows, columns;
  double lr, momentum, decay;
  bool nesterov;
  int iterations = 5;
  Vector m = {};
  void step(Vector& p, const Vector& g) {
    m.resize(p.size());
    Vector x(p.size());
    double norm = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = momentum * m[i] + (1 - momentum) * g[i];
      x[i] = nesterov ? momentum * m[i] + (1 - momentum) * g[i] : m[i];
      norm += x[i] * x[i];
    }
    for (double& value : x) value /= std::sqrt(norm) + 1e-7;
    // Always from the left: the identity (x x^T) x = x (x^T x) makes the sides equal.
    for (int n = 0; n < iterations; ++n) {
      const Vector a = product(x, x, rows, columns, rows, true), aa = product(a, a, rows, rows, rows, false);
      const Vector ax = product(a, x, rows, rows, columns, false), aax = product(aa, x, rows, rows, columns, false);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * ax[i] + 2.0315 * aax[i];
    }
    const double scale = std::sqrt(std::max(1.0, double(rows) / double(columns)));
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = p[i] * (1 - lr * decay) - lr * scale * x[i];
  }
};

struct Mixed final : nn::Module {
  void visit(nn::Visitor& v) override {
    v("a", a);
    v("b", b);
    v("norm", norm);
  }
  nn::Linear a{6, 9}, b{9, 4};
  nn::LayerNorm norm{4};
};

Tensors with_dims(const nn::Module& module, bool matrices) {
  Tensors result;
  for (const Tensor& x : nn::parameters(module))
    if ((x.dims() > 1) == matrices) result.push_back(x);
  return result;
}

std::unique_ptr<train::Optimizer> make(bool is_muon, const nn::Module& model) {
  if (is_muon)
    return std::make_unique<train::Muon>(with_dims(model, true), train::MuonOptions{.lr = 0.125, .weight_decay = 0.25, .dtype = DType::f32},
                                         with_dims(model, false), train::AdamWOptions{.lr = 0.0625});
  return std::make_unique<train::Lion>(nn::parameters(model), train::LionOptions{.lr = 0.125, .weight_decay = 0.25});
}

void set_gradients(const nn::Module& module, std::uint64_t seed) {
  for (Tensor x : nn::parameters(module)) {
    const NoGrad unrecorded;
    const Tensor gradient = to(cast(Tensor::from(draw(seed++, x.numel(), 1), x.shape()), x.dtype()), x.device());
    if (x.grad().defined()) copy_(x.grad(), gradient);
    else x.set_grad(gradient);
  }
}

double worst_difference(const nn::Module& a, const nn::Module& b) {
  double worst = 0;
  const Tensors xs = nn::parameters(a), ys = nn::parameters(b);
  for (std::size_t i = 0; i < xs.size(); ++i) worst = std::max(worst, distance(xs[i], ys[i]));
  return worst;
}

std::vector<float> masters_of(const nn::Module& module) {
  std::vector<float> result;
  for (const NamedTensor& entry : nn::named_masters(module))
    for (const float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

/// The losses and weights of some updates of a small model.
std::vector<float> train_steps(bool is_muon, bool captured, train::Precision precision, Device device) {
  manual_seed(3);
  nn::DecoderLM model({.vocab = 11, .length = 6, .width = 16, .layers = 1, .heads = 2, .ff = 24, .dropout = 0.1, .device = device});
  train::set_precision(model, precision);
  const auto optimizer = make(is_muon, model);
  optimizer->set_lr(0.01);
  std::optional<train::GradScaler> scaler;
  if (precision == train::Precision::fp16) scaler.emplace(train::GradScalerOptions{.scale = 1 << 20, .interval = 7}, device);
  const auto step = [&](const Tensors& batch) -> Tensor {
    const Tensor loss = model.loss(batch[0], batch[0]);
    train::update(loss, *optimizer, {.max_norm = 0.5, .scaler = scaler ? &*scaler : nullptr});
    return loss.detach();
  };
  CapturedStep replay(step, device);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 24; ++i) ids.push_back(i * i % 11);
  const Tensor batch = Tensor::from(ids, {4, 6}, device);
  std::vector<float> result;
  manual_seed(8);
  for (int i = 0; i < 25; ++i) {
    optimizer->set_lr(0.02 / (1 + 0.1 * i));
    const Tensor loss = captured ? replay({batch}) : step({batch});
    result.push_back(cast(loss, DType::f32).item());
  }
  if (captured && device.type == DeviceType::cuda) CHECK(replay.recordings() == 1);
  for (const float value : masters_of(model)) result.push_back(value);
  result.push_back(optimizer->steps().item());
  return result;
}

}  // namespace

TEST_CASE("Lion agrees with loops in f64", "[optim]") {
  for (const double decay : {0.0, 0.5})
    for (const std::int64_t size : {1, 33, 1025}) {
      Vector values = doubles(draw(40, size, 1));
      const Tensor p = Tensor::from(values, {size}).set_requires_grad();
      train::Lion optimizer({p}, {.lr = 0.0625, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay});
      NaiveLion naive{0.0625, 0.8, 0.95, decay};
      for (std::uint64_t step = 0; step < 6; ++step) {
        Vector gradient = doubles(draw(60 + step, size, 0.5));
        gradient[0] = step == 0 ? 0 : gradient[0];  // a sign of 0
        Tensor(p).set_grad(Tensor::from(gradient, {size}));
        optimizer.step();
        naive.step(values, gradient);
      }
      CHECK(distance(p.to_vector<double>(), values) < 1e-12);
      CHECK(distance(optimizer.state()[2].tensor.to_vector<double>(), naive.m) < 1e-12);
    }
}

TEST_CASE("Lion takes the paper's defaults, and shows a gradient that is NaN", "[optim]") {
  const Tensor x = ones({3}).set_requires_grad();
  Tensor(x).set_grad(Tensor::from(std::vector<float>{2, -1e-20f, std::numeric_limits<float>::quiet_NaN()}, {3}));
  train::Lion optimizer({x});
  optimizer.step();
  CHECK(floats(x)[0] == Approx(1 - 1e-4));
  CHECK(floats(x)[1] == Approx(1 + 1e-4));
  CHECK(std::isnan(floats(x)[2]));
  CHECK(floats(optimizer.state()[2].tensor)[0] == Approx(0.02));
}

TEST_CASE("Muon agrees with loops in f64", "[optim]") {
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{1, 1}, {5, 5}, {3, 7}, {9, 4}, {33, 17}, {1, 31}})
    for (const bool nesterov : {true, false}) {
      INFO(rows << " x " << columns << ", nesterov " << nesterov);
      const auto size = std::int64_t(rows * columns);
      Vector values = doubles(draw(41, size, 1));
      const Tensor p = Tensor::from(values, {std::int64_t(rows), std::int64_t(columns)}).set_requires_grad();
      train::Muon optimizer({p}, {.lr = 0.0625, .momentum = 0.75, .nesterov = nesterov, .weight_decay = 0.5});
      NaiveMuon naive{rows, columns, 0.0625, 0.75, 0.5, nesterov};
      for (std::uint64_t step = 0; step < 3; ++step) {
        const Vector gradient = doubles(draw(60 + step, size, 0.5));
        Tensor(p).set_grad(Tensor::from(gradient, p.shape()));
        optimizer.step();
        naive.step(values, gradient);
      }
      CHECK(distance(p.to_vector<double>(), values) < 1e-9);
    }
}

TEST_CASE("Muon takes a convolution's weight as a matrix", "[optim]") {
  Vector values = doubles(draw(42, 4 * 3 * 2, 1)), gradient = doubles(draw(43, 4 * 3 * 2, 1));
  const Tensor p = Tensor::from(values, {4, 3, 2}).set_requires_grad();
  Tensor(p).set_grad(Tensor::from(gradient, {4, 3, 2}));
  train::Muon optimizer({p}, {.lr = 0.0625});
  NaiveMuon naive{4, 6, 0.0625, 0.95, 0, true};
  optimizer.step();
  naive.step(values, gradient);
  CHECK(distance(p.to_vector<double>(), values) < 1e-9);
}

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
  CHECK_THROWS_WITH(train::orthogonalize(zeros({3})), "[orthogonalize] expected a matrix but got (3,)");
}

TEST_CASE("Lion and Muon give flat parameters the same numbers", "[optim][flat]") {
  for (const bool is_muon : {false, true}) {
    manual_seed(1);
    Mixed plain, flat = nn::clone(plain);
    const auto a = make(is_muon, plain), b = make(is_muon, flat);
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (step == 1) nn::flatten_parameters(flat);  // between steps: moments follow
      set_gradients(plain, 100 * step);
      set_gradients(flat, 100 * step);
      a->step();
      b->step();
    }
    CHECK(worst_difference(plain, flat) < 1e-6);
    // A Muon's matrices are updated one by one, and the vectors behind them by one kernel.
    CHECK(b->launches() == (is_muon ? 3u : 1u));
    CHECK(b->steps().item() == 4);
  }
}

TEST_CASE("Lion and Muon update masters of 16-bit parameters", "[optim]") {
  for (const bool is_muon : {false, true})
    for (const train::Precision precision : {train::Precision::bf16, train::Precision::fp16}) {
      manual_seed(2);
      Mixed narrow, wide = nn::clone(narrow);
      train::set_precision(narrow, precision);
      const auto a = make(is_muon, narrow), b = make(is_muon, wide);
      for (std::uint64_t step = 0; step < 3; ++step) {
        set_gradients(narrow, 50 * step);
        const Tensors from = nn::parameters(narrow), into = nn::parameters(wide);
        for (std::size_t i = 0; i < from.size(); ++i) Tensor(into[i]).set_grad(cast(from[i].grad(), DType::f32));
        a->step();
        b->step();
      }
      const std::vector<NamedTensor> masters = nn::named_masters(narrow), stored = nn::named_parameters(narrow);
      const Tensors wanted = nn::parameters(wide);
      for (std::size_t i = 0; i < masters.size(); ++i) {
        CHECK(masters[i].tensor.dtype() == DType::f32);
        CHECK(distance(floats(masters[i].tensor), floats(wanted[i])) < 1e-5);
        CHECK(floats(cast(stored[i].tensor, DType::f32)) == floats(cast(cast(masters[i].tensor, stored[i].tensor.dtype()), DType::f32)));
      }
    }
}

TEST_CASE("Lion and Muon take the gradients' factor, and leave out a skipped step", "[optim]") {
  for (const bool is_muon : {false, true}) {
    manual_seed(4);
    Mixed scaled, plain = nn::clone(scaled);
    const auto a = make(is_muon, scaled), b = make(is_muon, plain);
    const Tensor four = full({}, 4), on = ones({}), off = zeros({});
    for (std::uint64_t step = 0; step < 3; ++step) {
      set_gradients(scaled, 10 * step);
      set_gradients(plain, 10 * step);
      const NoGrad unrecorded;
      for (const Tensor& x : nn::parameters(plain)) copy_(x.grad(), x.grad() * 4.0);
      a->step({.factor = four, .advance = on});
      b->step();
      if (step == 1) {  // an overflow
        for (const Tensor& x : nn::parameters(scaled)) fill_(x.grad(), std::numeric_limits<double>::infinity());
        const std::vector<float> before = masters_of(scaled), state = floats(a->state()[3].tensor);
        a->step({.factor = four, .advance = off});
        CHECK(masters_of(scaled) == before);
        CHECK(floats(a->state()[3].tensor) == state);
      }
    }
    CHECK(worst_difference(scaled, plain) < 1e-5);
    CHECK(a->steps().item() == 3);
  }
}

TEST_CASE("Muon's state has one moment of a matrix and two of others, and restores it", "[optim]") {
  manual_seed(6);
  Mixed model;
  const auto optimizer = make(true, model);
  set_gradients(model, 1);
  optimizer->step();
  Mixed other = nn::clone(model);
  const auto restored = make(true, other);
  const auto from = optimizer->state(nn::named_parameters(model)), into = restored->state(nn::named_parameters(other));
  std::string names;
  for (const NamedTensor& entry : from) names += entry.name + " ";
  CHECK(names ==
        "step lr.0 lr.1 m.a.weight m.b.weight m.a.bias m.b.bias m.norm.weight m.norm.bias v.a.bias v.b.bias v.norm.weight v.norm.bias ");
  REQUIRE(from.size() == into.size());
  for (std::size_t i = 0; i < from.size(); ++i) copy_(into[i].tensor, from[i].tensor);
  for (const bool first : {true, false}) {
    set_gradients(first ? model : other, 2);
    (first ? optimizer : restored)->step();
  }
  CHECK(worst_difference(model, other) == 0);
  const auto loaded = make(true, other);
  loaded->load_moments(optimizer->state());
  CHECK(floats(loaded->state()[3].tensor) == floats(optimizer->state()[3].tensor));
  CHECK(floats(loaded->state().back().tensor) == floats(optimizer->state().back().tensor));
}

TEST_CASE("Lion and Muon refuse what they cannot update", "[optim]") {
  const Tensor x = zeros({3}).set_requires_grad(), y = zeros({3, 2}).set_requires_grad();
  CHECK_THROWS_WITH(train::Lion({x}, {.beta2 = 1}), "[Lion] expected 0 <= beta2 < 1 but got 1");
  CHECK_THROWS_WITH(train::Muon({x}), "[Muon] expected matrices but got (3,): pass it to AdamW, in one of the other groups");
  CHECK_THROWS_AS(train::Muon({y}, {.iterations = 0}), Error);
  CHECK_THROWS_AS(train::Muon({y}, {.dtype = DType::i64}), Error);
  CHECK_THROWS_AS(train::Muon({y}, {}, {y}), Error);
  CHECK_THROWS_WITH(train::Muon({y}, {}, {x}, {.beta1 = 2}), "[AdamW] expected 0 <= beta1 < 1 but got 2");
}

TEST_CASE("A Muon refuses to be sharded, and goes on as it was", "[optim]") {
  struct Alone final : train::Exchange {
    bool is_sharded() const override { return true; }
    std::vector<Part> parts(const Tensor& segment) const override { return {{segment.offset(), segment.offset() + segment.numel()}}; }
    std::size_t size() const override { return 1; }
    void begin() override {}
    void wait(std::size_t) override {}
    void updated(std::size_t) override {}
    void end() override {}
    void sum(const Tensor&) override {}
  };
  Mixed model;
  const auto lion = make(false, model), muon = make(true, model);
  CHECK_NOTHROW(lion->set_exchange(std::make_shared<Alone>()));
  CHECK_THROWS_WITH(
      muon->set_exchange(std::make_shared<Alone>()),
      "[Optimizer] expected groups that are updated element by element, but one takes whole matrices, which cannot be sharded");
  CHECK(muon->exchange() == nullptr);
  set_gradients(model, 1);
  CHECK_NOTHROW(muon->step());
  CHECK_NOTHROW(lion->step());
}

TEST_CASE("Lion and Muon train a model", "[optim]") {
  for (const bool is_muon : {false, true})
    for (const train::Precision precision : {train::Precision::fp32, train::Precision::fp16}) {
      const std::vector<float> run = train_steps(is_muon, false, precision, cpu);
      CHECK(run[24] < 0.9f * run[0]);
    }
}

TEST_CASE("Captured steps of Lion and Muon are those that are not", "[optim][cuda]") {
  for (const bool is_muon : {false, true})
    for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16})
      CHECK(train_steps(is_muon, true, precision, cuda()) == train_steps(is_muon, false, precision, cuda()));
}

TEST_CASE("Lion and Muon on a GPU agree with the CPU", "[optim][cuda]") {
  for (const bool is_muon : {false, true}) {
    manual_seed(1);
    Mixed here, there = nn::clone(here);
    nn::to(there, cuda());
    nn::flatten_parameters(there);
    const auto a = make(is_muon, here), b = make(is_muon, there);
    for (std::uint64_t step = 0; step < 3; ++step) {
      set_gradients(here, 100 * step);
      set_gradients(there, 100 * step);
      a->step();
      b->step();
    }
    nn::to(there, cpu);
    CHECK(worst_difference(here, there) < 1e-4);
  }
}
