// Products of one weight over time steps as one (Note [Products over time steps]). On whole numbers all sums are exact in any order, so a
// program must give what the function gives as written, bit for bit.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "threads.h"

using namespace tern;

namespace {

using Sizes = std::vector<std::size_t>;
using OfTensors = std::function<Tensors(const Tensors&)>;
constexpr CompileOptions ways[] = {{}, {.as_on_gpu = true}};

/// Whole numbers from -1 to 1.
Tensor whole(const Shape& shape, DType dtype = DType::f64) { return cast(randint(-1, 2, shape), dtype); }
std::vector<std::vector<double>> elements(const Tensors& xs) {
  std::vector<std::vector<double>> all;
  for (const Tensor& x : xs) all.push_back(x.defined() ? cast(x, DType::f64).to_vector<double>() : std::vector<double>{});
  return all;
}
/// How many products of the function each product of several is, the largest first.
Sizes merged_in(const ProgramOverview& program) {
  Sizes sizes;
  for (const ProgramOverview::Group& group : program.groups)
    if (group.is_product) sizes.push_back(group.kernels.size());
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes;
}
/// Checks that the function gives the same compiled, and returns the sizes of its products of several, which are the same in all ways.
Sizes merged_in(const OfTensors& f, const std::vector<Shape>& shapes, DType dtype = DType::f64) {
  std::vector<Sizes> all;
  for (const CompileOptions& way : ways) {
    auto compiled = tern::compile(f, default_device(), way);
    for (int call = 0; call < 5; ++call) {
      Tensors in;
      for (const Shape& shape : shapes) in.push_back(whole(shape, dtype));
      CHECK(elements(compiled(in)) == elements(f(in)));
    }
    all.push_back(merged_in(compiled.overview()));
  }
  CHECK(all[0] == all[1]);
  return all[0];
}

/// An LSTM of ops on x (T, B, width), or (B, T, width), of whose states a head makes outputs, which are returned stacked in time.
struct Lstm {
  Lstm(std::int64_t width, DType dtype)
      : weights{randn({4 * width, width}, 0, 0.3, dtype), randn({4 * width, width}, 0, 0.3, dtype), randn({width, width}, 0, 0.3, dtype),
                randn({4 * width}, 0, 0.3, dtype), randn({width}, 0, 0.3, dtype)} {
    for (Tensor& w : weights) w.set_requires_grad(), w.set_grad(zeros_like(w));
  }
  Tensor operator()(const Tensor& x, int time) const {
    const std::int64_t batch = x.size(1 - time), width = x.size(2);
    Tensor h = zeros({batch, width}, x.dtype()), c = h;
    Tensors outputs;
    for (std::int64_t t = 0; t < x.size(time); ++t) {
      const Tensors gates = split(linear(select(x, time, t), weights[0], weights[3]) + linear(h, weights[1], Tensor()), width, 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
      outputs.push_back(linear(h, weights[2], weights[4]));
    }
    return stack(outputs, 0);
  }
  Tensors weights;
};

void lstm(DType dtype, int time, const CompileOptions& way, double bound) {
  INFO(name(dtype) << ", time is dimension " << time << (way.as_on_gpu ? ", as on a GPU" : ""));
  constexpr std::int64_t steps = 7, batch = 3, width = 8;
  const auto make = [&] {
    manual_seed(2);
    return [=, model = Lstm(width, dtype)](const Tensors& in) {
      const Tensor y = model(in[0], time);
      sum(y * in[1]).backward();
      Tensors results{y.detach()};
      for (const Tensor& w : model.weights) results.push_back(clone(w.grad()));
      return results;
    };
  };
  const auto plain = make();
  auto compiled = tern::compile(make(), default_device(), way), again = tern::compile(make(), default_device(), way);
  const Shape shape = time == 0 ? Shape{steps, batch, width} : Shape{batch, steps, width};
  for (int call = 0; call < 5; ++call) {
    const Tensors in{randn(shape, 0, 1, dtype), randn({steps, batch, width}, 0, 1, dtype)};
    const Tensors want = plain(in), got = compiled(in);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double difference = norm(cast(want[i] - got[i], DType::f64)).item<double>();
      CHECK(difference <= bound * norm(cast(want[i], DType::f64)).item<double>());
    }
    CHECK(elements(again(in)) == elements(got));
  }
  const ProgramOverview program = compiled.overview();
  // Of inputs and outputs, and back; but not of states, of which each is made from the one before.
  std::ptrdiff_t products = 0, copies = 0;
  for (const ProgramOverview::Group& group : program.groups) {
    products += std::count(group.kernels.begin(), group.kernels.end(), "linear");
    copies += std::count(group.kernels.begin(), group.kernels.end(), "Copy");
  }
  CHECK(products == 3 * steps);
  if (default_device() != cpu) {  // sums are in groups
    CHECK(merged_in(program).size() >= 6);
    return;
  }
  // Of x; all others lie side by side. On the CPU the weight of states is transposed once.
  CHECK(copies == time + (dtype == DType::f32 && !way.as_on_gpu));
  const Sizes sizes = merged_in(program);
  INFO(compiled.show(Stage::groups));
  CHECK(sizes == Sizes(dtype == DType::bf16 ? 3 : 8, static_cast<std::size_t>(steps)));  // gradients of 16 bits add up in f32
}

}  // namespace

TEST_CASE("An LSTM of ops has one product for a weight over all steps, and one for its gradient") {
  for (const CompileOptions& way : ways)
    for (const int time : {0, 1}) {
      lstm(DType::f64, time, way, 1e-13);
      lstm(DType::f32, time, way, 1e-5);
      lstm(DType::bf16, time, way, 0.05);
    }
}

TEST_CASE("Products are one only where nothing between them needs one of them, or changes the weight") {
  manual_seed(3);
  constexpr std::int64_t n = 5, rows = 3;
  const Tensor w = whole({n, n}), bias = whole({n});
  const auto rows_of = [](const Tensor& x, std::int64_t i) { return slice(x, 0, i * rows, (i + 1) * rows); };
  const std::vector<Shape> shapes{{4 * rows, n}, {rows, n}};
  // f(y) of four products, from what `between` does before each of them; joined for the result, which is the program's.
  const auto products = [&](const OfTensors& between, const std::function<Tensor(const Tensor&, std::int64_t)>& operand) -> OfTensors {
    return [=](const Tensors& in) -> Tensors {
      const NoGrad unrecorded;
      Tensors all, others;
      for (std::int64_t i = 0; i < 4; ++i) {
        for (Tensor& x : between(all)) others.push_back(std::move(x));
        all.push_back(linear(operand(in[0], i), w, bias));
      }
      others.push_back(cat(all, 0) * 2.0);
      return others;
    };
  };
  const OfTensors nothing = [](const Tensors&) { return Tensors{}; };

  CHECK(merged_in(products(nothing, rows_of), shapes) == Sizes{4});
  CHECK(merged_in(products(nothing, [&](const Tensor& x, auto) { return rows_of(x, 1); }), shapes) == Sizes{4});  // all of one operand
  CHECK(merged_in(products(nothing, [&](const Tensor& x, auto i) { return slice(x, 0, i, i + rows); }), shapes) ==
        Sizes{4});                                                                                                          // overlapping
  CHECK(merged_in(products(nothing, [&](const Tensor& x, auto i) { return rows_of(x, i * i % 4); }), shapes) == Sizes{4});  // in no order
  // Reads of one product in time for another one's operand, or for none.
  const auto of_last = [](const Tensors& all) { return all.empty() ? Tensors{} : Tensors{sum(all.back())}; };
  CHECK(merged_in(products(of_last, rows_of), shapes) == Sizes{4});
  Tensor last;
  const auto keep_last = [&last](const Tensors& all) {
    last = all.empty() ? Tensor() : all.back();
    return Tensors{};
  };
  const auto next = [&](const Tensor& x, auto i) { return last.defined() ? remainder(last, 3.0) + rows_of(x, i) : rows_of(x, i); };
  CHECK(merged_in(products(keep_last, next), shapes).empty());
  // Every second product reads the one before.
  CHECK(merged_in(products(keep_last, [&](const Tensor& x, auto i) { return i % 2 ? remainder(last, 3.0) : rows_of(x, i); }), shapes) ==
        Sizes{2});
  last = {};
  // The weight, the bias or an operand changes between the second and the third.
  for (const Tensor& edited : {w, bias}) {
    const Tensor before = clone(edited);
    const auto edit = [=](const Tensors& all) {
      if (all.size() % 2 == 0) copy_(edited, before * (all.empty() ? 1.0 : 2.0));
      return Tensors{};
    };
    CHECK(merged_in(products(edit, rows_of), shapes) == Sizes{2, 2});
  }
  const OfTensors operands = [&](const Tensors& in) -> Tensors {
    const NoGrad unrecorded;
    const Tensor x = in[0] * 2.0, a = linear(rows_of(x, 0), w, bias), b = linear(rows_of(x, 1), w, bias);
    copy_(slice(x, 0, rows - 1, rows + 1), slice(b, 0, 0, 2));  // the last row of the first, and the first of the second
    const Tensor c = linear(rows_of(x, 0), w, bias), d = linear(rows_of(x, 2), w, bias);
    return {a + b + c + d, x};
  };
  CHECK(merged_in(operands, shapes) == Sizes{2, 2});
  // Copies of operands that are edited between products of two weights.
  const Tensor other = whole({n, n});
  const OfTensors copies = [&](const Tensors& in) -> Tensors {
    const NoGrad unrecorded;
    const Tensor x = cat({in[1], in[1] * 2.0}, 1);
    const auto both = [&](const Tensor& weight) { return linear(slice(x, 1, 0, n), weight) + linear(slice(x, 1, n), weight); };
    const Tensor first = both(w);
    copy_(slice(x, 0, 0, 1), cat({slice(in[1], 0, 1, 2), slice(in[1], 0, 2, 3)}, 1));
    return {first + both(other)};
  };
  CHECK(merged_in(copies, shapes) == Sizes{2, 2});
  // Results that are the caller's, other dtypes, scales and weights.
  CHECK(merged_in([&](const Tensors& in) { return Tensors{linear(rows_of(in[0], 0), w), linear(rows_of(in[0], 1), w)}; }, shapes).empty());
  CHECK(merged_in([&](const Tensors& in) { return Tensors{matmul(in[1], w, 2) + matmul(in[1] * 2.0, w, 4)}; }, shapes).empty());
  CHECK(merged_in([&](const Tensors& in) { return Tensors{matmul(in[1], w) + matmul(in[1] * 2.0, transpose(w, 0, 1))}; }, shapes).empty());
  CHECK(merged_in([&](const Tensors& in) { return Tensors{matmul(in[1], w) + matmul(in[1] * 2.0, other)}; }, shapes).empty());
  const Tensor narrow = cast(w, DType::f32);
  const auto dtypes = [&](const Tensors& in) {
    return Tensors{cast(matmul(cast(in[1], DType::f32), narrow), DType::f64) + matmul(in[1], w)};
  };
  CHECK(merged_in(dtypes, shapes).empty());
  const auto precisions = [&](const Tensors& in) {
    const MatmulPrecisionMode mode(MatmulPrecision::tf32);
    return matmul(in[1] * 2.0, w);
  };
  CHECK(merged_in([&](const Tensors& in) { return Tensors{matmul(in[1], w) + precisions(in)}; }, shapes).empty());
  // Without fusion there is nothing of it.
  auto plain = tern::compile(products(nothing, rows_of), default_device(), {.fuse = false});
  for (int call = 0; call < 4; ++call) plain(Tensors{whole(shapes[0]), whole(shapes[1])});
  CHECK(merged_in(plain.overview()).empty());
}

TEST_CASE("Products with many rows stay alone, and those of few are at most half a megabyte together, of a GPU 16") {
  const Tensor w = whole({4, 4});
  const auto f = [&](const Tensors& in) { return Tensors{matmul(in[0], w) + matmul(in[0] + 1.0, w)}; };
  CHECK(merged_in(f, {{256, 4}}) == Sizes{2});
  CHECK(merged_in(f, {{257, 4}}).empty());
  const Tensor wide = whole({4, 512});
  for (const CompileOptions& way : ways) {
    auto sum_of_five = tern::compile(
        [&](const Tensors& in) {
          Tensor y = matmul(in[0], wide);
          for (int i = 0; i < 4; ++i) y = y + matmul(in[0] + double(i), wide);
          return y;
        },
        default_device(), way);
    for (int call = 0; call < 4; ++call) sum_of_five(Tensors{whole({64, 4})});
    CHECK(merged_in(sum_of_five.overview()) == (way.as_on_gpu ? Sizes{5} : Sizes{2, 2}));  // of 256 KiB
  }
}

TEST_CASE("A weight of four products of few rows is transposed once on the CPU, and results keep their bits") {
  manual_seed(5);
  const auto copies = [](std::int64_t rows, const Shape& weight, int uses, DType dtype = DType::f32, const CompileOptions& way = {}) {
    const Tensor w = randn(weight, 0, 0.1, dtype), back = randn(weight, 0, 0.1, dtype);
    const auto f = [&](const Tensors& in) -> Tensors {
      Tensor y = in[0];
      for (int i = 0; i < uses; ++i) y = matmul(tanh(linear(y, w)), back);
      return {y * 2.0};
    };
    auto compiled = tern::compile(f, default_device(), way);
    for (int call = 0; call < 4; ++call) {
      const Tensors in{randn({rows, weight[1]}, 0, 1, dtype)};
      CHECK(elements(compiled(in)) == elements(f(in)));
    }
    std::ptrdiff_t count = 0;
    for (const ProgramOverview::Group& group : compiled.overview().groups)
      count += std::count(group.kernels.begin(), group.kernels.end(), "Copy");
    return count;
  };
  CHECK(copies(3, {48, 16}, 4) == 1);
  CHECK(copies(3, {48, 16}, 3) == 0);
  CHECK(copies(32, {48, 16}, 4) == 1);
  CHECK(copies(33, {48, 16}, 4) == 0);
  CHECK(copies(1, {48, 16}, 4) == 0);
  CHECK(copies(3, {48, 1}, 4) == 0);
  CHECK(copies(3, {48, 16}, 4, DType::f64) == 0);
  CHECK(copies(3, {48, 16}, 4, DType::f32, {.as_on_gpu = true}) == 0);
  CHECK(copies(31, {512, 256}, 4) == 1);  // below 2^22 multiplications
  CHECK(copies(32, {512, 256}, 4) == 0);
}

namespace {

/// A function of random kernels, products of two weights and a bias among them. It edits weights and values in place, or has two losses
/// with gradients, between which the weights change.
struct Steps {
  unsigned seed;
  Tensors parameters;  ///< (n, n) twice, (n)
  bool has_gradients;

  Tensors operator()(const Tensors& in) const {
    std::mt19937 draw(seed);
    Tensors results = part(draw, in);
    if (!has_gradients) return results;
    {
      const NoGrad unrecorded;
      const bool is_read = draw() % 2, is_zeroed = draw() % 2;
      for (const Tensor& p : parameters) {
        if (is_read) copy_(p, remainder(p.grad(), 3.0) - 1.0);
        if (is_zeroed) gradient_sink(p).zero();
      }
    }
    const Tensors more = part(draw, in);
    results.insert(results.end(), more.begin(), more.end());
    for (const Tensor& p : parameters) results.push_back(p.grad().defined() ? clone(p.grad()) : Tensor());
    return results;
  }
  Tensors part(std::mt19937& draw, const Tensors& in) const {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(draw()) % n; };
    const GradMode mode(has_gradients);
    const std::int64_t rows = in[1].size(0);
    Tensors values{in[1] * 1.0}, results;
    const auto any = [&] {
      return below(2) ? values[values.size() - 1 - below(std::min<std::size_t>(3, values.size()))] : values[below(values.size())];
    };
    const auto step = [&] {
      return in[0].size(0) == rows ? select(in[0], 1, static_cast<std::int64_t>(below(4)))
                                   : select(in[0], 0, static_cast<std::int64_t>(below(4)));
    };
    for (std::size_t i = 6 + below(20); i-- > 0;) {
      const Tensor &w = parameters[below(2)], bias = below(2) ? parameters[2] : Tensor();
      switch (below(has_gradients ? 9 : 12)) {
        case 0:
        case 1: values.push_back(linear(step(), w, bias)); break;
        case 2: values.push_back(linear(remainder(any(), 3.0), w, bias)); break;
        case 3: values.push_back(linear(any(), w, bias)); break;
        case 4: values.push_back(matmul(step(), w)); break;
        case 5: values.push_back(remainder(any(), 3.0) - any()); break;
        case 6: values.push_back(cat({slice(any(), 0, 0, 1), slice(any(), 0, 1, rows)}, 0)); break;
        case 7: values.push_back(linear(step(), transpose(w, 0, 1), bias)); break;
        case 8: results.push_back(sum(any())); break;
        case 9: copy_(w, transpose(clone(w), 0, 1)); break;
        case 10: copy_(any(), any() + 1.0); break;
        default: copy_(slice(any(), 0, 0, 1), slice(any(), 0, rows - 1, rows)); break;
      }
    }
    results.push_back(clone(values.back()));
    if (!has_gradients) return results;
    Tensor loss = sum(values.back()) + sum(parameters[0]);
    for (std::size_t i = 0; i < 4; ++i) loss = loss + sum(any() * values[0]);
    loss.backward();
    for (Tensor& x : results) x = x.detach();
    results.push_back(loss.detach());
    return results;
  }
};

}  // namespace

namespace {

/// Counts over `count` programs.
struct Found {
  std::size_t products = 0, most = 0;  ///< products of several, and the parts of the largest
  std::size_t exact_calls = 0;
};
Found check_random(unsigned count) {
  const test::Threads restored;
  Found found;
  for (unsigned seed = 0; seed < count; ++seed) {
    std::mt19937 draw(seed + 7);
    manual_seed(seed);
    set_num_threads(1 + static_cast<int>(draw() % 2));
    const std::int64_t sizes[] = {1, 2, 5, 16}, n = sizes[draw() % 4], rows = sizes[draw() % 4] + 1;
    const Shape shapes[] = {draw() % 2 ? Shape{4, rows, n} : Shape{rows, 4, n}, {rows, n}};
    const CompileOptions way = ways[draw() % 2];
    const DType dtype = draw() % 2 ? DType::f64 : DType::f32;
    const double exact = dtype == DType::f64 ? 0x1p53 : 0x1p24;
    const auto make = [&, has_gradients = draw() % 2 == 0] {
      manual_seed(seed);
      Steps steps{seed, {whole({n, n}, dtype), whole({n, n}, dtype), whole({n}, dtype)}, has_gradients};
      for (Tensor& p : steps.parameters)
        if (has_gradients) p.set_requires_grad(), p.set_grad(zeros_like(p));
      return steps;
    };
    const Steps plain = make(), other = make();
    auto compiled = tern::compile([&](const Tensors& in) { return other(in); }, default_device(), way);
    bool is_exact = true;
    for (int call = 0; call < 5 && is_exact; ++call) {
      const Tensors in{whole(shapes[0], dtype), whole(shapes[1], dtype)};
      const auto want = elements(plain(in));
      for (const auto& x : want)
        for (const double element : x) is_exact = is_exact && std::abs(element) < exact;
      if (!is_exact) break;
      ++found.exact_calls;
      const auto got = elements(compiled(in));
      INFO("seed " << seed << ", call " << call << "\n" << compiled.show(Stage::groups));
      REQUIRE(got == want);
      REQUIRE(elements(other.parameters) == elements(plain.parameters));
    }
    for (const std::size_t size : merged_in(compiled.overview())) ++found.products, found.most = std::max(found.most, size);
  }
  return found;
}

}  // namespace

TEST_CASE("Random programs of products give what the functions give as written, bit for bit") {
  const Found found = check_random(600);
  CHECK(found.exact_calls > 2500);
  CHECK(found.products > 600);
  CHECK(found.most > 6);
}
TEST_CASE("Random programs of products on a GPU give what the functions give as written, bit for bit", "[cuda]") {
  const DeviceScope here(cuda());
  CHECK(check_random(40).products > 20);
}
TEST_CASE("An LSTM of ops on a GPU has one product for a weight over all steps, and one for its gradient", "[cuda]") {
  const DeviceScope here(cuda());
  for (const int time : {0, 1}) {
    lstm(DType::f64, time, {}, 1e-13);
    lstm(DType::f32, time, {}, 1e-5);
  }
}
