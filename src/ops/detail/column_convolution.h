#pragma once
#include "autodiff/gradient_sink.h"
#include "ops/conv.h"
#include "ops/kernels/convolution.h"
#include "tensor/tensor.h"

// Convolutions by im2col: matrix products with the windows, written as columns. Operands have been checked by conv2d.
namespace tern::detail {

/// The window as the options of unfold and fold.
UnfoldOptions unfold_options(const kernels::SlidingWindow& window);

/// y = x cross-correlated with the weights, plus the bias, in the ops unfold and matmul: for gradients that are to be differentiated again.
Tensor unfolded_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of);

/// Note [Column bytes]
/// Bytes of columns at a time. About the L2 cache of a large GPU (H100: 50 MB), so that a product finds most of its columns in the cache,
/// and enough that the product has more tiles than the GPU has multiprocessors: for ResNet-18's 3 x 3 convolutions of 64 channels at 56 x
/// 56 in float32 these are 9 images, or 28224 positions. At least one image.
inline constexpr std::int64_t column_bytes = std::int64_t{64} << 20;

/// Gradients of contiguous weights, if dw is a target, and of x, if wants_x, from g, the contiguous gradient of y.
Tensor column_gradients(const Tensor& x, const Tensor& weight, const Tensor& g, const kernels::Convolution& of, bool wants_x,
                        const GradientTarget& dw, std::int64_t bytes = column_bytes);

/// Convolution on any device, with at most `bytes` of columns in memory at a time, or those of one image. Backward writes the columns again
/// and keeps only x and the weights. A 1 x 1 kernel with steps of one is a product with the images as they are. Gradients are summed in an
/// order that depends on the shapes alone; in 16 bits, the weights' gradient is rounded once for each chunk of images.
Tensor column_convolution(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of,
                          std::int64_t bytes = column_bytes);

}  // namespace tern::detail
