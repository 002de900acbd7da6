#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Pointwise part of recurrent cells, after the matrix products. On the CPU, each is one pass each way for f32 and f64. For 16 bits, which
/// are computed in f32, and on a GPU, it is composed of other ops. Backward computes the gates again and keeps only the operands. All throw
/// Error that names the shapes where they do not fit.

/// The state of an LSTM between two steps, (B, H) each for a cell.
struct LSTMState {
  Tensor h;  ///< hidden state, also the output of the step
  Tensor c;  ///< cell state
};
/// LSTM step from the products of the input and of the hidden state, (B, 4 H) each in PyTorch's order i, f, g, o, and the cell state c (B,
/// H). With the gates as the sums of both: c' = sigmoid(f) c + sigmoid(i) tanh(g), of c's dtype, and h' = sigmoid(o) tanh(c'), of the
/// products' dtype. Hochreiter & Schmidhuber, 1997; Gers et al., 2000.
LSTMState lstm_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& c);

/// GRU step from the products of the input and of the hidden state, (B, 3 H) each in the order r, z, n, and h (B, H): h' = (1 - z) n + z h
/// with n = tanh(x_n + r h_n); r and z are the sigmoids of the sums. Cho et al., 2014, with the reset gate after the product, as in cuDNN
/// and PyTorch.
Tensor gru_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& h);

}  // namespace tern
