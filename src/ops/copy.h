#pragma once
#include "tensor/tensor.h"

namespace tern {

/// A contiguous copy in new memory.
Tensor clone(const Tensor& x);
/// x itself where it is contiguous, else a copy.
Tensor contiguous(const Tensor& x);
/// x with another dtype; x itself where it has it. Floats to integers truncate; to bool means != 0. Gradients flow between floating
/// dtypes.
Tensor cast(const Tensor& x, DType dtype);
/// x on another device; x itself where it is there. Copies to a device, from the CPU or another device, are asynchronous; copies to the
/// CPU wait.
Tensor to(const Tensor& x, Device device);
/// Writes source, broadcast to target's shape and converted to its dtype, into target in place, on any device. Returns target.
Tensor copy_(const Tensor& target, const Tensor& source);

}  // namespace tern
