#pragma once
#include "ops/kernels/conv.h"

namespace tern::kernels {

// Convolutions and pooling (ops/conv.h) on the CPU, over contiguous views of one dtype, f32 or f64. Elsewhere they are composed of
// unfold and other ops, or use the CUDA kernels below.

/// Convolution whose channels are divided into `groups` groups, each convolved by itself.
struct Convolution {
  SlidingWindow window;
  std::int64_t groups;
};
/// y (B, O, oh, ow) = x (B, C, H, W), cross-correlated with weight (O, C / groups, kh, kw), plus bias (O), which may have no data. Each
/// element is summed in an order that depends on the shapes alone.
void convolution(Cpu, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// Gradients of x, weight and bias from g, that of y: dx is written, dw and db are written or added to; each may have no data.
void convolution_grad(Cpu, const View& x, const View& weight, const View& g, const Convolution& of, const View& dx, const View& dw,
                      Write write_dw, const View& db, Write write_db);

// Kernels that only CUDA has: called through on_cuda, queried through cuda_has.

/// True if a GPU computes the convolution as an implicit GEMM, whose windows are never written to memory: on Hopper, 16-bit floats, or
/// float32 with matmul precision tf32; more than one tap, one group, at least 16 channels. x and weight with any strides.
bool has_implicit_convolution(Cuda, const View& x, const View& weight, const Convolution& of);
/// As convolution; y is contiguous. Sums are in float32 and rounded once, with the bias.
void implicit_convolution(Cuda, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// The same for dx from g: g's channels take the place of x's, and strides are 1.
bool has_implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);
void implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);

/// y[b, c, oh, ow] = the largest element of x[b, c] in the window at (oh, ow), whose dilation is 1; NaN if one is NaN.
void max_pool(Cpu, const View& x, const SlidingWindow& window, const View& y);
/// dx from g, the gradient of y: the gradient of a window goes to its elements that equal y, which share it.
void max_pool_grad(Cpu, const View& x, const View& y, const View& g, const SlidingWindow& window, const View& dx);

}  // namespace tern::kernels
