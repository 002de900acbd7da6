// Ops of a user's own: Function, with gradients of every order, and mistakes in its backward.
#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "values.h"

namespace tern {

namespace {

struct Cube : Function<Cube> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return x * x * x;
  }
  static Tensors backward(const Backward& call) { return {3 * call.saved(0) * call.saved(0) * call.grad()}; }
};

/// Keeps its output instead of its input.
struct Exponential : Function<Exponential> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    const Tensor y = exp(x);
    saved = {y};
    return y;
  }
  static Tensors backward(const Backward& call) { return {call.grad() * call.saved(0)}; }
};

struct Scale : Function<Scale> {
  static Tensor forward(Tensors& saved, const Tensor& x, const Tensor& factor) {
    saved = {x, factor};
    return x * factor;
  }
  static Tensors backward(const Backward& call) {
    return {call.needs(0) ? call.grad() * call.saved(1) : Tensor(), call.needs(1) ? sum(call.grad() * call.saved(0)) : Tensor()};
  }
};

struct Identity : Function<Identity> {
  static Tensor forward(Tensors&, const Tensor& x) { return x; }
  static Tensors backward(const Backward& call) { return {call.grad() * 7}; }
};

struct WrongDerivative : Function<WrongDerivative> {
  static Tensor forward(Tensors&, const Tensor& x) { return sin(x); }
  static Tensors backward(const Backward& call) { return {call.grad() * 1.001}; }
};

struct WrongSecond : Function<WrongSecond> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return square(x);
  }
  static Tensors backward(const Backward& call) { return {call.grad() * call.saved(0).detach() * 2}; }
};

struct TooMany : Function<TooMany> {
  static Tensor forward(Tensors&, const Tensor& x) { return x + 1; }
  static Tensors backward(const Backward& call) { return {call.grad(), call.grad()}; }
};

struct WrongShape : Function<WrongShape> {
  static Tensor forward(Tensors&, const Tensor& x) { return sum(x); }
  static Tensors backward(const Backward&) { return {ones({1000}, DType::f64)}; }
};

struct WrongDtype : Function<WrongDtype> {
  static Tensor forward(Tensors&, const Tensor& x) { return x + 1; }
  static Tensors backward(const Backward& call) { return {cast(call.grad(), DType::f32)}; }
};

struct Throws : Function<Throws> {
  static Tensor forward(Tensors&, const Tensor& x) { return x + 1; }
  static Tensors backward(const Backward&) { throw std::runtime_error("no gradient today"); }
};

}  // namespace

TEST_CASE("A user's function has its own gradient, of any order") {
  const Tensor x = leaf({1, -2, 0.5}), factor = Tensor::scalar(0.7).set_requires_grad();
  CHECK(sum(Cube::apply(x)).item<double>() == Approx(1 - 8 + 0.125));
  const auto ok = [&](const TensorFunction& f, const Tensors& inputs) {
    const GradcheckResult first = gradcheck(f, inputs), second = gradgradcheck(f, inputs);
    CHECK(first.message == "");
    CHECK(second.message == "");
  };
  ok([](const Tensors& in) -> Tensors { return {Cube::apply(in[0])}; }, {x});
  ok([](const Tensors& in) -> Tensors { return {Exponential::apply(in[0])}; }, {x});
  ok([](const Tensors& in) -> Tensors { return {Scale::apply(in[0], in[1])}; }, {x, factor});
  ok([](const Tensors& in) -> Tensors { return {Scale::apply(in[0] * 2, Cube::apply(in[1]))}; }, {x, factor});
  Tensor d = sum(Cube::apply(leaf({2})));
  CHECK(d.requires_grad());
  const Tensor y = leaf({2});
  d = Cube::apply(y);
  for (double want : {12.0, 12.0, 6.0}) {
    d = grad({d}, {y}, {ones({1}, DType::f64)}, true)[0];
    CHECK(d.item<double>() == want);
  }
}

TEST_CASE("A function that gives back its input does not become its own input") {
  const Tensor x = leaf({1, 2});
  const Tensor y = Identity::apply(x);
  CHECK_FALSE(y.is_same(x));
  sum(y).backward();
  CHECK(x.grad().to_vector<double>() == Doubles{7, 7});
  CHECK(x.is_leaf());
}

TEST_CASE("A function on tensors without gradients records nothing") {
  const Tensor x = ones({2}, DType::f64);
  CHECK_FALSE(Cube::apply(x).requires_grad());
  const NoGrad unrecorded;
  CHECK_FALSE(Cube::apply(leaf({1})).requires_grad());
}

TEST_CASE("Mistakes in a function's backward are errors") {
  const Tensor x = leaf({1, 2});
  CHECK(contains(message_of([&] { sum(TooMany::apply(x)).backward(); }), "[function] expected backward to return 1 gradients but got 2"));
  // The gradient goes on into another op's kernel: it must be refused before.
  CHECK(contains(message_of([&] { WrongShape::apply(exp(x)).backward(); }), "(1000,)"));
  CHECK(contains(message_of([&] { WrongShape::apply(x).backward(); }),
                 "[function] expected a gradient of shape (2,), f64 for input 0 but got (1000,), f64"));
  CHECK(contains(message_of([&] { sum(WrongDtype::apply(x)).backward(); }), "f32"));
  CHECK(contains(message_of([&] { sum(WrongDtype::apply(exp(x))).backward(); }), "f32"));
  CHECK_THROWS_WITH(sum(Throws::apply(x)).backward(), "no gradient today");
  CHECK(context().grad);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("gradcheck finds what is wrong") {
  const Tensor x = leaf({0.3, 0.8});
  const TensorFunction right = [](const Tensors& in) -> Tensors { return {sin(in[0])}; };
  CHECK(gradcheck(right, {x}));
  CHECK(gradcheck(right, {x}).worst < 1e-8);
  const GradcheckResult wrong = gradcheck([](const Tensors& in) -> Tensors { return {WrongDerivative::apply(in[0])}; }, {x});
  CHECK_FALSE(wrong);
  CHECK(contains(wrong.message, "input 0, element 0"));
  CHECK(wrong.worst > 1e-3);
  const TensorFunction flat = [](const Tensors& in) -> Tensors { return {WrongSecond::apply(in[0])}; };
  CHECK(gradcheck(flat, {x}));
  CHECK_FALSE(gradgradcheck(flat, {x}));
  // A missing gradient counts as zero, and is found as well.
  CHECK_FALSE(gradcheck([](const Tensors& in) -> Tensors { return {in[0] * in[1].detach()}; }, {x, leaf({2, 3})}));
  CHECK_FALSE(gradcheck([](const Tensors& in) -> Tensors { return {in[0].detach()}; }, {x}));
  CHECK(contains(message_of([&] { gradcheck(right, {ones({2}).set_requires_grad()}); }), "[gradcheck] expected f64 inputs but got f32"));
  CHECK(contains(message_of([&] { gradcheck(right, {x.detach()}); }), "[gradcheck] expected an input that requires a gradient"));
}

TEST_CASE("gradcheck leaves the inputs as they were") {
  const Tensor x = leaf({0.3, 0.8});
  gradgradcheck([](const Tensors& in) -> Tensors { return {exp(in[0])}; }, {x});
  CHECK(x.to_vector<double>() == Doubles{0.3, 0.8});
  CHECK_FALSE(x.grad().defined());
  CHECK(x.version() == 0);
}

namespace {

/// 3 x^2, its gradient by a loop.
template <bool Detached>
struct ByLoop : Function<ByLoop<Detached>> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {Detached ? x.detach() : x};
    return 3 * x * x;
  }
  static Tensors backward(const Backward& call) {
    std::vector<double> x = call.saved(0).to_vector<double>();
    const std::vector<double> g = call.grad().to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= 6 * g[i];
    return {Tensor::from(x, call.grad().shape())};
  }
};

/// A gradient that has history by g, and not by x.
struct Half : Function<Half> {
  static constexpr bool once_differentiable = true;
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return x * x;
  }
  static Tensors backward(const Backward& call) { return {call.grad() * (2 * call.saved(0).detach())}; }
};

struct OutOfRange : Function<OutOfRange> {
  static inline int which = 0;
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return x + 0;
  }
  static Tensors backward(const Backward& call) {
    if (which == 0) call.saved(3);
    if (which == 1) call.grad(7);
    if (which == 2) call.needs(99);
    if (which == 3) call.sink(1);
    return {call.grad()};
  }
};

}  // namespace

TEST_CASE("A function whose gradient has no history is not differentiated twice in silence") {
  const Tensor x = Tensor::from(std::vector<double>{2}, {1}).set_requires_grad();
  const auto y = [&] { return ByLoop<false>::apply(x) + 2 * x; };
  CHECK(grad({y()}, {x})[0].item<double>() == 14);
  const Tensor first = grad({y()}, {x}, {}, true)[0];
  CHECK(first.item<double>() == 14);
  const std::string message = message_of([&] { grad({first}, {x}); });
  CHECK(contains(message, "[function] expected a backward written in ops, but this one is once differentiable"));
  const Tensor half = grad({Half::apply(x)}, {x}, {Tensor::from(std::vector<double>{1}, {1}).set_requires_grad()}, true)[0];
  CHECK(contains(message_of([&] { grad({half}, {x}); }), "once differentiable"));
  // A tensor that is saved without history is said not to matter.
  CHECK(grad({ByLoop<true>::apply(x) + x * x}, {x}, {}, true)[0].item<double>() == 16);
  CHECK(grad({grad({ByLoop<true>::apply(x) + x * x}, {x}, {}, true)[0]}, {x})[0].item<double>() == 2);
}

TEST_CASE("What backward asks for beyond its op is an error") {
  const char* const parts[] = {"one of 1 saved tensors, counted from 0, but got 3", "one of 1 outputs, counted from 0, but got 7",
                               "one of 1 inputs, counted from 0, but got 99", "one of 1 inputs, counted from 0, but got 1"};
  for (OutOfRange::which = 0; OutOfRange::which < 4; ++OutOfRange::which) {
    const Tensor x = Tensor::from(std::vector<double>{2}, {1}).set_requires_grad();
    const std::string message = message_of([&] { OutOfRange::apply(x).backward(); });
    CHECK(contains(message, "[function] expected backward to ask for"));
    CHECK(contains(message, parts[OutOfRange::which]));
  }
}

}  // namespace tern
