#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

/// DLPack 1.1, the form in which libraries hand tensors to each other without a copy: https://dmlc.github.io/dlpack. The structs are an
/// ABI, and are those of its dlpack.h under names of our own, so that both headers can be included; a pointer to one is cast to the other
/// by reinterpret_cast.
namespace tern::dlpack {

inline constexpr std::int32_t cpu_device = 1;        ///< kDLCPU
inline constexpr std::int32_t cuda_device = 2;       ///< kDLCUDA
inline constexpr std::int32_t cuda_host_device = 3;  ///< kDLCUDAHost: pinned host memory
inline constexpr std::uint8_t int_code = 0;          ///< kDLInt
inline constexpr std::uint8_t uint_code = 1;         ///< kDLUInt
inline constexpr std::uint8_t float_code = 2;        ///< kDLFloat
inline constexpr std::uint8_t bfloat_code = 4;       ///< kDLBfloat
inline constexpr std::uint8_t bool_code = 6;         ///< kDLBool, a byte each
inline constexpr std::uint32_t major_version = 1;    ///< DLPACK_MAJOR_VERSION: another one has other structs
inline constexpr std::uint32_t minor_version = 1;    ///< DLPACK_MINOR_VERSION
inline constexpr std::uint64_t read_only_flag = 1;   ///< DLPACK_FLAG_BITMASK_READ_ONLY

/// A device, by its kind and number.
struct DLDevice {
  std::int32_t device_type;  ///< cpu_device and so on
  std::int32_t device_id;    ///< 0 on the CPU
};
/// The type of an element.
struct DLDataType {
  std::uint8_t code;    ///< float_code and so on
  std::uint8_t bits;    ///< of a lane: 32 for f32
  std::uint16_t lanes;  ///< numbers of a vector; 1 for all that tern has
};
/// Memory of another owner, and its geometry.
struct DLTensor {
  void* data;                 ///< address of the block
  DLDevice device;            ///< that the block is on
  std::int32_t ndim;          ///< number of dimensions
  DLDataType dtype;           ///< of the elements
  std::int64_t* shape;        ///< (ndim)
  std::int64_t* strides;      ///< (ndim), in elements; null for row-major
  std::uint64_t byte_offset;  ///< of the first element in the block
};
/// A tensor handed over, in the form before version 1.0.
struct DLManagedTensor {
  DLTensor dl_tensor;                      ///< lives until the deleter is called
  void* manager_ctx;                       ///< the giver's own
  void (*deleter)(DLManagedTensor* self);  ///< to be called once by the receiver; may be null
};
/// The version of the structs that a tensor was handed over in.
struct DLPackVersion {
  std::uint32_t major;  ///< differs where the structs do
  std::uint32_t minor;  ///< differs where the flags and codes do
};
/// A tensor handed over.
struct DLManagedTensorVersioned {
  DLPackVersion version;                            ///< to be looked at first
  void* manager_ctx;                                ///< the giver's own
  void (*deleter)(DLManagedTensorVersioned* self);  ///< to be called once by the receiver; may be null
  std::uint64_t flags;                              ///< bits: read_only_flag
  DLTensor dl_tensor;                               ///< lives until the deleter is called
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
/// Of the form before version 1.0, which has no flags: ops in place take the tensor.
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace tern::dlpack
