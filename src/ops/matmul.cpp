#include "ops/matmul.h"

#include <fmt/format.h>

#include "ops/factory.h"
#include "ops/kernels/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

[[noreturn]] void fail_shapes(const Tensor& a, const Tensor& b) {
  fail("matmul", fmt::format("expected the last dimension of a to equal the second to last of b, and batch dimensions "
                             "that broadcast, but got {} x {}",
                             to_string(a.shape()), to_string(b.shape())));
}

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype())
    fail(op, fmt::format("expected operands of one floating dtype but got {} and {}", name(a.dtype()), name(b.dtype())));
}

/// Checks the operands of matmul, which also takes integers where the device has products of them.
void check_factors(const Tensor& a, const Tensor& b, double scale) {
  if (is_floating(a.dtype()) || a.dtype() == DType::boolean || a.dtype() != b.dtype()) return check_operands("matmul", a, b);
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

/// Matrices (..., M, K) of the batch dimensions, as the kernels take them.
View batched(const Tensor& x, Shape shape) {
  View view = x.view();
  for (int d : {-2, -1}) shape.push_back(x.size(d));
  view.strides = broadcast_strides(x, shape);
  view.shape = shape;
  return view;
}

}  // namespace

bool has_matmul_precision(MatmulPrecision precision, Device device) {
  return with_backend(device, [&](auto dev) { return kernels::has_matmul_precision(dev, precision, device); });
}

namespace {

struct Matmul {
  static constexpr Op op{.name = "matmul", .autocast = CastTo::lower, .tangent = Tangent::product};
  double scale;

  struct Kept {
    Tensor a, b;
  };
  Result<Tensor, Kept> forward(const Tensor& left, const Tensor& right) const {
    const Tensor a = operand(left), b = operand(right);
    Shape a_batch(a.shape().begin(), a.shape().end() - 2), b_batch(b.shape().begin(), b.shape().end() - 2);
    Shape shape = broadcast_shapes(a_batch, b_batch, op.name);
    const Shape batch = shape;
    shape.push_back(a.size(-2));
    shape.push_back(b.size(-1));
    const auto product = [&]() -> Tensors {
      const Tensor c = empty(shape, a.dtype(), a.device());
      if (is_floating(a.dtype())) launch(c.device(), kernels::Matmul{batched(a, batch), batched(b, batch), c, scale, Write::overwrite});
      else launch(Cpu{}, kernels::IntegerMatmul{batched(a, batch), batched(b, batch), c});
      return {c};
    };
    return {detail::costly(product)[0], {a, b}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor& g = call.grad();
    return {call.needs(0) ? sum_to(matmul(g, transpose(kept.b, -1, -2), scale), kept.a.shape()) : Tensor(),
            call.needs(1) ? sum_to(matmul(transpose(kept.a, -1, -2), g, scale), kept.b.shape()) : Tensor()};
  }
};

/// matmul of operands that autocast has cast, as products of matrices.
struct AnyMatmul {
  static constexpr Op op{.name = "matmul", .autocast = CastTo::lower};
  double scale;

  Tensor forward(const Tensor& a, const Tensor& b) const {
    check_factors(a, b, scale);
    if (a.dims() == 0 || b.dims() == 0 || a.size(-1) != b.size(b.dims() == 1 ? 0 : -2)) fail_shapes(a, b);
    if (a.dims() == 1) return squeeze(matmul(unsqueeze(a, 0), b, scale), b.dims() == 1 ? 0 : -2);
    if (b.dims() == 1) return squeeze(matmul(a, unsqueeze(b, 1), scale), -1);
    if (a.dims() == 2 || b.dims() > 2) return call(Matmul{scale}, a, b);
    // One product of all rows: then the gradient of b is also one product, rather than a batch of them to be summed.
    Shape shape = a.shape();
    shape.back() = b.size(1);
    return reshape(call(Matmul{scale}, flatten(a, 0, -2), b), shape);
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, double scale) { return call(AnyMatmul{scale}, a, b); }

namespace {

/// Gradient g^T x of a linear layer's weight, which is that input of the op, in the form that backward returns.
Tensor weight_gradient(const Backward& call, std::size_t input, const Tensor& g, const Tensor& x) {
  if (!call.needs(input)) return {};
  if (context().grad) return matmul(transpose(g, 0, 1), x);
  const GradientTarget to = call.sink(input, {g.size(1), x.size(1)}, g);
  const Tensor rows = operand(g);
  launch(g.device(), kernels::Matmul{transpose(rows, 0, 1).view(), x, to.view(), 1, to.write});
  return to.result();
}

/// Gradient of the bias, the column sums of g.
Tensor bias_gradient(const Backward& call, std::size_t input, const Tensor& g) {
  if (!call.needs(input)) return {};
  if (context().grad) return sum(g, {0});
  const Tensor rows = contiguous(g);
  const GradientTarget to = call.sink(input, {g.size(1)}, g);
  launch(g.device(), kernels::ColumnSums{rows, to.view(), to.write, to.deferred});
  return to.result();
}

constexpr Op linear_op(const char* name, Tangent tangent = Tangent::transposed) {
  return {.name = name, .autocast = CastTo::lower, .tangent = tangent};
}

/// Operands of a linear layer, as its kernels take them: rows (N, in), weight (out, in).
struct LinearOperands {
  LinearOperands(const char* op, const Tensor& x, const Tensor& weight_, const Tensor& bias) {
    check_operands(op, x, weight_);
    if (weight_.dims() != 2 || x.dims() == 0 || x.size(-1) != weight_.size(1) || (bias.defined() && bias.shape() != Shape{weight_.size(0)}))
      fail(op, fmt::format("expected x (..., in), weight (out, in) and bias (out) but got {}, {} and {}", to_string(x.shape()),
                           to_string(weight_.shape()), detail::shape_or_none(bias)));
    if (bias.defined()) check_operands(op, x, bias);
    const std::int64_t in = weight_.size(1), out = weight_.size(0);
    shape = x.shape();
    shape.back() = out;
    rows = operand(reshape(x, {in == 0 ? numel(shape) / std::max<std::int64_t>(out, 1) : x.numel() / in, in}));
    weight = operand(weight_);
  }
  Tensor rows, weight;
  Shape shape;  ///< shape of the result
};

/// New memory for linear(rows, weight).
Tensor linear_result(const Tensor& rows, const Tensor& weight) {
  return empty({rows.size(0), weight.size(0)}, rows.dtype(), rows.device());
}
Tensor linear_product(const Tensor& rows, const Tensor& weight, const Tensor& bias) {
  const auto product = [&]() -> Tensors {
    const Tensor y = linear_result(rows, weight);
    launch(y.device(), kernels::Linear{rows, weight, view_of(bias), y});
    return {y};
  };
  return detail::costly(product)[0];
}

/// Gradients of rows and the weight, from that of the result.
Tensors product_gradients(const Backward& call, const Tensor& g, const Tensor& rows, const Tensor& weight) {
  return {call.needs(0) ? matmul(g, weight) : Tensor(), weight_gradient(call, 1, g, rows)};
}

/// linear of rows (N, in). As its tangent is the op of tangents, which may be expanded, it makes operands of its inputs itself.
struct LinearRows {
  static constexpr Op op = linear_op("linear", Tangent::product);

  struct Kept {
    Tensor rows, weight;
  };
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& w, const Tensor& bias) const {
    const Tensor rows = operand(x), weight = operand(w);
    return {linear_product(rows, weight, bias), {rows, weight}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    Tensors gradients = product_gradients(call, call.grad(), kept.rows, kept.weight);
    gradients.push_back(bias_gradient(call, 2, call.grad()));
    return gradients;
  }
};

/// linear(x, weight, bias) and its gelu_tanh, (rows, out) each. Selective checkpointing keeps only the first if the second can be computed
/// from it.
Tensors product_and_gelu(const Tensor& rows, const Tensor& weight, const Tensor& bias) {
  const Tensor y = linear_result(rows, weight);
  const bool is_split =
      context().saved_tensor_hooks && with_backend(y.device(), [&](auto dev) { return kernels::is_gelu_of_written(dev, y.dtype()); });
  const auto product = [&]() -> Tensors {
    const Tensor before = linear_result(rows, weight);
    if (is_split) launch(y.device(), kernels::Linear{rows, weight, view_of(bias), before});
    else launch(y.device(), kernels::LinearGelu{rows, weight, view_of(bias), before, y});
    return is_split ? Tensors{before} : Tensors{before, y};
  };
  Tensors results = detail::costly(product);
  if (!is_split) return results;
  launch(y.device(), kernels::Unary{functors::GeluTanh{}, results[0], y});
  return {results[0], y};
}

struct LinearGelu {
  static constexpr Op op = linear_op("linear_gelu");

  struct Kept {
    Tensor rows, weight, bias, before;
  };
  Tensor plain(const Tensor& rows, const Tensor& weight, const Tensor& bias) const { return gelu_tanh(linear(rows, weight, bias)); }
  Result<Tensor, Kept> forward(const Tensor& rows, const Tensor& weight, const Tensor& bias) const {
    const Tensors results = product_and_gelu(rows, weight, bias);
    return {results[1], {rows, weight, bias, results[0]}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    if (context().grad)
      return vjp(call, {kept.rows, kept.weight, kept.bias}, [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1], in[2])}; });
    const Tensor g = contiguous(call.grad()), dx = empty_like(g);
    const GradientTarget to = call.sink(2, {g.size(1)}, g);
    launch(g.device(), kernels::GeluBiasGrad{g, kept.before, dx, to.view(), to.write, to.deferred});
    Tensors gradients = product_gradients(call, dx, kept.rows, kept.weight);
    gradients.push_back(to.result());
    return gradients;
  }
};

struct FeedForwardGelu {
  static constexpr Op op = linear_op("feed_forward_gelu");

  struct Kept {
    Tensor rows, weight, bias, next, before, hidden;
  };
  Tensor plain(const Tensor& rows, const Tensor& weight, const Tensor& bias, const Tensor& proj_weight, const Tensor& proj_bias) const {
    const Tensor hidden = gelu_tanh(linear(rows, weight, bias));
    const LinearOperands proj(op.name, hidden, proj_weight, proj_bias);
    return linear(proj.rows, proj.weight, proj_bias);
  }
  Result<Tensor, Kept> forward(const Tensor& rows, const Tensor& weight, const Tensor& bias, const Tensor& proj_weight,
                               const Tensor& proj_bias) const {
    const Tensors results = product_and_gelu(rows, weight, bias);
    const LinearOperands proj(op.name, results[1], proj_weight, proj_bias);
    return {linear_product(proj.rows, proj.weight, proj_bias), {rows, weight, bias, proj.weight, results[0], results[1]}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor g = contiguous(call.grad());
    if (context().grad)  // linear in the last bias, so zeros take its place
      return vjp(call, {kept.rows, kept.weight, kept.bias, kept.next, call.needs(4) ? zeros({g.size(1)}, g.dtype(), g.device()) : Tensor()},
                 [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1], in[2], in[3], in[4])}; });
    Tensors gradients(5);
    gradients[4] = bias_gradient(call, 4, g);
    gradients[3] = weight_gradient(call, 3, g, kept.hidden);
    if (!call.needs(0) && !call.needs(1) && !call.needs(2)) return gradients;
    const Tensor dx = empty_like(kept.before);
    const GradientTarget to = call.sink(2, {dx.size(1)}, dx);
    launch(g.device(), kernels::Matmul{g, kept.next, dx, 1, Write::overwrite});
    launch(g.device(), kernels::GeluBiasGrad{dx, kept.before, dx, to.view(), to.write, to.deferred});
    gradients[2] = to.result();
    gradients[1] = weight_gradient(call, 1, dx, kept.rows);
    if (call.needs(0)) gradients[0] = matmul(dx, kept.weight);
    return gradients;
  }
};

/// The op of rows for x (..., in), of operands that autocast has cast. `more` are operands after the bias.
template <class OfRows>
struct OfAnyRows {
  static constexpr Op op = OfRows::op;

  template <class... More>
  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const More&... more) const {
    const LinearOperands a(op.name, x, weight, bias);
    const Tensor y = call(OfRows{}, a.rows, a.weight, bias, more...);
    Shape shape = a.shape;
    shape.back() = y.size(1);
    return reshape(y, shape);
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) { return call(OfAnyRows<LinearRows>{}, x, weight, bias); }
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) { return call(OfAnyRows<LinearGelu>{}, x, weight, bias); }
Tensor feed_forward_gelu(const Tensor& x, const Tensor& fc_weight, const Tensor& fc_bias, const Tensor& proj_weight,
                         const Tensor& proj_bias) {
  return call(OfAnyRows<FeedForwardGelu>{}, x, fc_weight, fc_bias, proj_weight, proj_bias);
}

}  // namespace tern
