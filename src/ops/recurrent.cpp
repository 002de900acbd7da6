#include "ops/recurrent.h"

#include <fmt/format.h>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/detail/check_floating.h"
#include "ops/detail/widened.h"
#include "ops/join.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

namespace {

using detail::widened;

/// Columns first H .. last H.
Tensor part(const Tensor& gates, std::int64_t first, std::int64_t last, std::int64_t width) {
  return slice(gates, 1, first * width, last * width);
}

void check_cell(const char* op, const Tensor& gates, const Tensor& state, std::int64_t parts) {
  detail::check_floating(op, gates);
  detail::check_floating(op, state);
  if (gates.dims() != 2 || state.dims() != 2 || gates.size(0) != state.size(0) || gates.size(1) != parts * state.size(1))
    fail(op, fmt::format("expected gates (B, {} H) and a state (B, H) but got {} and {}", parts, to_string(gates.shape()),
                         to_string(state.shape())));
}

/// From the gates' sums; under NoGrad forward, in backward recorded as the pass is.
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

}  // namespace

LSTMState lstm_cell(const Tensor& gates, const Tensor& c) {
  check_one_device("lstm_cell", {&gates, &c});
  check_cell("lstm_cell", gates, c, 4);
  const std::int64_t width = c.size(1);
  Tensor h_after, c_after;
  {
    const NoGrad unrecorded;
    const LSTMGates made(widened(gates), widened(c), width);
    h_after = cast(made.o * made.tanh_c, gates.dtype());
    c_after = cast(made.c, c.dtype());
  }
  const Tensors after = record_all("lstm_cell", {h_after, c_after}, {gates, c}, {gates, c}, [width](const Backward& call) -> Tensors {
    const Tensor sums = call.saved(0), before = widened(call.saved(1));
    const LSTMGates made(widened(sums), before, width);
    const Tensor dh = widened(call.grad(0)), dc_after = widened(call.grad(1));
    Tensor dc = dh.defined() ? dh * made.o * (1 - square(made.tanh_c)) : dc_after;
    if (dh.defined() && dc_after.defined()) dc = dc + dc_after;
    const Tensor dout = dh.defined() ? dh * made.tanh_c * (made.o * (1 - made.o)) : made.o * 0.0;
    const Tensor d =
        cat({dc * made.g * (made.i * (1 - made.i)), dc * before * (made.f * (1 - made.f)), dc * made.i * (1 - square(made.g)), dout}, 1);
    return {cast(d, sums.dtype()), cast(dc * made.f, call.saved(1).dtype())};
  });
  return {after[0], after[1]};
}

Tensor gru_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& h) {
  check_one_device("gru_cell", {&x_gates, &h_gates, &h});
  check_cell("gru_cell", x_gates, h, 3);
  check_cell("gru_cell", h_gates, h, 3);
  const std::int64_t width = h.size(1);
  Tensor after;
  {
    const NoGrad unrecorded;
    const Tensor before = widened(h);
    const GRUGates made(widened(x_gates), widened(h_gates), width);
    after = cast(made.n + made.z * (before - made.n), h.dtype());
  }
  return record("gru_cell", after, {x_gates, h_gates, h}, {x_gates, h_gates, h}, [width](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), hidden = call.saved(1), before = call.saved(2), wide = widened(before), products = widened(hidden);
    const GRUGates made(widened(x), products, width);
    const Tensor dh = widened(call.grad());
    const Tensor dn = dh * (1 - made.z) * (1 - square(made.n)), dz = dh * (wide - made.n) * (made.z * (1 - made.z));
    const Tensor dr = dn * part(products, 2, 3, width) * (made.r * (1 - made.r));
    return {cast(cat({dr, dz, dn}, 1), x.dtype()), cast(cat({dr, dz, dn * made.r}, 1), hidden.dtype()), cast(dh * made.z, before.dtype())};
  });
}

}  // namespace tern
