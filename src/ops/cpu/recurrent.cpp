#include "ops/cpu/loops.h"
#include "ops/kernels/math.h"
#include "ops/kernels/pointwise.h"
#include "tensor/dispatch.h"

namespace tern::kernels {

// Recurrent cells on the CPU: all pointwise arithmetic of a step in one pass; backward recomputes the gates. A composition needs a dozen
// ops per step forward and two dozen backward, each of some thousand elements, so calls would cost more than arithmetic.

namespace {

/// Calls f.operator()<C>(row) for each row; C is float or double.
template <class F>
void each_row(const char* op, const View& state, F f) {
  dispatch_f32_f64(state.dtype, op, [&]<class C>() {
    loops::parallel_units(state.shape[0], 4 * state.shape[1], loops::function_grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) f.template operator()<C>(row);
    });
  });
}

/// Row of a contiguous matrix.
template <class C>
C* row_of(const View& x, std::int64_t row) {
  return x.as<C>() + row * x.shape[1];
}
template <class C>
const C* read(const View& x, std::int64_t row) {
  return x.data ? x.as<const C>() + row * x.shape[1] : nullptr;
}

template <class C>
C unit_slope(C y) {  // derivative of the sigmoid, from its value
  return y * (C(1) - y);
}

/// One row. The loops are separate functions, so that the compiler sees that the pointers do not change.
template <class C>
[[gnu::flatten]] void lstm_row(const C* x, const C* h, const C* c, C* h_after, C* c_after, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C in = math::sigmoid(x[i] + h[i]), forget = math::sigmoid(x[n + i] + h[n + i]);
    const C next = math::tanh(x[2 * n + i] + h[2 * n + i]), out = math::sigmoid(x[3 * n + i] + h[3 * n + i]);
    const C cell = forget * c[i] + in * next;
    c_after[i] = cell;
    h_after[i] = out * math::tanh(cell);
  }
}

/// dh and dc are null if there is no gradient; has_dh and has_dc tell the compiler.
template <class C, bool has_dh, bool has_dc>
[[gnu::flatten]] void lstm_row_grad(const C* x, const C* h, const C* c, const C* dh, const C* dc, C* d, C* d_c, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C in = math::sigmoid(x[i] + h[i]), forget = math::sigmoid(x[n + i] + h[n + i]);
    const C next = math::tanh(x[2 * n + i] + h[2 * n + i]), out = math::sigmoid(x[3 * n + i] + h[3 * n + i]);
    const C before = c[i], end = math::tanh(forget * before + in * next);
    C cell = has_dc ? dc[i] : C(0), d_out = C(0);
    if constexpr (has_dh) {
      cell += dh[i] * out * (C(1) - end * end);
      d_out = dh[i] * end * unit_slope(out);
    }
    d[i] = cell * next * unit_slope(in);
    d[n + i] = cell * before * unit_slope(forget);
    d[2 * n + i] = cell * in * (C(1) - next * next);
    d[3 * n + i] = d_out;
    d_c[i] = cell * forget;
  }
}

template <class C>
[[gnu::flatten]] void gru_row(const C* x, const C* p, const C* h, C* after, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C reset = math::sigmoid(x[i] + p[i]), keep = math::sigmoid(x[n + i] + p[n + i]);
    const C next = math::tanh(x[2 * n + i] + reset * p[2 * n + i]);
    after[i] = next + keep * (h[i] - next);
  }
}

template <class C>
[[gnu::flatten]] void gru_row_grad(const C* x, const C* p, const C* h, const C* g, C* dx, C* dp, C* dh, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C product = p[2 * n + i], reset = math::sigmoid(x[i] + p[i]), keep = math::sigmoid(x[n + i] + p[n + i]);
    const C next = math::tanh(x[2 * n + i] + reset * product);
    const C d_next = g[i] * (C(1) - keep) * (C(1) - next * next), d_reset = d_next * product * unit_slope(reset);
    const C d_keep = g[i] * (h[i] - next) * unit_slope(keep);
    dx[i] = dp[i] = d_reset;
    dx[n + i] = dp[n + i] = d_keep;
    dx[2 * n + i] = d_next;
    dp[2 * n + i] = d_next * reset;
    dh[i] = g[i] * keep;
  }
}

}  // namespace

void LstmCell::run(Cpu) const {
  each_row("lstm_cell", c, [&]<class C>(std::int64_t row) {
    lstm_row<C>(read<C>(x_gates, row), read<C>(h_gates, row), read<C>(c, row), row_of<C>(h_after, row), row_of<C>(c_after, row),
                c.shape[1]);
  });
}

void LstmCellGrad::run(Cpu) const {
  each_row("lstm_cell", c, [&]<class C>(std::int64_t row) {
    const auto run = dh.data ? (dc.data ? lstm_row_grad<C, true, true> : lstm_row_grad<C, true, false>) : lstm_row_grad<C, false, true>;
    run(read<C>(x_gates, row), read<C>(h_gates, row), read<C>(c, row), read<C>(dh, row), read<C>(dc, row), row_of<C>(d_gates, row),
        row_of<C>(d_c, row), c.shape[1]);
  });
}

void GruCell::run(Cpu) const {
  each_row("gru_cell", h, [&]<class C>(std::int64_t row) {
    gru_row<C>(read<C>(x_gates, row), read<C>(h_gates, row), read<C>(h, row), row_of<C>(after, row), h.shape[1]);
  });
}

void GruCellGrad::run(Cpu) const {
  each_row("gru_cell", h, [&]<class C>(std::int64_t row) {
    gru_row_grad<C>(read<C>(x_gates, row), read<C>(h_gates, row), read<C>(h, row), read<C>(d_after, row), row_of<C>(dx_gates, row),
                    row_of<C>(dh_gates, row), row_of<C>(dh, row), h.shape[1]);
  });
}

}  // namespace tern::kernels
