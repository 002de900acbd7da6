#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

/// DLPack 1.1, the form in which libraries hand tensors to each other without a copy: https://dmlc.github.io/dlpack. The structs are an
/// ABI, and are those of its dlpack.h under names of our own, so that both headers can be included; a pointer to one is cast to the other
/// by reinterpret_cast.
namespace tern::dlpack {

inline constexpr std::int32_t cpu_device = 1, cuda_device = 2, cuda_host_device = 3;                        // kDLCPU, kDLCUDA, kDLCUDAHost
inline constexpr std::uint8_t int_code = 0, uint_code = 1, float_code = 2, bfloat_code = 4, bool_code = 6;  // kDLInt ...
inline constexpr std::uint32_t major_version = 1, minor_version = 1;
inline constexpr std::uint64_t read_only_flag = 1;  // DLPACK_FLAG_BITMASK_READ_ONLY

struct DLDevice {
  std::int32_t device_type, device_id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null for row-major
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

static_assert(sizeof(void*) != 8 || (sizeof(DLTensor) == 48 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
                                     offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 &&
                                     offsetof(DLTensor, strides) == 32 && offsetof(DLTensor, byte_offset) == 40));
static_assert(sizeof(void*) != 8 || (sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, deleter) == 56));
static_assert(sizeof(void*) != 8 ||
              (sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
               offsetof(DLManagedTensorVersioned, flags) == 24 && offsetof(DLManagedTensorVersioned, dl_tensor) == 32));

/// The tensor's memory for another library, on the CPU or a CUDA device, of any dtype and strides. It lives until the receiver calls the
/// deleter, and both see what the other writes. On a CUDA device the receiver's stream has to wait for ours.
/// Throws Error for a tensor that requires a gradient (export detach() of it).
DLManagedTensorVersioned* to_dlpack(const Tensor& x);
/// In the form before version 1.0, which cannot say that memory is read-only: Error for such a tensor.
DLManagedTensor* to_dlpack_unversioned(const Tensor& x);

/// A tensor of the memory that another library handed over, without a copy. Its deleter, if it has one, is called once, when the last
/// tensor of the memory is gone (as from_blob says). A tensor flagged read-only is refused by ops in place.
/// Throws Error for another major version, devices other than the CPU, CUDA's and its pinned host memory, a dtype that is none of ours,
/// lanes, more than 8 dimensions, and an address that is not a multiple of the element's size: `managed` then stays the
/// caller's, who calls its deleter.
Tensor from_dlpack(DLManagedTensorVersioned* managed);
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace tern::dlpack
