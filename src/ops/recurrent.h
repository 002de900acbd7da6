#pragma once
#include "tensor/tensor.h"

namespace tern {

/// The pointwise parts of recurrent cells, after the products: compositions with a closed-form derivative, which keep their operands alone
/// and compute the gates again in backward. Arithmetic of 16-bit operands is in f32. Throw Error that names the shapes where they do not
/// fit.

struct LSTMState {
  Tensor h, c;  ///< hidden and cell
};
/// One step of an LSTM from gates (B, 4 H), the input's and the hidden state's products added, in PyTorch's order i, f, g, o, and the cell
/// c (B, H): c' = sigmoid(f) c + sigmoid(i) tanh(g), of c's dtype, and h' = sigmoid(o) tanh(c'), of the gates'. Hochreiter & Schmidhuber,
/// 1997; Gers et al., 2000.
LSTMState lstm_cell(const Tensor& gates, const Tensor& c);

/// One step of a GRU from the products of the input and of the hidden state, (B, 3 H) each in the order r, z, n, and h (B, H):
/// h' = (1 - z) n + z h with n = tanh(x_n + r h_n), r and z the sigmoids of sums. Cho et al., 2014, with the reset after the product, as in
/// cuDNN and PyTorch.
Tensor gru_cell(const Tensor& x_gates, const Tensor& h_gates, const Tensor& h);

}  // namespace tern
