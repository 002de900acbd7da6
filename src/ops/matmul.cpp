#include "ops/matmul.h"

#include <fmt/format.h>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/factory.h"
#include "ops/kernels/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view_of.h"

namespace tern {

namespace {

[[noreturn]] void fail_shapes(const Tensor& a, const Tensor& b) {
  fail("matmul", fmt::format("expected the last dimension of a to equal the second to last of b, and batch dimensions "
                             "that broadcast, but got {} x {}",
                             to_string(a.shape()), to_string(b.shape())));
}

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_one_device(op, {&a, &b});
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype())
    fail(op, fmt::format("expected operands of one floating dtype but got {} and {}", name(a.dtype()), name(b.dtype())));
}

/// Checks the operands of matmul, which also takes integers where the device has products of them.
void check_factors(const Tensor& a, const Tensor& b, double scale) {
  if (is_floating(a.dtype()) || a.dtype() == DType::boolean || a.dtype() != b.dtype()) return check_operands("matmul", a, b);
  check_one_device("matmul", {&a, &b});
  if (!detail::matmul_takes(a)) fail("matmul", fmt::format("expected floating operands on a GPU but got {}", name(a.dtype())));
  if (scale != 1) fail("matmul", fmt::format("expected a scale of 1 for integers but got {}", scale));
}

/// Returns x if a product can take its strides (Note [Matmul operands]), else a copy.
Tensor operand(const Tensor& x) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  const std::int64_t row_stride = x.strides()[x.dims() - 2], column_stride = x.strides().back();
  const bool row_major = (column_stride == 1 || columns <= 1) && (row_stride >= columns || rows <= 1);
  const bool column_major = (row_stride == 1 || rows <= 1) && (column_stride >= rows || columns <= 1);
  return row_major || column_major ? x : clone(x);
}

View batched(const Tensor& x, const Shape& batch) {
  View view = x.view();
  const int lead = batch.size() + 2 - x.dims();
  Strides strides = Strides::filled(batch.size(), 0);
  for (int i = lead; i < batch.size(); ++i)
    if (x.shape()[i - lead] == batch[i]) strides[i] = x.strides()[i - lead];
  strides.push_back(x.strides()[x.dims() - 2]);
  strides.push_back(x.strides().back());
  view.shape = batch;
  view.shape.push_back(x.size(-2));
  view.shape.push_back(x.size(-1));
  view.strides = strides;
  return view;
}

}  // namespace

bool has_matmul_precision(MatmulPrecision precision, Device device) {
  return with_backend(device, [&](auto dev) { return kernels::has_matmul_precision(dev, precision, device); });
}

Tensor matmul(const Tensor& left, const Tensor& right, double scale) {
  const Tensor a_ = detail::autocast("matmul", left), b_ = detail::autocast("matmul", right);
  check_factors(a_, b_, scale);
  if (a_.dims() == 0 || b_.dims() == 0 || a_.size(-1) != b_.size(b_.dims() == 1 ? 0 : -2)) fail_shapes(a_, b_);
  if (a_.dims() == 1) return squeeze(matmul(unsqueeze(a_, 0), b_, scale), b_.dims() == 1 ? 0 : -2);
  if (b_.dims() == 1) return squeeze(matmul(a_, unsqueeze(b_, 1), scale), -1);
  if (a_.dims() > 2 && b_.dims() == 2) {
    // One product of all rows: then the gradient of b is also one product, rather than a batch of them to be summed.
    Shape shape = a_.shape();
    shape.back() = b_.size(1);
    return reshape(matmul(flatten(a_, 0, -2), b_, scale), shape);
  }
  const Tensor a = operand(a_), b = operand(b_);
  Shape a_batch(a.shape().begin(), a.shape().end() - 2), b_batch(b.shape().begin(), b.shape().end() - 2);
  Shape shape = broadcast_shapes(a_batch, b_batch, "matmul");
  const Shape batch = shape;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  const auto product = [&]() -> Tensors {
    const Tensor c = empty(shape, a.dtype(), a.device());
    if (!is_floating(a.dtype())) {
      detail::on_cpu([&](auto dev) { kernels::integer_matmul(dev, batched(a, batch), batched(b, batch), c.view()); });
      return {c};
    }
    on(c.device(), [&](auto dev) { kernels::matmul(dev, batched(a, batch), batched(b, batch), c.view(), scale, Write::overwrite); });
    return {c};
  };
  const Tensor c = detail::costly(product)[0];
  return record("matmul", c, {a, b}, {a, b}, Product{[&](const Tensors& in) -> Tensors { return {matmul(in[0], in[1], scale)}; }},
                [scale](const Backward& call) -> Tensors {
                  const Tensor x = call.saved(0), y = call.saved(1), &g = call.grad();
                  return {call.needs(0) ? sum_to(matmul(g, transpose(y, -1, -2), scale), x.shape()) : Tensor(),
                          call.needs(1) ? sum_to(matmul(transpose(x, -1, -2), g, scale), y.shape()) : Tensor()};
                });
}

/// Gradient g^T x of a linear layer's weight, which is that input of the op, in the form that backward returns.
static Tensor weight_gradient(const Backward& call, std::size_t input, const Tensor& g, const Tensor& x) {
  if (!call.needs(input)) return {};
  if (context().grad) return matmul(transpose(g, 0, 1), x);
  const GradientTarget to = call.sink(input, {g.size(1), x.size(1)}, g);
  const Tensor rows = operand(g);
  on(g.device(), [&](auto dev) { kernels::matmul(dev, transpose(rows, 0, 1).view(), x.view(), to.view(), 1, to.write); });
  return to.result();
}

/// Gradient of the bias, the column sums of g.
static Tensor bias_gradient(const Backward& call, std::size_t input, const Tensor& g) {
  if (!call.needs(input)) return {};
  if (context().grad) return sum(g, {0});
  const Tensor rows = contiguous(g);
  const GradientTarget to = call.sink(input, {g.size(1)}, g);
  on(g.device(), [&](auto dev) { kernels::column_sums(dev, rows.view(), to.view(), to.write, to.deferred); });
  return to.result();
}

namespace {

/// Operands of a linear layer, as its kernels take them.
struct LinearOperands {
  LinearOperands(const char* op, const Tensor& x, const Tensor& weight_, const Tensor& bias) {
    check_one_device(op, {&x, &weight_, &bias});
    check_operands(op, x, weight_);
    if (weight_.dims() != 2 || x.dims() == 0 || x.size(-1) != weight_.size(1) || (bias.defined() && bias.shape() != Shape{weight_.size(0)}))
      fail(op, fmt::format("expected x (..., in), weight (out, in) and bias (out) but got {}, {} and {}", to_string(x.shape()),
                           to_string(weight_.shape()), bias.defined() ? to_string(bias.shape()) : "none"));
    if (bias.defined()) check_operands(op, x, bias);
    const std::int64_t in = weight_.size(1), out = weight_.size(0);
    shape = x.shape();
    shape.back() = out;
    rows = operand(reshape(x, {in == 0 ? numel(shape) / std::max<std::int64_t>(out, 1) : x.numel() / in, in}));
    weight = operand(weight_);
  }
  /// New memory for the result (rows, out).
  Tensor result() const { return empty({rows.size(0), weight.size(0)}, rows.dtype(), rows.device()); }

  Tensor rows, weight;
  Shape shape;  ///< shape of the result
};

/// Gradients of x and the weight, from that of the result.
Tensors product_gradients(const Backward& call, const Tensor& g) {
  return {call.needs(0) ? matmul(g, call.saved(1)) : Tensor(), weight_gradient(call, 1, g, call.saved(0))};
}

}  // namespace

Tensor linear(const Tensor& x_, const Tensor& weight_, const Tensor& bias_) {
  const Tensor x = detail::autocast("linear", x_), weight = detail::autocast("linear", weight_), bias = detail::autocast("linear", bias_);
  const LinearOperands a("linear", x, weight, bias);
  const auto product = [&]() -> Tensors {
    const Tensor y = a.result();
    on(y.device(), [&](auto dev) { kernels::linear(dev, a.rows.view(), a.weight.view(), view_of(bias), y.view()); });
    return {y};
  };
  return reshape(record("linear", detail::costly(product)[0], {a.rows, a.weight, bias}, {a.rows, a.weight},
                        Product{[&](const Tensors& in) -> Tensors { return {linear(in[0], in[1], in[2])}; }},
                        [](const Backward& call) -> Tensors {
                          Tensors gradients = product_gradients(call, call.grad());
                          gradients.push_back(bias_gradient(call, 2, call.grad()));
                          return gradients;
                        }),
                 a.shape);
}

/// linear(x, weight, bias) and its gelu_tanh, (rows, out) each. Selective checkpointing keeps only the first if the second can be computed
/// from it.
static Tensors product_and_gelu(const LinearOperands& a, const Tensor& bias) {
  const Tensor y = a.result();
  const bool is_split =
      context().saved_tensor_hooks && on(y.device(), [&](auto dev) { return kernels::is_gelu_of_written(dev, y.dtype()); });
  const auto product = [&]() -> Tensors {
    const Tensor before = a.result();
    on(y.device(), [&](auto dev) {
      if (is_split) kernels::linear(dev, a.rows.view(), a.weight.view(), view_of(bias), before.view());
      else kernels::linear_gelu(dev, a.rows.view(), a.weight.view(), view_of(bias), before.view(), y.view());
    });
    return is_split ? Tensors{before} : Tensors{before, y};
  };
  Tensors results = detail::costly(product);
  if (!is_split) return results;
  on(y.device(), [&](auto dev) { kernels::unary(dev, functors::GeluTanh{}, results[0].view(), y.view()); });
  return {results[0], y};
}

Tensor linear_gelu(const Tensor& x_, const Tensor& weight_, const Tensor& bias_) {
  const Tensor x = detail::autocast("linear", x_), weight = detail::autocast("linear", weight_), bias = detail::autocast("linear", bias_);
  const LinearOperands a("linear_gelu", x, weight, bias);
  const Tensors results = product_and_gelu(a, bias);
  const Tensor &before = results[0], &y = results[1];
  Tensors saved = {a.rows, a.weight, before};
  if (bias.defined()) saved.push_back(bias);
  const auto backward = [has_saved_bias = bias.defined()](const Backward& call) -> Tensors {
    if (context().grad)
      return vjp(call, {call.saved(0), call.saved(1), has_saved_bias ? call.saved(3) : Tensor()},
                 [](const Tensors& in) -> Tensors { return {gelu_tanh(linear(in[0], in[1], in[2]))}; });
    const Tensor g = contiguous(call.grad()), dx = empty_like(g);
    const GradientTarget to = call.sink(2, {g.size(1)}, g);
    on(g.device(),
       [&](auto dev) { kernels::gelu_bias_grad(dev, g.view(), call.saved(2).view(), dx.view(), to.view(), to.write, to.deferred); });
    Tensors gradients = product_gradients(call, dx);
    gradients.push_back(to.result());
    return gradients;
  };
  return reshape(record("linear_gelu", y, {a.rows, a.weight, bias}, saved, backward), a.shape);
}

Tensor feed_forward_gelu(const Tensor& x_, const Tensor& fc_weight_, const Tensor& fc_bias_, const Tensor& proj_weight_,
                         const Tensor& proj_bias_) {
  constexpr const char* op = "feed_forward_gelu";
  const auto lowered = [](const Tensor& x) { return detail::autocast("linear", x); };
  const Tensor x = lowered(x_), fc_weight = lowered(fc_weight_), fc_bias = lowered(fc_bias_), proj_weight = lowered(proj_weight_),
               proj_bias = lowered(proj_bias_);
  check_one_device(op, {&x, &fc_weight, &fc_bias, &proj_weight, &proj_bias});
  const LinearOperands fc(op, x, fc_weight, fc_bias);
  const Tensors results = product_and_gelu(fc, fc_bias);
  const Tensor &before = results[0], &hidden = results[1];
  const LinearOperands proj(op, hidden, proj_weight, proj_bias);
  const auto product = [&]() -> Tensors {
    const Tensor y = proj.result();
    on(y.device(), [&](auto dev) { kernels::linear(dev, hidden.view(), proj.weight.view(), view_of(proj_bias), y.view()); });
    return {y};
  };
  const Tensor y = detail::costly(product)[0];
  const auto backward = [has_proj_bias = proj_bias.defined()](const Backward& call) -> Tensors {
    const Tensor g = contiguous(call.grad()), rows = call.saved(0), before_gelu = call.saved(3), activated = call.saved(4);
    const Tensor weight = call.saved(1), next = call.saved(2);
    if (context().grad)
      return vjp(call, {rows, weight, call.saved(5), next, has_proj_bias ? zeros({g.size(1)}, g.dtype(), g.device()) : Tensor()},
                 [](const Tensors& in) -> Tensors { return {linear(gelu_tanh(linear(in[0], in[1], in[2])), in[3], in[4])}; });
    Tensors gradients(5);
    gradients[4] = bias_gradient(call, 4, g);
    gradients[3] = weight_gradient(call, 3, g, activated);
    if (!call.needs(0) && !call.needs(1) && !call.needs(2)) return gradients;
    const Tensor dx = empty_like(before_gelu);
    const GradientTarget to = call.sink(2, {dx.size(1)}, dx);
    on(g.device(), [&](auto dev) {
      kernels::linear_gelu_grad(dev, g.view(), next.view(), before_gelu.view(), dx.view(), to.view(), to.write, to.deferred);
    });
    gradients[2] = to.result();
    gradients[1] = weight_gradient(call, 1, dx, rows);
    if (call.needs(0)) gradients[0] = matmul(dx, weight);
    return gradients;
  };
  Shape shape = fc.shape;
  shape.back() = proj.weight.size(0);
  return reshape(record(op, y, {fc.rows, fc.weight, fc_bias, proj.weight, proj_bias},
                        {fc.rows, fc.weight, proj.weight, before, hidden, fc_bias}, backward),
                 shape);
}

}  // namespace tern
