#pragma once
#include "nn/fixture.h"

namespace tern {

/// Layers of odd sizes, so that slices of a flat buffer have padding between them.
struct OddModule final : nn::Module {
  void visit(nn::Visitor& v) override {
    v("a", a);
    v("b", b);
    v("c", c);
  }
  nn::Linear a{3, 5}, b{5, 7}, c{7, 1, false};
};

/// Gradients that both 16-bit dtypes hold exactly, the same for modules of any dtype and device.
inline void set_gradients(const nn::Module& module, std::uint64_t seed) {
  const NoGrad unrecorded;
  for (Tensor x : nn::parameters(module)) {
    const Tensor drawn = cast(cast(Tensor::from(draw(seed++, x.numel(), 1), x.shape(), cpu), DType::bf16), DType::f16);
    const Tensor gradient = to(cast(drawn, x.dtype()), x.device());
    if (x.grad().defined()) copy_(x.grad(), gradient);
    else x.set_grad(gradient);
  }
}

/// Of the parameters of two modules, of any device.
inline double worst_difference(const nn::Module& a, const nn::Module& b) {
  double worst = 0;
  const Tensors xs = nn::parameters(a), ys = nn::parameters(b);
  for (std::size_t i = 0; i < xs.size(); ++i) worst = std::max(worst, distance(xs[i], ys[i]));
  return worst;
}

/// Of the masters of a module from the float32 parameters of another.
inline double worst_master(const nn::Module& model, const nn::Module& reference) {
  double worst = 0;
  const auto masters = nn::named_masters(model);
  const Tensors expected = nn::parameters(reference);
  for (std::size_t i = 0; i < masters.size(); ++i) worst = std::max(worst, distance(masters[i].tensor, expected[i]));
  return worst;
}

/// Parameters are their masters, rounded.
inline void check_rounded(const nn::Module& model) {
  const auto parameters = nn::named_parameters(model), masters = nn::named_masters(model);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CHECK(masters[i].tensor.dtype() == DType::f32);
    CHECK(floats(parameters[i].tensor) == floats(cast(masters[i].tensor.detach(), parameters[i].tensor.dtype())));
  }
}

}  // namespace tern
