#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// The pointwise parts of recurrent cells, after the products. On the CPU each is one pass over f32 and f64 each way; for 16 bits, whose
/// arithmetic is in f32, and on a GPU it is composed of other ops. Backward computes the gates again, and nothing but the operands is kept.
/// Throw Error that names the shapes where they do not fit.

/// The state of an LSTM between two steps, (B, H) each for a cell.
struct LSTMState {
  Tensor h;  ///< hidden state, which is the output of a step as well
  Tensor c;  ///< cell state
};
/// One step of an LSTM from the products of the input and of the hidden state, (B, 4 H) each in PyTorch's order i, f, g, o, and the cell
/// c (B, H): with the gates' sums c' = sigmoid(f) c + sigmoid(i) tanh(g), of c's dtype, and h' = sigmoid(o) tanh(c'), of the products'.
/// Hochreiter & Schmidhuber, 1997; Gers et al., 2000.
LSTMState lstm_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& c);

/// One step of a GRU from the products of the input and of the hidden state, (B, 3 H) each in the order r, z, n, and h (B, H):
/// h' = (1 - z) n + z h with n = tanh(x_n + r h_n), r and z the sigmoids of sums. Cho et al., 2014, with the reset after the product, as in
/// cuDNN and PyTorch.
Tensor gru_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& h);

}  // namespace tern
