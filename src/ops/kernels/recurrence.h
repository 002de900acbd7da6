#pragma once
#include "tensor/kernel.h"

namespace tern::kernels {

// Linear recurrence (ops/recurrent.h) token by token, over views of one dtype, f32 or f64. q, k, read, write (B, T, H, Dk), v, dy (B, T, H,
// Dv): unit stride along the last dimension, any other strides. All others are contiguous: decay (B, T, H, 1 or Dk), exp(log_decay), beta
// (B, T, H), states (B, H, Dk, Dv). A view without data is absent.

/// True if the kernels take a call: on a GPU heads of up to 512 channels, and elements at all.
inline bool has_linear_recurrence(Cpu, const View&, const View&) { return true; }
bool has_linear_recurrence(Cuda, const View& q, const View& v);

/// Keys of additions to a state of what was read from it; absent both, or none.
template <class Argument>
struct RecurrenceReads {
  Argument read{}, write{};
};
/// S' = decay S, S = S' + k^T u + write^T (read S'), y = q S, with u = v, or beta (v - k S') where there is a beta.
struct LinearRecurrence {
  In q, k, v, decay, beta, initial;
  RecurrenceReads<In> keys;
  Out y, state;
  void run(Cpu) const;
  void run(Cuda) const;
};
/// Gradients from dy and dstate, those of the results. dq, dk and dv are there; dbeta, dread and dwrite are there if their operands are,
/// and dlog_decay (B, T, H, Dk) on a GPU, of the decay's shape on the CPU.
struct LinearRecurrenceGrad {
  In q, k, v, decay, beta, initial;
  RecurrenceReads<In> keys;
  In dy, dstate;
  Out dq, dk, dv, dlog_decay, dbeta, dinitial;
  RecurrenceReads<Out> dkeys;
  void run(Cpu) const;
  void run(Cuda) const;
};

// Linear recurrence in chunks on a GPU (cuda/recurrence). q, k (B, T, H, Dk), v, y, dy (B, T, H, Dv) and a channel's log_decay have unit
// stride along the last dimension and rows at multiples of 16 bytes. log_decay (B, T, H), f32, or (B, T, H, Dk), f32 or of q's dtype; beta
// (B, T, H), f32; any other strides. Contiguous: states (B, H, Dk, Dv), f32, and gradients. A view without data is absent.

/// True if the GPU has the kernels: compute capability 8.0. They take q, k and v of one dtype, f16 or bf16, heads of up to `widest`
/// channels in multiples of 8, tokens, and no beta with a channel's decay.
bool has_chunked_recurrence(Cuda, Device device);

/// As LinearRecurrence.
struct ChunkedRecurrence {
  static constexpr std::int64_t widest = 64;
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

// Selective scan (ops/recurrent.h) over contiguous views of one dtype, f32 or f64: x, dt, y (B, T, D), a (D, N), b, c (B, T, N), states
// (B, D, N).

/// True if the kernels take a call: on a GPU elements at all, of up to 65,535 rows.
inline bool has_selective_scan(Cpu, const View&, const View&) { return true; }
bool has_selective_scan(Cuda, const View& x, const View& a);

/// h_t = exp(dt_t a) h_(t-1) + dt_t x_t b_t, y_t = c_t h_t.
struct SelectiveScan {
  In x, dt, a, b, c, initial;
  Out y, state;
  void run(Cpu) const;
  void run(Cuda) const;
};
/// Gradients from dy and dstate, those of the results. Sums over rows and channels are left to add up: da (B, D, N) has a part for each
/// row, db and dc (G, B, T, N) for each of the G groups of `group` channels.
struct SelectiveScanGrad {
  static constexpr std::int64_t group = 16;
  In x, dt, a, b, c, initial, dy, dstate;
  Out dx, ddt, da, db, dc, dinitial;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
