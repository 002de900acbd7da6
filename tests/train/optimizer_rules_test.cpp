// The optimizers as a table: a row has an optimizer and its formula in loops, and what holds of every optimizer is checked of every row:
// the formula, flat parameters, masters, scaled gradients, skipped steps, state, and a GPU. What one of them alone promises comes last.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "support.h"
#include "train/train.h"

using namespace tern;

namespace {

using Vector = std::vector<double>;
using Maker = std::function<std::unique_ptr<train::Optimizer>(const Tensors&)>;
/// Step t = 1, 2, ... of a parameter p of a shape, with the moments, which begin as zeros.
using Formula = std::function<void(Vector& p, const Vector& g, std::vector<Vector>& moments, int t, const Shape& shape)>;

struct Row {
  std::string name;
  Maker make;
  std::vector<std::string> moments;  ///< their names in the state, in the order of the formula's
  Formula formula;
  bool takes_matrices = false;  ///< one by one; vectors, and all of the others' parameters, are updated in one kernel where they are flat
};

template <class Options>
Maker maker(const Options& options) {
  return [=](const Tensors& parameters) { return std::make_unique<train::OptimizerOf<Options>>(parameters, options); };
}
template <class Options>
Row row(std::string name, const Options& options, const Formula& formula) {
  return {std::move(name), maker(options), options.moments(), formula};
}

template <class Options>
Formula adam(const Options& o) {
  constexpr bool is_decoupled = std::is_same_v<Options, train::AdamWOptions>;
  return [o](Vector& p, const Vector& gradient, std::vector<Vector>& moments, int t, const Shape&) {
    Vector &m = moments[0], &v = moments[1];
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] + (is_decoupled ? 0 : o.weight_decay * p[i]);
      if (is_decoupled) p[i] -= o.lr * o.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      p[i] -= o.lr * (m[i] / (1 - std::pow(o.beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
    }
  };
}

Formula sgd(const train::SGDOptions& o) {
  return [o](Vector& p, const Vector& gradient, std::vector<Vector>& moments, int, const Shape&) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = gradient[i] + o.weight_decay * p[i];
      if (o.momentum != 0) {
        double& buffer = moments[0][i];
        buffer = o.momentum * buffer + g;
        g = o.nesterov ? g + o.momentum * buffer : buffer;
      }
      p[i] -= o.lr * g;
    }
  };
}

Formula lion(const train::LionOptions& o) {
  return [o](Vector& p, const Vector& g, std::vector<Vector>& moments, int, const Shape&) {
    Vector& m = moments[0];
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double c = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      p[i] -= o.lr * ((c > 0) - (c < 0) + o.weight_decay * p[i]);
      m[i] = o.beta2 * m[i] + (1 - o.beta2) * g[i];
    }
  };
}

Formula rmsprop(const train::RMSpropOptions& o) {
  return [o](Vector& p, const Vector& gradient, std::vector<Vector>& moments, int, const Shape&) {
    Vector none(p.size()), &v = moments[0], &m = o.centered ? moments[1] : none, &buffer = o.momentum != 0 ? moments.back() : none;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] + o.weight_decay * p[i];
      v[i] = o.alpha * v[i] + (1 - o.alpha) * g * g;
      m[i] = o.alpha * m[i] + (1 - o.alpha) * g;
      const double quotient = g / (std::sqrt(o.centered ? v[i] - m[i] * m[i] : v[i]) + o.eps);
      if (o.momentum != 0) buffer[i] = o.momentum * buffer[i] + quotient;
      p[i] -= o.lr * (o.momentum != 0 ? buffer[i] : quotient);
    }
  };
}

/// (rows, inner) times (inner, columns); `turned` has the second as (columns, inner).
Vector product(const Vector& a, const Vector& b, std::size_t rows, std::size_t inner, std::size_t columns, bool turned) {
  Vector result(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < inner; ++k)
        result[i * columns + j] += a[i * inner + k] * (turned ? b[j * inner + k] : b[k * columns + j]);
  return result;
}

/// Of matrices, or weights of more dimensions, whose rows are the first; vectors are AdamW's.
Formula muon(const train::MuonOptions& o, const train::AdamWOptions& of_vectors) {
  return [o, of_vectors](Vector& p, const Vector& g, std::vector<Vector>& moments, int t, const Shape& shape) {
    if (shape.size() < 2) return adam(of_vectors)(p, g, moments, t, shape);
    const auto rows = static_cast<std::size_t>(shape[0]), columns = p.size() / rows;
    Vector x(p.size()), &m = moments[0];
    double norm = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = o.momentum * m[i] + (1 - o.momentum) * g[i];
      x[i] = o.nesterov ? o.momentum * m[i] + (1 - o.momentum) * g[i] : m[i];
      norm += x[i] * x[i];
    }
    for (double& value : x) value /= std::sqrt(norm) + 1e-7;
    // Always from the left: the identity (x x^T) x = x (x^T x) makes the sides equal.
    for (int n = 0; n < o.iterations; ++n) {
      const Vector a = product(x, x, rows, columns, rows, true), aa = product(a, a, rows, rows, rows, false);
      const Vector ax = product(a, x, rows, rows, columns, false), aax = product(aa, x, rows, rows, columns, false);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * ax[i] + 2.0315 * aax[i];
    }
    const double scale = std::sqrt(std::max(1.0, double(rows) / double(columns)));
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = p[i] * (1 - o.lr * o.weight_decay) - o.lr * scale * x[i];
  };
}

std::unique_ptr<train::Optimizer> make_muon(const Tensors& parameters, const train::MuonOptions& o, const train::AdamWOptions& of_vectors) {
  Tensors matrices, vectors;
  for (const Tensor& x : parameters) (x.dims() > 1 ? matrices : vectors).push_back(x);
  return std::make_unique<train::Muon>(matrices, o, vectors, of_vectors);
}

/// Rates are powers of two: exact in f32, which the device holds them in.
const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (const double decay : {0.0, 0.1}) {
      const train::AdamOptions a{.lr = 0.0625, .beta2 = 0.98, .eps = 1e-9, .weight_decay = decay};
      const train::AdamWOptions w{.lr = 0.0625, .beta2 = 0.98, .eps = 1e-9, .weight_decay = decay};
      all.push_back(row("Adam", a, adam(a)));
      all.push_back(row("AdamW", w, adam(w)));
      for (const double momentum : {0.0, 0.9})
        for (const bool nesterov : {false, true}) {
          const train::SGDOptions o{.lr = 0.125, .momentum = momentum, .weight_decay = decay, .nesterov = nesterov};
          if (!nesterov || momentum != 0) all.push_back(row("SGD", o, sgd(o)));
        }
      const train::LionOptions l{.lr = 0.0625, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 5 * decay};
      all.push_back(row("Lion", l, lion(l)));
    }
    for (const bool form : {false, true}) {
      for (const double momentum : {0.0, 0.5}) {
        const train::RMSpropOptions o{
            .lr = 0.0625, .alpha = 0.75, .eps = 1e-4, .weight_decay = 0.25, .momentum = momentum, .centered = form};
        all.push_back(row("RMSprop", o, rmsprop(o)));
      }
      const train::MuonOptions o{.lr = 0.0625, .momentum = 0.75, .nesterov = form, .weight_decay = 0.5, .dtype = DType::f32};
      const train::AdamWOptions of_vectors{.lr = 0.0625};
      all.push_back({"Muon", [=](const Tensors& x) { return make_muon(x, o, of_vectors); }, {"m", "v"}, muon(o, of_vectors), true});
    }
    return all;
  }();
  return rows;
}

/// Calls f(row) for each row, whose name and number a failure shows.
template <class F>
void for_each_row(F f) {
  for (std::size_t i = 0; i < table().size(); ++i) {
    INFO("row " << i << ", " << table()[i].name);
    f(table()[i]);
  }
}

std::vector<float> masters_of(const nn::Module& module) {
  std::vector<float> result;
  for (const NamedTensor& entry : nn::named_masters(module))
    for (const float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

std::vector<float> moments_of(train::Optimizer& optimizer) {
  std::vector<float> result;
  for (const NamedTensor& entry : optimizer.state())
    if (entry.name != "step" && !entry.name.starts_with("lr."))
      for (const float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

/// The kernels of a step of a flat OddModule, which has three matrices.
std::size_t flat_launches(const Row& row) { return row.takes_matrices ? 4 : 1; }

/// Steps of 16-bit parameters beside those of f32 ones from the same gradients: the masters go the same way.
void check_masters(Device device) {
  for_each_row([&](const Row& row) {
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool is_flat : {true, false}) {
        INFO(name(dtype) << (is_flat ? ", flat" : ""));
        manual_seed(5);
        OddModule model, reference = nn::clone(model);
        nn::to(model, device), nn::to(reference, device);
        if (is_flat) nn::flatten_parameters(model, dtype);
        else nn::to(model, dtype), nn::to(reference, dtype), nn::to(reference, DType::f32);  // masters begin at what 16 bits hold
        const auto a = row.make(nn::parameters(model)), b = row.make(nn::parameters(reference));
        for (std::uint64_t step = 0; step < 5; ++step) {
          set_gradients(model, 100 * step), set_gradients(reference, 100 * step);
          a->step(), b->step();
        }
        if (is_flat) {
          CHECK(a->launches() == flat_launches(row));
          CHECK(worst_master(model, reference) < (row.takes_matrices ? 1e-5 : 1e-6));
          check_rounded(model);
        }
        nn::to(reference, dtype);
        CHECK(worst_difference(model, reference) < (dtype == DType::bf16 ? 8e-3 : 1e-3));
      }
  });
}

}  // namespace

TEST_CASE("Each optimizer is its formula in float64, moments included", "[optim]") {
  const std::vector<Shape> shapes = {{1},    {31},   {33},   {1025}, {70000},  // vectors
                                     {1, 1}, {5, 5}, {3, 7}, {9, 4}, {33, 17}, {1, 31}, {4, 3, 2}};
  for_each_row([&](const Row& row) {
    Tensors parameters;
    std::vector<Vector> values;
    std::vector<std::vector<Vector>> moments;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::vector<float> drawn = draw(40 + i, numel(shapes[i]), 1);
      values.emplace_back(drawn.begin(), drawn.end());
      moments.emplace_back(row.moments.size(), Vector(drawn.size()));
      parameters.push_back(Tensor::from(values[i], shapes[i]).set_requires_grad());
    }
    const auto optimizer = row.make(parameters);
    for (int step = 0; step < 6; ++step) {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const std::vector<float> drawn = draw(60 + 20 * std::uint64_t(step) + i, numel(shapes[i]), 0.5);
        Vector gradient(drawn.begin(), drawn.end());
        if (step == 0) gradient[0] = 0;  // a sign of 0
        parameters[i].set_grad(Tensor::from(gradient, shapes[i]));
        row.formula(values[i], gradient, moments[i], step + 1, shapes[i]);
      }
      optimizer->step();
    }
    CHECK(optimizer->steps().item() == 6);
    const double bound = row.takes_matrices ? 1e-9 : 1e-12;
    std::size_t found = 0;
    const std::vector<NamedTensor> state = optimizer->state();
    const Tensors order = optimizer->parameters();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      INFO(to_string(shapes[i]));
      CHECK(distance(parameters[i].to_vector<double>(), values[i]) < bound);
      const auto at = std::find_if(order.begin(), order.end(), [&](const Tensor& x) { return x.is_same(parameters[i]); }) - order.begin();
      for (std::size_t k = 0; k < row.moments.size(); ++k)
        for (const NamedTensor& entry : state)
          if (entry.name == row.moments[k] + "." + std::to_string(at)) {
            CHECK(distance(entry.tensor.to_vector<double>(), moments[i][k]) < bound);
            ++found;
          }
    }
    CHECK(found == (row.takes_matrices ? 7 + 2 * 5 : row.moments.size() * shapes.size()));
  });
}

TEST_CASE("Each optimizer gives flat parameters the same numbers, in one kernel, and leaves their padding zero", "[optim][flat]") {
  for_each_row([](const Row& row) {
    manual_seed(1);
    OddModule plain, flat = nn::clone(plain);
    std::vector<nn::FlatParameters> buffers;
    const auto a = row.make(nn::parameters(plain)), b = row.make(nn::parameters(flat));
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (step == 1) buffers = nn::flatten_parameters(flat);  // between steps: moments follow
      set_gradients(plain, 100 * step), set_gradients(flat, 100 * step);
      a->step(), b->step();
    }
    CHECK(a->launches() == nn::parameters(plain).size());
    CHECK(b->launches() == flat_launches(row));
    CHECK(worst_difference(plain, flat) < 1e-6);
    double total = 0, expected = 0;
    for (const float x : floats(buffers[0].parameters)) total += std::abs(x);
    for (const Tensor& p : nn::parameters(flat))
      for (const float x : floats(p)) expected += std::abs(x);
    CHECK(total == Approx(expected).epsilon(1e-12));
  });
}

TEST_CASE("Each optimizer updates masters of 16-bit parameters as float32 ones", "[optim]") { check_masters(cpu); }
TEST_CASE("Each optimizer updates masters of 16-bit parameters as float32 ones on a GPU", "[optim][cuda]") { check_masters(cuda()); }

TEST_CASE("Each optimizer takes the gradients' factor, and leaves all as it was in a skipped step", "[optim]") {
  for_each_row([](const Row& row) {
    manual_seed(4);
    OddModule scaled, plain = nn::clone(scaled);
    const auto a = row.make(nn::parameters(scaled)), b = row.make(nn::parameters(plain));
    const Tensor four = full({}, 4), on = ones({}), off = zeros({});
    for (std::uint64_t step = 0; step < 3; ++step) {
      set_gradients(scaled, 10 * step), set_gradients(plain, 10 * step);
      const NoGrad unrecorded;
      for (const Tensor& x : nn::parameters(plain)) copy_(x.grad(), x.grad() * 4.0);
      a->step({.factor = four, .advance = on});
      b->step();
      if (step != 1) continue;
      for (const double factor : {4.0, std::nan("")}) {  // an overflow, of which the factor may be none
        for (const Tensor& x : nn::parameters(scaled)) fill_(x.grad(), std::numeric_limits<double>::infinity());
        const std::vector<float> before = masters_of(scaled), moments = moments_of(*a);
        a->step({.factor = full({}, factor), .advance = off});
        CHECK(masters_of(scaled) == before);
        CHECK(moments_of(*a) == moments);
      }
    }
    CHECK(worst_difference(scaled, plain) < 1e-5);
    CHECK(a->steps().item() == 3);
  });
}

TEST_CASE("Each optimizer goes on from its state", "[optim]") {
  for_each_row([](const Row& row) {
    manual_seed(6);
    OddModule model;
    nn::flatten_parameters(model);
    const auto optimizer = row.make(nn::parameters(model));
    set_gradients(model, 1);
    optimizer->step();
    OddModule other = nn::clone(model);
    const auto restored = row.make(nn::parameters(other)), loaded = row.make(nn::parameters(other));
    restored->set_lr(0.5);
    const auto from = optimizer->state(nn::named_parameters(model)), into = restored->state(nn::named_parameters(other));
    REQUIRE(from.size() == into.size());
    std::string names;
    for (std::size_t i = 0; i < from.size(); ++i) {
      names += from[i].name + " ";
      CHECK(from[i].name == into[i].name);
      copy_(into[i].tensor, from[i].tensor);
    }
    if (row.name == "Adam")
      CHECK(names == "step lr.0 m.a.weight m.a.bias m.b.weight m.b.bias m.c.weight v.a.weight v.a.bias v.b.weight v.b.bias v.c.weight ");
    if (row.name == "Muon") CHECK(names == "step lr.0 lr.1 m.a.weight m.b.weight m.c.weight m.a.bias m.b.bias v.a.bias v.b.bias ");
    loaded->load_moments(optimizer->state());
    CHECK(moments_of(*loaded) == moments_of(*optimizer));
    set_gradients(model, 2), set_gradients(other, 2);
    optimizer->step(), restored->step();
    CHECK(worst_difference(model, other) < 1e-6);
  });
}

TEST_CASE("Each optimizer follows its parameters to a GPU and back, and captured steps are those that are not", "[optim][cuda]") {
  for_each_row([](const Row& row) {
    manual_seed(4);
    OddModule here, there = nn::clone(here);
    nn::flatten_parameters(there);
    const auto a = row.make(nn::parameters(here)), b = row.make(nn::parameters(there));
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step % 2 == 0) nn::to(there, step == 2 ? cpu : cuda());
      set_gradients(here, 10 * step), set_gradients(there, 10 * step);
      a->step(), b->step();
      CHECK(b->launches() == flat_launches(row));
    }
    CHECK(worst_difference(here, there) < 1e-4);

    OddModule captured = nn::clone(there);
    set_gradients(captured, 7), set_gradients(there, 7);
    const auto c = row.make(nn::parameters(captured)), d = row.make(nn::parameters(there));
    const train::GradientScale scale{.factor = full({}, 0.5, DType::f32, cuda()), .advance = ones({}, cuda())};
    CapturedStep step(
        [&](const Tensors& in) {
          c->step(scale);
          return in[0] + 1;
        },
        cuda());
    for (int i = 0; i < 5; ++i) step({ones({1}, cuda())}), d->step(scale);
    CHECK(step.recordings() == 1);
    CHECK(worst_difference(there, captured) == 0);
  });
}

TEST_CASE("Optimizers on a GPU agree with the CPU, whatever a parameter's dtype, size and place", "[optim][cuda]") {
  const Maker makers[] = {maker(train::AdamWOptions{.lr = 0.02, .weight_decay = 0.1}),
                          maker(train::AdamOptions{.lr = 0.02, .weight_decay = 0.1}),
                          maker(train::LionOptions{.lr = 0.125, .weight_decay = 0.1}),
                          maker(train::RMSpropOptions{.lr = 0.02, .momentum = 0.9}),
                          maker(train::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
                          maker(train::SGDOptions{.lr = 0.1, .weight_decay = 0.01})};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const std::int64_t n : {1, 31, 33, 1025, 300001})
      for (const std::int64_t shift : {0, 1})
        for (std::size_t i = 0; i < std::size(makers); ++i) {
          INFO("optimizer " << i << ", " << name(dtype) << ", " << n << " from " << shift);
          std::vector<float> results[2];
          for (const Device device : {cpu, cuda()}) {
            const Tensor memory = to(cast(Tensor::from(draw(7, n + 1, 1), {n + 1}), dtype), device);
            Tensor parameter = slice(memory, 0, shift, n + shift).detach();
            parameter.set_requires_grad();
            const auto optimizer = makers[i]({parameter});
            for (std::uint64_t step = 0; step < 3; ++step) {
              // Far from 0, where rounding would choose a sign.
              const Tensor gradient = abs(Tensor::from(draw(20 + step, n, 1), {n})) + 0.5;
              parameter.set_grad(to(cast(gradient, dtype), device));
              optimizer->step({.factor = full({}, 0.75, DType::f32, device)});
            }
            results[device != cpu] = floats(parameter);
          }
          CHECK(distance(results[1], results[0]) < (dtype == DType::f16 ? 2e-3 : dtype == DType::bf16 ? 1.6e-2 : 1e-5));
        }
}

TEST_CASE("Each optimizer refuses options and parameters that it cannot take", "[optim]") {
  const Tensor x = zeros({3}).set_requires_grad(), y = zeros({3, 2}).set_requires_grad();
  CHECK_THROWS_AS(train::Adam({x, x}), Error);
  CHECK_THROWS_AS(train::Adam({zeros({3}, DType::i64)}), Error);
  CHECK_THROWS_AS(train::Adam({zeros({3, 2}).window({2, 3}, {1, 2}, 0)}), Error);
  CHECK_THROWS_AS(train::Adam({x}, {.lr = -1}), Error);
  CHECK_THROWS_AS(train::Adam({x}, {.beta1 = 1}), Error);
  CHECK_THROWS_AS(train::SGD({x}, {.nesterov = true}), Error);
  CHECK_THROWS_WITH(train::Lion({x}, {.beta2 = 1}), "[Lion] expected 0 <= beta2 < 1 but got 1");
  CHECK_THROWS_WITH(train::Muon({x}), "[Muon] expected matrices but got (3,): pass it to AdamW, in one of the other groups");
  CHECK_THROWS_AS(train::Muon({y}, {.iterations = 0}), Error);
  CHECK_THROWS_AS(train::Muon({y}, {.dtype = DType::i64}), Error);
  CHECK_THROWS_AS(train::Muon({y}, {}, {y}), Error);
  CHECK_THROWS_WITH(train::Muon({y}, {}, {x}, {.beta1 = 2}), "[AdamW] expected 0 <= beta1 < 1 but got 2");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.alpha = 1}), "[RMSprop] expected 0 <= alpha < 1 but got 1");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.eps = 0}), "[RMSprop] expected eps > 0 but got 0");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.momentum = -1}), "[RMSprop] expected a momentum >= 0 but got -1");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.weight_decay = -1}), "[RMSprop] expected a weight decay >= 0 but got -1");
  train::RMSprop plain(Tensors{x});
  CHECK_THROWS_WITH(plain.add_group({{y}, {.alpha = -1}}), "[RMSprop] expected 0 <= alpha < 1 but got -1");
  CHECK_NOTHROW(plain.add_group({{y}, {.momentum = 0.5, .centered = true}}));
  CHECK(plain.state().size() == 3 + 1 + 3);  // the step, two rates, v of x, three moments of y
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

TEST_CASE("RMSprop centred at gradients that are all equal has no root of a negative number", "[optim]") {
  // Of a thousand numbers some have a mean square that is rounded to below the square of their mean.
  for (const double alpha : {0.5, 0.7, 0.9, 0.97}) {
    const Tensor p = ones({1000}).set_requires_grad(), gradient = linspace(0.1, 7.3, 1000);
    train::RMSprop optimizer({p}, {.lr = 1e-6, .alpha = alpha, .centered = true});
    for (int step = 0; step < 400; ++step) {
      Tensor(p).set_grad(gradient);
      optimizer.step();
    }
    CHECK(all(isfinite(p)).item<bool>());
  }
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
  OddModule model;
  train::Lion lion(nn::parameters(model));
  const auto muon = make_muon(nn::parameters(model), {}, {});
  CHECK_NOTHROW(lion.set_exchange(std::make_shared<Alone>()));
  CHECK_THROWS_WITH(
      muon->set_exchange(std::make_shared<Alone>()),
      "[Optimizer] expected groups that are updated element by element, but one takes whole matrices, which cannot be sharded");
  CHECK(muon->exchange() == nullptr);
  set_gradients(model, 1);
  CHECK_NOTHROW(muon->step());
  CHECK_NOTHROW(lion.step());
}
