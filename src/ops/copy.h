#pragma once
#include "tensor/tensor.h"

namespace tern {

/// A contiguous copy in new memory.
Tensor clone(const Tensor& x);
/// Returns x itself if it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& x);
/// Converts x to a dtype; returns x itself if it has it already. Floats to integers truncate; to bool means != 0. Gradients flow between
/// floating dtypes.
Tensor cast(const Tensor& x, DType dtype);
/// Moves x to a device; returns x itself if it is there already. Copies to a device, from the CPU or from another device, are asynchronous;
/// copies to the CPU wait.
Tensor to(const Tensor& x, Device device);
/// Writes source, broadcast to target's shape and converted to its dtype, into target in place, on any device. Returns target.
Tensor copy_(const Tensor& target, const Tensor& source);

}  // namespace tern
