#pragma once
#include "autodiff/gradient_sink.h"
#include "ops/conv.h"
#include "ops/kernels/convolution.h"
#include "tensor/tensor.h"

// Convolutions as matrix products with the windows, written as columns. Operands as conv2d has checked them.
namespace tern::detail {

/// The windows as unfold and fold take them.
UnfoldOptions unfold_options(const kernels::SlidingWindow& window);

/// y = x cross-correlated with the weights, plus the bias, by the ops unfold and matmul: for gradients that are to be differentiated again.
Tensor unfolded_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of);

/// Note [Column bytes]
/// Bytes of columns at a time. About the second-level cache of a large GPU (H100: 50 MB), so that a product finds most of its columns where
/// they were written a moment ago, and so many that a product of them has more tiles than the GPU has multiprocessors: of ResNet-18's
/// 3 x 3 convolutions from 64 channels at 56 x 56 in float32 9 images, which are 28224 positions. One image is the least.
inline constexpr std::int64_t column_bytes = std::int64_t{64} << 20;

/// The gradients of contiguous weights, where there is a target, and of x, where it is wanted, from that of y, g, which is contiguous.
Tensor column_gradients(const Tensor& x, const Tensor& weight, const Tensor& g, const kernels::Convolution& of, bool wants_x,
                        const GradientTarget& dw, std::int64_t bytes = column_bytes);

/// On any device, with at most that many bytes of columns in memory at a time, or those of one image. Backward writes them again, so that
/// none are kept: what it keeps is x and the weights. A kernel of one element in steps of one is a product with the images as they are.
/// Gradients are summed in an order that the shapes alone decide; in 16 bits that of the weights is rounded for each such run of images.
Tensor column_convolution(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of,
                          std::int64_t bytes = column_bytes);

}  // namespace tern::detail
