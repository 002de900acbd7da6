#include "data/dlpack.h"

#include <fmt/format.h>

#include <array>
#include <memory>

#include "tensor/from_blob.h"
#include "tensor/sizes.h"

namespace tern::dlpack {

namespace {

DLDataType dtype_of(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::bf16: return {bfloat_code, bits, 1};
    case DType::i32:
    case DType::i64: return {int_code, bits, 1};
    case DType::u8: return {uint_code, bits, 1};
    case DType::boolean: return {bool_code, bits, 1};
    default: return {float_code, bits, 1};
  }
}

DType dtype_of(DLDataType found) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    const DLDataType ours = dtype_of(dtype);
    if (ours.code == found.code && ours.bits == found.bits && found.lanes == 1) return dtype;
  }
  fail("from_dlpack", fmt::format("expected f32, f64, f16, bf16, i32, i64, u8 or bool but got type code {} of {} bits and {} lanes",
                                  found.code, found.bits, found.lanes));
}

Device device_of(DLDevice device) {
  if (device.device_type == cpu_device || device.device_type == cuda_host_device) return cpu;
  if (device.device_type != cuda_device)
    fail("from_dlpack", fmt::format("expected the CPU (1), CUDA (2) or CUDA's host memory (3) but got device type {}", device.device_type));
  if (device.device_id < 0 || device.device_id >= cuda_device_count())
    fail("from_dlpack", fmt::format("expected one of {} CUDA devices but got number {}", cuda_device_count(), device.device_id));
  return cuda(device.device_id);
}

/// An exported tensor with the arrays that its struct points to.
template <class Managed>
struct Exported {
  explicit Exported(const Tensor& x) : tensor(x.detach()) {
    for (int d = 0; d < x.dims(); ++d) {
      shape[static_cast<std::size_t>(d)] = x.shape()[d];
      strides[static_cast<std::size_t>(d)] = x.strides()[d];
    }
    const View view = x.numel() > 0 ? x.view() : View{};
    const bool is_cuda = x.device().type == DeviceType::cuda;
    managed.dl_tensor = {.data = view.data,
                         .device = {is_cuda ? cuda_device : cpu_device, is_cuda ? x.device().index : 0},
                         .ndim = x.dims(),
                         .dtype = dtype_of(x.dtype()),
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { delete static_cast<Exported*>(self->manager_ctx); };
  }

  Tensor tensor;
  std::array<std::int64_t, max_dims> shape{}, strides{};
  Managed managed{};
};

template <class Managed>
Exported<Managed>* exported(const Tensor& x) {
  if (x.requires_grad())
    fail("to_dlpack", "expected a tensor that requires no gradient, as others do not keep its history: export detach()");
  return new Exported<Managed>(x);
}

template <class Managed>
Tensor adopted(Managed* managed, bool is_read_only) {
  const DLTensor& x = managed->dl_tensor;
  if (x.ndim < 0 || x.ndim > max_dims) fail("from_dlpack", fmt::format("expected 0 to {} dimensions but got {}", int(max_dims), x.ndim));
  const DType dtype = dtype_of(x.dtype);
  const Device device = device_of(x.device);
  Shape shape;
  Strides strides;
  for (std::int32_t d = 0; d < x.ndim; ++d) {
    shape.push_back(x.shape[d]);
    if (x.strides) strides.push_back(x.strides[d]);
  }
  BlobOptions options{.device = device, .is_read_only = is_read_only};
  if (x.strides) options.strides = strides;
  void* const data = x.data ? static_cast<char*>(x.data) + x.byte_offset : nullptr;
  return from_blob(
      data, shape, dtype,
      [managed](void*) {
        if (managed->deleter) managed->deleter(managed);
      },
      options);
}

}  // namespace

DLManagedTensorVersioned* to_dlpack(const Tensor& x) {
  Exported<DLManagedTensorVersioned>* const result = exported<DLManagedTensorVersioned>(x);
  result->managed.version = {major_version, minor_version};
  result->managed.flags = x.impl().storage->is_read_only() ? read_only_flag : 0;
  return &result->managed;
}

DLManagedTensor* to_dlpack_unversioned(const Tensor& x) {
  if (x.impl().storage->is_read_only())
    fail("to_dlpack",
         "expected memory that may be written, as this form cannot say that it is read-only: use the versioned one, or clone()");
  return &exported<DLManagedTensor>(x)->managed;
}

Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  if (!managed) fail("from_dlpack", "expected a tensor but got null");
  if (managed->version.major != major_version)
    fail("from_dlpack", fmt::format("expected version {} but got {}.{}", major_version, managed->version.major, managed->version.minor));
  return adopted(managed, (managed->flags & read_only_flag) != 0);
}

Tensor from_dlpack(DLManagedTensor* managed) {
  if (!managed) fail("from_dlpack", "expected a tensor but got null");
  return adopted(managed, false);
}

}  // namespace tern::dlpack
