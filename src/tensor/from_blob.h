#pragma once
#include <functional>
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// Options of from_blob.
struct BlobOptions {
  std::optional<Strides> strides = {};  ///< in elements, of any sign; without them row-major
  Device device = cpu;                  ///< where `data` lies
  bool is_read_only = false;            ///< ops in place refuse the tensor
};

/// A tensor of the caller's memory, without a copy. `data` is the address of the first element. `deleter`, if there is
/// one, is called with it once, when the last tensor of the memory is gone, in the thread that lets it go, and must not throw; on a CUDA
/// device the host waits for the current stream before, as kernels may read the memory still. Without a deleter the caller keeps the memory
/// alive until then.
/// Throws Error for a shape and strides that do not fit each other or no memory, an address that is null or not a multiple of the
/// element's size, and a device that is not there. The deleter is then not called: the memory stays the caller's.
Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void(void*)> deleter = {}, const BlobOptions& options = {});

}  // namespace tern
