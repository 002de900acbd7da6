#pragma once
#include "tensor/kernel.h"

namespace tern::kernels {

// Linear recurrence (ops/recurrent.h) on the CPU, token by token, over views of one dtype, f32 or f64. q and k (B, T, H, Dk), v, dy (B, T,
// H, Dv): unit stride along the last dimension, any other strides. All others are contiguous: decay (B, T, H, 1 or Dk), exp(log_decay),
// beta (B, T, H), states (B, H, Dk, Dv). A GPU has ChunkedRecurrence, or composes other ops. A view without data is absent.

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

// Linear recurrence in chunks on a GPU (cuda/recurrence). q, k (B, T, H, Dk), v, y, dy (B, T, H, Dv) and a channel's log_decay have unit
// stride along the last dimension and rows at multiples of 16 bytes. log_decay (B, T, H), f32, or (B, T, H, Dk), f32 or of q's dtype; beta
// (B, T, H), f32; any other strides. Contiguous: states (B, H, Dk, Dv), f32, and gradients. A view without data is absent.

/// True if the kernels take a call: q, k and v of one dtype, f16 or bf16, heads of up to 64 channels in multiples of 8, tokens, and no beta
/// with a channel's decay; compute capability 8.0.
bool has_chunked_recurrence(Cuda, const View& q, const View& k, const View& v, const View& log_decay, const View& beta);
inline bool has_chunked_recurrence(Cpu, const View&, const View&, const View&, const View&, const View&) { return false; }

/// As LinearRecurrence.
struct ChunkedRecurrence {
  In q, k, v, log_decay, beta, initial;
  Out y, state;
  void run(Cuda) const;
};
/// As LinearRecurrenceGrad; dlog_decay has the dtype of log_decay.
struct ChunkedRecurrenceGrad {
  In q, k, v, log_decay, beta, initial, dy, dstate;
  Out dq, dk, dv, dlog_decay, dbeta, dinitial;
  void run(Cuda) const;
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
