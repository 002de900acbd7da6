#pragma once
#include <functional>
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// Options of from_blob.
struct BlobOptions {
  std::optional<Strides> strides = {};  ///< in elements, of any sign; row-major if not given
  Device device = cpu;                  ///< device of `data`
  bool is_read_only = false;            ///< in-place ops refuse the tensor
};

/// Tensor on the caller's memory, without a copy. `data` is the address of the first element. `deleter`, if given, is called once with
/// `data` after the last tensor on the memory is gone, in the thread that releases it, and must not throw; on a CUDA device the host first
/// waits for the current stream, because kernels may still read the memory. Without a deleter the caller keeps the memory alive until then.
/// Throws Error for a shape and strides that do not match or exceed the address space, an address that is null or not a multiple of the
/// element's size, and a device that does not exist. The deleter is then not called: the memory stays the caller's.
Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void(void*)> deleter = {}, const BlobOptions& options = {});

}  // namespace tern
