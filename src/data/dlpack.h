#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

/// DLPack 1.1, by which libraries exchange tensors without a copy: https://dmlc.github.io/dlpack. The structs have the ABI of those in
/// dlpack.h, but are in this namespace, so that both headers can be included; pointers are converted by reinterpret_cast.
namespace tern::dlpack {

inline constexpr std::int32_t cpu_device = 1;        ///< kDLCPU
inline constexpr std::int32_t cuda_device = 2;       ///< kDLCUDA
inline constexpr std::int32_t cuda_host_device = 3;  ///< kDLCUDAHost: pinned host memory
inline constexpr std::uint8_t int_code = 0;          ///< kDLInt
inline constexpr std::uint8_t uint_code = 1;         ///< kDLUInt
inline constexpr std::uint8_t float_code = 2;        ///< kDLFloat
inline constexpr std::uint8_t bfloat_code = 4;       ///< kDLBfloat
inline constexpr std::uint8_t bool_code = 6;         ///< kDLBool, a byte each
inline constexpr std::uint32_t major_version = 1;    ///< DLPACK_MAJOR_VERSION: the structs of other versions differ
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
  std::uint8_t bits;    ///< bits of a lane: 32 for f32
  std::uint16_t lanes;  ///< lanes of a vector; 1 for all dtypes of tern
};
/// A tensor in memory of another owner.
struct DLTensor {
  void* data;                 ///< address of the block
  DLDevice device;            ///< device of the block
  std::int32_t ndim;          ///< number of dimensions
  DLDataType dtype;           ///< type of the elements
  std::int64_t* shape;        ///< (ndim)
  std::int64_t* strides;      ///< (ndim), in elements; null for row-major
  std::uint64_t byte_offset;  ///< offset of the first element in the block
};
/// An exported tensor in the format before version 1.0.
struct DLManagedTensor {
  DLTensor dl_tensor;                      ///< lives until the deleter is called
  void* manager_ctx;                       ///< for the exporter
  void (*deleter)(DLManagedTensor* self);  ///< to be called once by the receiver; may be null
};
/// The version of the structs of an exported tensor.
struct DLPackVersion {
  std::uint32_t major;  ///< changes with the structs
  std::uint32_t minor;  ///< changes with the flags and codes
};
/// An exported tensor.
struct DLManagedTensorVersioned {
  DLPackVersion version;                            ///< to be checked before other members
  void* manager_ctx;                                ///< for the exporter
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

/// Exports a tensor on the CPU or a CUDA device, of any dtype and strides. Its memory is shared, and lives until the receiver calls the
/// deleter. On a CUDA device the receiver's stream has to wait for the current stream.
/// Throws Error for a tensor that requires a gradient (export detach() of it).
DLManagedTensorVersioned* to_dlpack(const Tensor& x);
/// Exports a tensor in the format before version 1.0. Throws Error also for a read-only tensor, which that format cannot mark.
DLManagedTensor* to_dlpack_unversioned(const Tensor& x);

/// Imports a tensor of another library without a copy. Its deleter, if it has one, is called once, when the last tensor of the memory is
/// destroyed (as for from_blob). In-place ops refuse a tensor that is flagged read-only.
/// Throws Error for another major version, a device other than CPU, CUDA and CUDA's pinned host memory, a dtype that tern lacks, lanes,
/// more than 8 dimensions, and an address that is not a multiple of the element size. The caller then still owns `managed`.
Tensor from_dlpack(DLManagedTensorVersioned* managed);
/// Imports a tensor in the format before version 1.0, which has no read-only flag.
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace tern::dlpack
