#include "ops/detail/implicit_convolution.h"

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/column_convolution.h"
#include "ops/factory.h"
#include "ops/op.h"
#include "ops/reduce.h"
#include "tensor/view_of.h"

namespace tern::detail {

namespace {

/// Gradients of x and of the weights that the call needs.
Tensors gradients(const Backward& call, const char* op, const kernels::Convolution& of) {
  const NoGrad unrecorded;
  const Tensor x = call.saved(0), w = call.saved(1), g = contiguous(call.grad());
  const GradientTarget dw = call.sink(1, w.shape(), g);
  Tensor dx = call.needs(0) ? empty(x.shape(), x.dtype(), x.device()) : Tensor();
  const bool has_dx = dx.defined() && cuda_has(x.device(), [&](auto dev) {
                        return kernels::has_implicit_convolution_grad(dev, g.view(), w.view(), of, dx.view());
                      });
  if (has_dx) on_cuda(op, x.device(), [&](auto dev) { kernels::implicit_convolution_grad(dev, g.view(), w.view(), of, dx.view()); });
  if (dw || (dx.defined() && !has_dx)) {
    const Tensor by_columns = column_gradients(x, w, g, of, dx.defined() && !has_dx, dw);
    if (!has_dx) dx = by_columns;
  }
  return {dx, dw.result(), call.needs(2) ? sum(g, {0, 2, 3}) : Tensor()};
}

}  // namespace

Tensor implicit_convolution(const char* op, const Tensor& x, const Tensor& w_, const Tensor& bias_, const kernels::Convolution& of) {
  const bool has = cuda_has(x.device(), [&](auto dev) { return kernels::has_implicit_convolution(dev, x.view(), w_.view(), of); });
  if (!has) return column_convolution(op, x, w_, bias_, of);
  const Tensor w = contiguous(w_), bias = bias_.defined() ? contiguous(bias_) : bias_;
  const auto result = [&]() -> Tensors {
    const NoGrad unrecorded;
    const Tensor y = empty({x.size(0), w.size(0), of.window.y.positions, of.window.x.positions}, x.dtype(), x.device());
    on_cuda(op, x.device(), [&](auto dev) { kernels::implicit_convolution(dev, x.view(), w.view(), view_of(bias), of, y.view()); });
    return {y};
  };
  const Product tangent{[&](const Tensors& in) -> Tensors { return {implicit_convolution(op, in[0], in[1], in[2], of)}; }};
  return record(op, costly(result)[0], {x, w, bias}, {x, w, bias}, tangent, [op, of](const Backward& call) -> Tensors {
    if (!context().grad) return gradients(call, op, of);
    return vjp(call, {call.saved(0), call.saved(1), call.saved(2)},
               [&of](const Tensors& t) -> Tensors { return {unfolded_convolution(t[0], t[1], t[2], of)}; });
  });
}

}  // namespace tern::detail
