#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// Recurrent cells (ops/recurrent.h) over contiguous views of one dtype, f32 or f64. On a GPU they are composed of other ops, as they are
/// for 16 bits: there a step's time is that of its launches, which a captured step avoids (ops/captured_step.h).

/// The gates' sums are x_gates + h_gates, (B, 4 H) each; c, h_after and c_after are (B, H).
void lstm_cell(Cpu, const View& x_gates, const View& h_gates, const View& c, const View& h_after, const View& c_after);
/// d_gates (B, 4 H), the gradient of either operand, and d_c, from dh and dc, the gradients of h_after and c_after, one of which may have
/// no data.
void lstm_cell_grad(Cpu, const View& x_gates, const View& h_gates, const View& c, const View& dh, const View& dc, const View& d_gates,
                    const View& d_c);

/// x_gates and h_gates are (B, 3 H), h and after (B, H).
void gru_cell(Cpu, const View& x_gates, const View& h_gates, const View& h, const View& after);
void gru_cell_grad(Cpu, const View& x_gates, const View& h_gates, const View& h, const View& d_after, const View& dx_gates,
                   const View& dh_gates, const View& dh);

}  // namespace tern::kernels
