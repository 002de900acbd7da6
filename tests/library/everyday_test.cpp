// The 104 lines that a newcomer types in the first hours, after NumPy, PyTorch and MLX. A line that stands here compiles as typed, and its
// value is checked; those that do not stand at the end, each with the reason and with what is typed instead.
#include <tern/tern.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "catch.h"

using namespace tern;

namespace {

using Doubles = std::vector<double>;

/// A line, and whether it gives what it should.
struct Line {
  const char* text;
  std::function<bool()> holds;
};

/// [[1, 2], [3, 4]] and [[2, 2], [2, 4]], made anew for each line.
Tensor make_x() { return Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2}); }
Tensor make_y() { return Tensor::from({2.f, 2.f, 2.f, 4.f}, {2, 2}); }
Tensor bools(const std::vector<bool>& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); }
Tensor ids(const std::vector<std::int64_t>& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); }

bool is(const Tensor& got, const Doubles& want, const Shape& shape) {
  const Tensor wanted = Tensor::from(want, shape);
  return got.shape() == shape && allclose(cast(got, DType::f64), wanted, 1e-6, 1e-6);
}
bool is(const Tensor& got, const Doubles& want) { return is(got, want, {static_cast<std::int64_t>(want.size())}); }

const Tensor x = make_x(), y = make_y(), v = Tensor::from({-1.5f, 0.5f, 2.5f}, {3}), m = bools({true, false}), n = bools({true, true});

const std::vector<Line> operators = {
    {"z += y",
     [] {
       const Tensor z = make_x();
       z += y;
       return is(z, {3, 4, 5, 8}, {2, 2});
     }},
    {"z -= y",
     [] {
       const Tensor z = make_x();
       z -= y;
       return is(z, {-1, 0, 1, 0}, {2, 2});
     }},
    {"z *= y",
     [] {
       const Tensor z = make_x();
       z *= y;
       return is(z, {2, 4, 6, 16}, {2, 2});
     }},
    {"z /= y",
     [] {
       const Tensor z = make_x();
       z /= y;
       return is(z, {0.5, 1, 1.5, 1}, {2, 2});
     }},
    {"z += 1",
     [] {
       const Tensor z = make_x();
       z += 1;
       return is(z, {2, 3, 4, 5}, {2, 2});
     }},
    {"z[0] += 1",
     [] {
       const Tensor z = make_x();
       z[0] += 1;
       return is(z, {2, 3, 3, 4}, {2, 2});
     }},
    {"x < y", [] { return is(x < y, {1, 0, 0, 0}, {2, 2}); }},
    {"x <= y", [] { return is(x <= y, {1, 1, 0, 1}, {2, 2}); }},
    {"x > 2", [] { return is(x > 2, {0, 0, 1, 1}, {2, 2}); }},
    {"x >= y", [] { return is(x >= y, {0, 1, 1, 1}, {2, 2}); }},
    {"x == y", [] { return is(x == y, {0, 1, 0, 1}, {2, 2}); }},
    {"x != y", [] { return is(x != y, {1, 0, 1, 0}, {2, 2}); }},
    {"!m", [] { return is(!m, {0, 1}); }},
    {"m & n", [] { return is(m & n, {1, 0}); }},
    {"m | n", [] { return is(m | n, {1, 1}); }},
    {"x % 2", [] { return is(x % 2, {1, 0, 1, 0}, {2, 2}); }},
    {"maximum(0.0, v)", [] { return is(maximum(0.0, v), {0, 0.5, 2.5}); }},
    {"x[0]", [] { return is(x[0], {1, 2}); }},
    {"x[-1][0]", [] { return is(x[-1][0], {3}, {}); }},
    {"x[{0, 1}]", [] { return is(x[{0, 1}], {2}, {}); }},
    {"x[Slice(0, 1)]", [] { return is(x[Slice(0, 1)], {1, 2}, {1, 2}); }},
    {"x[{Slice(), 1}]", [] { return is(x[{Slice(), 1}], {2, 4}); }},
    {"x[{ellipsis, newaxis}]", [] { return is(x[{ellipsis, newaxis}], {1, 2, 3, 4}, {2, 2, 1}); }},
    {"x[x > 2]", [] { return is(x[x > 2], {3, 4}); }},
    {"x[ids]", [] { return is(x[ids({1, 1, 0})], {3, 4, 3, 4, 1, 2}, {3, 2}); }},
    {"x[{rows, columns}]", [] { return is(x[{ids({0, 1}), ids({1, 0})}], {2, 3}); }},
};

const std::vector<Line> members = {
    {"x.sum()", [] { return is(x.sum(), {10}, {}); }},
    {"x.sum(1)", [] { return is(x.sum(1), {3, 7}); }},
    {"x.mean()", [] { return is(x.mean(), {2.5}, {}); }},
    {"x.reshape({4})", [] { return is(x.reshape({4}), {1, 2, 3, 4}); }},
    {"x.T()", [] { return is(x.T(), {1, 3, 2, 4}, {2, 2}); }},
    {"x.to(cpu)", [] { return is(x.to(cpu), {1, 2, 3, 4}, {2, 2}); }},
    {"x.to(DType::f64)", [] { return x.to(DType::f64).dtype() == DType::f64; }},
    {"x.sum().item()", [] { return x.sum().item() == 10; }},
};

const std::vector<Line> makers = {
    {"Tensor::from({1.f, 2.f}, {2})", [] { return is(Tensor::from({1.f, 2.f}, {2}), {1, 2}); }},
    {"Tensor::from(std::vector<bool>{true, false}, {2})", [] { return is(Tensor::from(std::vector<bool>{true, false}, {2}), {1, 0}); }},
    {"zeros({2}, device)",
     [] {
       const Device device = cpu;
       return is(zeros({2}, device), {0, 0});
     }},
    {"ones({2}, {.dtype = DType::f64, .device = cpu})",
     [] { return ones({2}, {.dtype = DType::f64, .device = cpu}).dtype() == DType::f64; }},
    {"randn({2}, DType::f64)", [] { return randn({2}, DType::f64).dtype() == DType::f64; }},
    {"DeviceScope scope(device); zeros({2})",
     [] {
       const DeviceScope scope(cpu);
       return is(zeros({2}), {0, 0});
     }},
    {"arange(3)", [] { return is(arange(3), {0, 1, 2}); }},
    {"linspace(0, 1, 3)", [] { return is(linspace(0, 1, 3), {0, 0.5, 1}); }},
    {"eye(2)", [] { return is(eye(2), {1, 0, 0, 1}, {2, 2}); }},
};

const std::vector<Line> reductions = {
    {"sum(x, 1)", [] { return is(sum(x, 1), {3, 7}); }},
    {"mean(x, 0)", [] { return is(mean(x, 0), {2, 3}); }},
    {"max(x, 1)", [] { return is(max(x, 1), {2, 4}); }},
    {"softmax(x, 1)", [] { return is(softmax(x, 1), {0.26894142, 0.73105858, 0.26894142, 0.73105858}, {2, 2}); }},
    {"stddev(x, 1)", [] { return is(stddev(x, 1), {std::sqrt(0.5), std::sqrt(0.5)}); }},
    {"norm(x)", [] { return is(norm(x), {std::sqrt(30.0)}, {}); }},
    {"median(v)", [] { return is(median(v), {0.5}, {}); }},
    {"cumsum(x, 1)", [] { return is(cumsum(x, 1), {1, 3, 3, 7}, {2, 2}); }},
    {"cumprod(x, 1)", [] { return is(cumprod(x, 1), {1, 2, 3, 12}, {2, 2}); }},
};

const std::vector<Line> functions = {
    {"floor(v)", [] { return is(floor(v), {-2, 0, 2}); }},
    {"ceil(v)", [] { return is(ceil(v), {-1, 1, 3}); }},
    {"round(v)", [] { return is(round(v), {-2, 0, 2}); }},
    {"log1p(abs(v))", [] { return is(log1p(abs(v)), {std::log1p(1.5), std::log1p(0.5), std::log1p(2.5)}); }},
    {"expm1(v)", [] { return is(expm1(v), {std::expm1(-1.5), std::expm1(0.5), std::expm1(2.5)}); }},
    {"tan(v)", [] { return is(tan(v), {std::tan(-1.5), std::tan(0.5), std::tan(2.5)}); }},
    {"atan2(x, y)", [] { return is(atan2(x, y), {std::atan2(1, 2), std::atan2(2, 2), std::atan2(3, 2), std::atan2(4, 4)}, {2, 2}); }},
    {"remainder(v, 2)", [] { return is(remainder(v, 2), {0.5, 0.5, 0.5}); }},
    {"softplus(v)", [] { return is(softplus(v), {std::log1p(std::exp(-1.5)), std::log1p(std::exp(0.5)), std::log1p(std::exp(2.5))}); }},
    {"leaky_relu(v)", [] { return is(leaky_relu(v), {-0.015, 0.5, 2.5}); }},
    {"elu(v)", [] { return is(elu(v), {std::expm1(-1.5), 0.5, 2.5}); }},
    {"isnan(v)", [] { return is(isnan(v), {0, 0, 0}); }},
    {"isfinite(v)", [] { return is(isfinite(v), {1, 1, 1}); }},
    {"allclose(x, x)", [] { return allclose(x, x) && !allclose(x, y); }},
};

const std::vector<Line> rearrangements = {
    {"repeat_interleave(v, 2, 0)", [] { return is(repeat_interleave(v, 2, 0), {-1.5, -1.5, 0.5, 0.5, 2.5, 2.5}); }},
    {"tile(m, {2})", [] { return is(tile(m, {2}), {1, 0, 1, 0}); }},
    {"flip(v)", [] { return is(flip(v), {2.5, 0.5, -1.5}); }},
    {"roll(v, 1, 0)", [] { return is(roll(v, 1, 0), {2.5, -1.5, 0.5}); }},
    {"diagonal(x)", [] { return is(diagonal(x), {1, 4}); }},
    {"diag(x[0])", [] { return is(diag(x[0]), {1, 0, 0, 2}, {2, 2}); }},
    {"movedim(x, 0, 1)", [] { return is(movedim(x, 0, 1), {1, 3, 2, 4}, {2, 2}); }},
    {"chunk(v, 2)", [] { return is(chunk(v, 2)[1], {2.5}); }},
    {"sliding_window(v, 0, 2)", [] { return is(sliding_window(v, 0, 2), {-1.5, 0.5, 0.5, 2.5}, {2, 2}); }},
    {"nonzero(m)", [] { return is(nonzero(m), {0}, {1, 1}); }},
    {"masked_select(x, m)", [] { return is(masked_select(x, m), {1, 3}); }},
    {"scatter(v, 0, ids, 9)", [] { return is(scatter(v, 0, ids({0, 2}), 9), {9, 0.5, 9}); }},
    {"multinomial(m.to(DType::f32), 1)", [] { return is(multinomial(m.to(DType::f32), 1), {0}); }},
    {"unique(y).values", [] { return is(unique(y).values, {2, 4}); }},
    {"bincount(ids)", [] { return is(bincount(ids({0, 2, 2})), {1, 0, 2}); }},
};

const std::vector<Line> products = {
    {"dot(v, v)", [] { return is(dot(v, v), {8.75}, {}); }},
    {"outer(m, v)", [] { return is(outer(m, v), {-1.5, 0.5, 2.5, 0, 0, 0}, {2, 3}); }},
    {"einsum(\"ij,jk->ik\", {x, y})", [] { return is(einsum("ij,jk->ik", {x, y}), {6, 10, 14, 22}, {2, 2}); }},
    {"solve(x, b)", [] { return !has_linalg() || is(solve(x, Tensor::from({5.f, 11.f}, {2})), {1, 2}); }},
    {"inverse(x)", [] { return !has_linalg() || is(inverse(x), {-2, 1, 1.5, -0.5}, {2, 2}); }},
    {"svd(x).s", [] { return !has_linalg() || is(prod(svd(x).s), {2}, {}); }},
    {"conv1d(signals, weights)", [] { return is(conv1d(v.reshape({1, 1, 3}), ones({1, 1, 2})), {-1, 3}, {1, 1, 2}); }},
    {"conv2d(images, weights, bias, {.padding = {1, 1}})",
     [] {
       return is(conv2d(x.reshape({1, 1, 2, 2}), ones({1, 1, 3, 3}), ones({1}), {.padding = {1, 1}}), {11, 11, 11, 11}, {1, 1, 2, 2});
     }},
    {"max_pool2d(images, {.kernel = {2, 2}})",
     [] { return is(max_pool2d(x.reshape({1, 1, 2, 2}), {.kernel = {2, 2}}), {4}, {1, 1, 1, 1}); }},
};

const std::vector<Line> losses = {
    {"binary_cross_entropy_with_logits(v, t)",
     [] { return is(binary_cross_entropy_with_logits(zeros({2}), ones({2})), {std::log(2.0)}, {}); }},
    {"nll_loss(log_softmax(x), ids)", [] { return is(nll_loss(log_softmax(x), ids({1, 1})), {std::log1p(std::exp(-1))}, {}); }},
    {"kl_div(log_softmax(x), softmax(x))", [] { return is(kl_div(log_softmax(x), softmax(x)), {0}, {}); }},
    {"l1_loss(x, y)", [] { return is(l1_loss(x, y), {0.5}, {}); }},
    {"huber_loss(x, y)", [] { return is(huber_loss(x, y), {0.25}, {}); }},
};

const std::vector<Line> modules = {
    {"model(x)",
     [] {
       const nn::Linear model(2, 3);
       return model(x).shape() == Shape{2, 3};
     }},
    {"nn::Sequential(nn::Linear(2, 3), nn::ReLU())", [] { return nn::Sequential(nn::Linear(2, 3), nn::ReLU())(x).shape() == Shape{2, 3}; }},
    {"nn::LSTM(8, 16)", [] { return nn::LSTM(8, 16)(zeros({2, 5, 8})).y.shape() == Shape{2, 5, 16}; }},
};

/// Lines that do not compile, or not so.
struct Missing {
  const char *text, *reason;
};
const std::vector<Missing> missing = {
    {"std(x)", "std is the standard library's namespace: stddev(x)"},
    {"zeros({values.size(), 1})", "std::size_t is no std::int64_t, and braces refuse to narrow: std::ssize(values)"},
    {"model.parameters()", "what is asked of every module is a function: nn::parameters(model)"},
    {"model.to(device)", "as before: nn::to(model, device)"},
    {"nn::BatchNorm(8)", "of which dimensions it is it does not say: nn::BatchNorm2d(8), nn::BatchNorm1d(8)"},
    {"train::Adam(parameters, 1e-3)", "options have names: {.lr = 1e-3}"},
};

}  // namespace

TEST_CASE("The lines of docs/modules.md compile, and do what it says") {
  struct Net final : nn::Callable<Net> {
    nn::Linear fc{2, 8};
    std::vector<nn::Linear> blocks = nn::layers(3, [] { return nn::Linear(8, 8); });
    Tensor scale = ones({8}).set_requires_grad();  // a parameter of one's own
    Tensor seen = zeros({});                       // saved, not trained

    void visit(nn::Visitor& v) override {
      v("fc", fc);
      v("blocks", blocks);  // blocks.0, blocks.1, blocks.2
      v("scale", scale);
      v.buffer("seen", seen);
    }
    Tensor forward(const Tensor& x) const {
      Tensor h = relu(fc(x));
      for (const nn::Linear& block : blocks) h = h + relu(block(h));
      return h * scale;
    }
  } model;
  CHECK(model(x).shape() == Shape{2, 8});
  CHECK(nn::to_string(model) == "Net(\n  (fc): Linear(in=2, out=8, bias=true)\n  (blocks.0-2): 3 x Linear(in=8, out=8, bias=true)\n)");
  const std::string table = nn::to_string(nn::summary(model));
  INFO(table);
  CHECK(
      table.starts_with("path             kind    shape   dtype  count  bytes  state\n"
                        "fc.weight        Linear  (8, 2)  f32       16   64 B  trained\n"
                        "fc.bias          Linear  (8,)    f32        8   32 B  trained\n"));
  CHECK(table.ends_with("248 parameters, 248 trained, 0 frozen: 992 B\n1 numbers in buffers: 4 B\n"));

  nn::Sequential net(nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 2));  // names 0.weight, 0.bias, 2.weight, 2.bias
  CHECK(net.at<nn::Linear>(0).weight.shape() == Shape{32, 2});
  nn::ModuleList<nn::Linear> same = nn::layers(4, [] { return nn::Linear(8, 8); });
  CHECK(nn::count_parameters(same) == 288);
  nn::ModuleList<> mixed;  // of any modules that take a tensor and give one
  mixed.push_back(nn::RMSNorm(8));
  CHECK(mixed.size() == 1);
  nn::Linear layer(8, 8);
  layer.is_shared = true;
  CHECK(nn::count_parameters(nn::Sequential(layer, layer)) == 72);
  const auto [y, state] = nn::LSTM(8, 16, {.layers = 2})(zeros({2, 5, 8}));
  CHECK(state.c.shape() == Shape{2, 2, 16});
}

TEST_CASE("Of a newcomer's 104 lines at least 98 compile as typed, and mean what they should") {
  std::size_t compiled = 0;
  for (const std::vector<Line>* lines :
       {&operators, &members, &makers, &reductions, &functions, &rearrangements, &products, &losses, &modules})
    for (const Line& line : *lines) {
      INFO(line.text);
      CHECK(line.holds());
      ++compiled;
    }
  CHECK(compiled >= 98);
  CHECK(compiled + missing.size() == 104);
}
