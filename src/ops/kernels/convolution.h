#pragma once
#include "ops/kernels/conv.h"

namespace tern::kernels {

// Convolutions and pooling (ops/convolution.h) on the CPU, over contiguous views of one dtype, f32 or f64. Elsewhere they are composed of
// unfold and other ops, or are those below.

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

// CUDA alone has these: they are called through on_cuda, and asked for through cuda_has.

/// Whether a GPU convolves the images with windows that are never written down: on Hopper, 16-bit floats, or float32 where the product mode
/// is tf32; more than one tap, one group, at least 16 channels. x and weight with any strides.
bool has_implicit_convolution(Cuda, const View& x, const View& weight, const Convolution& of);
/// As convolution; y is contiguous. Sums are float32's, and rounded once, with the bias.
void implicit_convolution(Cuda, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// Likewise for dx from g, with the channels of g for those of x, and strides of 1.
bool has_implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);
void implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);

/// y[b, c, oh, ow] = the largest element of x[b, c] under the window at (oh, ow), whose dilation is 1; NaN where one is NaN.
void max_pool(Cpu, const View& x, const SlidingWindow& window, const View& y);
/// dx from the gradient g of y: each window's goes to its elements that equal y, which share it.
void max_pool_grad(Cpu, const View& x, const View& y, const View& g, const SlidingWindow& window, const View& dx);

}  // namespace tern::kernels
