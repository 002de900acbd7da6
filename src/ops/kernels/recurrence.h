#pragma once
#include "tensor/kernel.h"

namespace tern::kernels {

// Linear recurrence (ops/recurrent.h) on the CPU, token by token, over views of one dtype, f32 or f64. q and k (B, T, H, Dk), v, dy (B, T,
// H, Dv): unit stride along the last dimension, any other strides. All others are contiguous: decay (B, T, H, 1 or Dk), exp(log_decay),
// beta (B, T, H), states (B, H, Dk, Dv). On a GPU it is composed of other ops. A view without data is absent.

/// S' = decay S, S = S' + k^T u, y = q S, with u = v, or beta (v - k S') where there is a beta.
struct LinearRecurrence {
  In q, k, v, decay, beta, initial;
  Out y, state;
  void run(Cpu) const;
};
/// Gradients from dy and dstate, those of the results. dq, dk and dv are there; dlog_decay and dbeta are there if decay and beta are.
struct LinearRecurrenceGrad {
  In q, k, v, decay, beta, initial, dy, dstate;
  Out dq, dk, dv, dlog_decay, dbeta, dinitial;
  void run(Cpu) const;
};

// Selective scan (ops/recurrent.h) on the CPU, over contiguous views of one dtype, f32 or f64: x, dt, y (B, T, D), a (D, N), b, c (B, T,
// N), states (B, D, N). Elsewhere it is composed of other ops.

/// h_t = exp(dt_t a) h_(t-1) + dt_t x_t b_t, y_t = c_t h_t.
struct SelectiveScan {
  In x, dt, a, b, c, initial;
  Out y, state;
  void run(Cpu) const;
};
/// Gradients from dy and dstate, those of the results. Sums over rows and channels are left to add up: da (B, D, N) has a part for each
/// row, db and dc (G, B, T, N) for each of the G groups of `group` channels.
struct SelectiveScanGrad {
  static constexpr std::int64_t group = 16;
  In x, dt, a, b, c, initial, dy, dstate;
  Out dx, ddt, da, db, dc, dinitial;
  void run(Cpu) const;
};

}  // namespace tern::kernels
