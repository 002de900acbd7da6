#pragma once
#include "backend/device.h"
#include "tensor/dim_vec.h"
#include "tensor/dtype.h"

namespace tern {

/// A tensor as a kernel sees it: memory, geometry, dtype and the stream to run on. Strides are in elements, and may be zero (broadcast) or
/// negative. Trivially copyable.
struct View {
  void* data = nullptr;      ///< address of the first element, on the stream's device
  Shape shape;               ///< sizes of the dimensions
  Strides strides;           ///< strides of the dimensions, in elements
  DType dtype = DType::f32;  ///< dtype of the elements
  Stream stream;             ///< stream that kernels on this tensor are queued on

  /// Address as a pointer to T, unchecked: the caller has dispatched on dtype.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int dims() const { return shape.size(); }                  ///< number of dimensions, 0 to 8
  std::int64_t numel() const { return tern::numel(shape); }  ///< number of elements
  /// True if the elements are in row-major order without gaps, so that one loop over numel() of them reaches all.
  bool is_contiguous() const { return tern::is_contiguous(shape, strides); }
};

/// Mode of a kernel's output: overwrite it, or add to it.
enum class Write : std::uint8_t { overwrite, accumulate };

}  // namespace tern
