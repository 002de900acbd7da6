#pragma once
#include <functional>

#include "tensor/tensor.h"

namespace tern {

/// @file
/// Recurrences over tokens. Of the cells, here is the pointwise part, after the matrix products: on the CPU one pass each way for f32 and
/// f64; for 16 bits, which are computed in f32, and on a GPU, composed of other ops. Backward computes the gates again and keeps only the
/// operands. All throw Error that names the shapes where they do not fit.

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

/// Options of linear_recurrence.
struct LinearRecurrenceParams {
  /// Logarithm of the decay, at most 0: (H), a head's constant; (B, T, H), a token's; (B, T, H, Dk), of each key channel of a token.
  /// Undefined: no decay. -inf forgets the state: at the first token of each of several packed sequences it keeps them apart.
  Tensor log_decay = {};
  Tensor beta = {};           ///< (B, T, H): the delta rule with this rate, in [0, 2] if keys have length 1; undefined: v is added
  Tensor initial_state = {};  ///< (B, H, Dk, Dv), the state before the first token; undefined: zeros
  /// (B, T, H, Dk) both, without a beta: with v, a token adds what it has read from S' by another key, by one more:
  /// S_t = S' + write_t^T (read_t S') + k_t^T v_t. Undefined: nothing.
  Tensor read = {};
  Tensor write = {};  ///< see read
};
/// Result of linear_recurrence. Of selective_scan: y (B, T, D), state (B, D, N).
struct Recurrence {
  Tensor y;      ///< (B, T, H, Dv), of v's dtype
  Tensor state;  ///< (B, H, Dk, Dv), after the last token, in f32 (f64 for f64 values): the initial_state of the tokens that follow
};
/// Linear recurrence: each head has a state S (Dk, Dv), of which token t lets a part decay, adds to it, and reads it:
///     S' = diag(exp(log_decay_t)) S_(t-1),   S_t = S' + k_t^T u_t,   y_t = q_t S_t,   with u_t = v_t, or with a beta
///     u_t = beta_t (v_t - k_t S'), so that S_t = (I - beta_t k_t^T k_t) S' + beta_t k_t^T v_t (the delta rule).
/// q and k (B, T, H, Dk), v (B, T, H, Dv), any strides, floating; computed in f32, or in f64 if v is f64. On a GPU the products of q, k and
/// v in one dtype of 16 bits take operands of that dtype, also the state, which is carried in f32. Token mixers as options of it: linear
/// attention, none (Katharopoulos et al., 2020); RetNet, a head's decay (Sun et al., 2023); Mamba-2, a token's, with k = B, q = C and v =
/// dt x (Dao & Gu, 2024); GLA, a channel's (Yang et al., 2024); DeltaNet, beta (Yang et al., 2024); Gated DeltaNet, beta and a token's
/// decay (Yang et al., 2025); RWKV-7, read, write and a channel's decay (Peng et al., 2025). q is not scaled. Throws Error for shapes that
/// do not fit.
///
/// Memory grows with T, and backward keeps the operands alone. Kernels go from token to token, on a GPU with Dk and Dv up to 512. On one of
/// compute capability 8.0 kernels in chunks of 64 tokens take q, k and v in one dtype of 16 bits, with Dk and Dv multiples of 8 up to 64,
/// no read, and no beta with a channel's decay; more channels are calls of up to 64, but for keys of a beta. Other calls, and those in a
/// PlainKernels scope, are composed of a few ops a token, and second gradients keep a state for each.
Recurrence linear_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const LinearRecurrenceParams& params = {});

/// Selective scan, the state space model of Mamba (Gu & Dao, 2023, S6): each channel d has a state of N numbers,
///     h_t = exp(dt_t[d] a[d]) h_(t-1) + dt_t[d] x_t[d] b_t,   y_t[d] = c_t h_t.
/// x and dt (B, T, D), a (D, N), at most 0 as dt is at least 0, b and c (B, T, N), initial_state (B, D, N) or undefined, for zeros.
/// Floating; computed in f32, or in f64 if x is f64; y is of x's dtype. Throws Error for shapes that do not fit.
///
/// One kernel goes from token to token, and backward keeps the operands alone. In a PlainKernels scope it is an associative_scan, whose
/// memory grows with T D N.
Recurrence selective_scan(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c,
                          const Tensor& initial_state = {});

/// Combination of two neighbours of a scan, each as many tensors as the scan has, the earlier first. Associative; elementwise along the
/// scan's dimension, which has any length.
using ScanPair = std::function<Tensors(const Tensors& before, const Tensors& after)>;
/// Inclusive scan along a dimension: element i of the result is x_0 o x_1 o ... o x_i, with o = combine and x_i element i of each of the
/// tensors. About 2 combinations an element, in 2 log2(n) calls of combine, by which it is differentiated (Blelloch, 1990). With pairs
/// (a, b) o (a', b') = (a a', a' b + b') the second result is h_i = a_i h_(i-1) + b_i. Throws Error unless all have one length there, and
/// if combine returns another number of tensors.
Tensors associative_scan(const ScanPair& combine, const Tensors& elements, int dim);

}  // namespace tern
