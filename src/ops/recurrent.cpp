#include "ops/recurrent.h"

#include <fmt/format.h>

#include "ops/factory.h"
#include "ops/kernels/pointwise.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

namespace {

using detail::widened;

/// Columns first * H up to last * H - 1.
Tensor part(const Tensor& gates, std::int64_t first, std::int64_t last, std::int64_t width) {
  return slice(gates, 1, first * width, last * width);
}

void check_cell(const char* op, const Tensor& gates, const Tensor& state, std::int64_t parts) {
  if (gates.dims() != 2 || state.dims() != 2 || gates.size(0) != state.size(0) || gates.size(1) != parts * state.size(1))
    fail(op, fmt::format("expected gates (B, {} H) and a state (B, H) but got {} and {}", parts, to_string(gates.shape()),
                         to_string(state.shape())));
}

/// True if the CPU's kernels take the operands.
bool has_kernel(std::initializer_list<const Tensor*> operands) {
  const Tensor& first = **operands.begin();
  bool fits = detail::has_cpu_kernel(first);
  for (const Tensor* x : operands) fits = fits && x->dtype() == first.dtype();
  return fits;
}

/// Gates in ops; forward runs under NoGrad, backward records them if its pass is recorded.
struct LSTMGates {
  Tensor i, f, g, o, c, tanh_c;

  LSTMGates(const Tensor& sums, const Tensor& before, std::int64_t width) {
    const Tensor both = sigmoid(part(sums, 0, 2, width));
    i = part(both, 0, 1, width);
    f = part(both, 1, 2, width);
    g = tanh(part(sums, 2, 3, width));
    o = sigmoid(part(sums, 3, 4, width));
    c = f * before + i * g;
    tanh_c = tanh(c);
  }
};

struct GRUGates {
  Tensor r, z, n;

  GRUGates(const Tensor& x, const Tensor& h, std::int64_t width) {
    const Tensor both = sigmoid(part(x, 0, 2, width) + part(h, 0, 2, width));
    r = part(both, 0, 1, width);
    z = part(both, 1, 2, width);
    n = tanh(part(x, 2, 3, width) + r * part(h, 2, 3, width));
  }
};

/// Gradients of the gates' sums and of c, in ops.
std::pair<Tensor, Tensor> lstm_gradients(const Tensor& sums, const Tensor& before, const Tensor& dh, const Tensor& dc_after) {
  const std::int64_t width = before.size(1);
  const LSTMGates made(sums, before, width);
  Tensor dc = dh.defined() ? dh * made.o * (1 - square(made.tanh_c)) : dc_after;
  if (dh.defined() && dc_after.defined()) dc = dc + dc_after;
  const Tensor d_out = dh.defined() ? dh * made.tanh_c * (made.o * (1 - made.o)) : made.o * 0.0;
  const Tensor d_in = dc * made.g * (made.i * (1 - made.i)), d_forget = dc * before * (made.f * (1 - made.f));
  return {cat({d_in, d_forget, dc * made.i * (1 - square(made.g)), d_out}, 1), dc * made.f};
}

struct GRUGradients {
  Tensor x_gates, h_gates, h;
};
GRUGradients gru_gradients(const Tensor& x, const Tensor& products, const Tensor& before, const Tensor& g) {
  const std::int64_t width = before.size(1);
  const GRUGates made(x, products, width);
  const Tensor dn = g * (1 - made.z) * (1 - square(made.n)), dz = g * (before - made.n) * (made.z * (1 - made.z));
  const Tensor dr = dn * part(products, 2, 3, width) * (made.r * (1 - made.r));
  return {cat({dr, dz, dn}, 1), cat({dr, dz, dn * made.r}, 1), g * made.z};
}

struct LSTMCell {
  static constexpr Op op{.name = "lstm_cell", .takes = Takes::floating};

  struct Kept {
    Tensor x, h, c;
  };
  Result<Tensors, Kept> forward(const Tensor& x, const Tensor& h, const Tensor& c) const {
    check_cell(op.name, x, c, 4);
    check_cell(op.name, h, c, 4);
    if (!has_kernel({&x, &h, &c})) {
      const NoGrad unrecorded;
      const LSTMGates made(widened(x) + widened(h), widened(c), c.size(1));
      return {{cast(made.o * made.tanh_c, h.dtype()), cast(made.c, c.dtype())}, {x, h, c}};
    }
    const Tensor xs = contiguous(x), hs = contiguous(h), before = contiguous(c);
    const Tensor h_after = empty_like(before), c_after = empty_like(before);
    launch(Cpu{}, kernels::LstmCell{xs, hs, before, h_after, c_after});
    return {{h_after, c_after}, {x, h, c}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, h, before] = kept;
    const Tensor &dh = call.grad(0), &dc = call.grad(1);
    if (!context().grad && has_kernel({&x, &h, &before})) {
      const Tensor xs = contiguous(x), hs = contiguous(h), cs = contiguous(before), gh = detail::contiguous_or_none(dh),
                   gc = detail::contiguous_or_none(dc);
      const Tensor d = empty_like(xs), d_before = empty_like(cs);
      launch(Cpu{}, kernels::LstmCellGrad{xs, hs, cs, view_of(gh), view_of(gc), d, d_before});
      return {d, d, d_before};
    }
    const auto [d, d_before] = lstm_gradients(widened(x) + widened(h), widened(before), widened(dh), widened(dc));
    return {cast(d, x.dtype()), cast(d, h.dtype()), cast(d_before, before.dtype())};
  }
};

struct GRUCell {
  static constexpr Op op{.name = "gru_cell", .takes = Takes::floating};

  struct Kept {
    Tensor x, products, h;
  };
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& products, const Tensor& h) const {
    check_cell(op.name, x, h, 3);
    check_cell(op.name, products, h, 3);
    if (!has_kernel({&x, &products, &h})) {
      const NoGrad unrecorded;
      const Tensor before = widened(h);
      const GRUGates made(widened(x), widened(products), h.size(1));
      return {cast(made.n + made.z * (before - made.n), h.dtype()), {x, products, h}};
    }
    const Tensor xs = contiguous(x), ps = contiguous(products), before = contiguous(h), after = empty_like(before);
    launch(Cpu{}, kernels::GruCell{xs, ps, before, after});
    return {after, {x, products, h}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, products, before] = kept;
    const Tensor& g = call.grad();
    if (!context().grad && has_kernel({&x, &products, &before})) {
      const Tensor xs = contiguous(x), ps = contiguous(products), hs = contiguous(before), gs = contiguous(g);
      const Tensor dx = empty_like(xs), dp = empty_like(ps), dh = empty_like(hs);
      launch(Cpu{}, kernels::GruCellGrad{xs, ps, hs, gs, dx, dp, dh});
      return {dx, dp, dh};
    }
    const GRUGradients d = gru_gradients(widened(x), widened(products), widened(before), widened(g));
    return {cast(d.x_gates, x.dtype()), cast(d.h_gates, products.dtype()), cast(d.h, before.dtype())};
  }
};

}  // namespace

LSTMState lstm_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& c) {
  const Tensors after = call(LSTMCell{}, x_gates, h_gates, c);
  return {after[0], after[1]};
}

Tensor gru_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& h) { return call(GRUCell{}, x_gates, h_gates, h); }

}  // namespace tern
