#pragma once
#include "ops/kernels/conv.h"

namespace tern::kernels {

// Convolutions and pooling (ops/convolution.h) on the CPU, over contiguous views of one dtype, f32 or f64. Elsewhere they are composed of
// unfold and other ops.

/// The channels of x and of y are `groups` runs that do not see each other.
struct Convolution {
  SlidingWindow window;
  std::int64_t groups;
};
/// y (B, O, oh, ow) = x (B, C, H, W), cross-correlated with weight (O, C / groups, kh, kw), plus bias (O), which may have no data. Each
/// element is summed in an order that the shapes alone decide.
void convolution(Cpu, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// The gradients of x, weight and bias from that of y: dx is written, dw and db are written or added to; each may have no data.
void convolution_grad(Cpu, const View& x, const View& weight, const View& g, const Convolution& of, const View& dx, const View& dw,
                      Write write_dw, const View& db, Write write_db);

/// y[b, c, oh, ow] = the largest element of x[b, c] under the window at (oh, ow), whose dilation is 1; NaN where one is NaN.
void max_pool(Cpu, const View& x, const SlidingWindow& window, const View& y);
/// dx from the gradient g of y: each window's goes to its elements that equal y, which share it.
void max_pool_grad(Cpu, const View& x, const View& y, const View& g, const SlidingWindow& window, const View& dx);

}  // namespace tern::kernels
