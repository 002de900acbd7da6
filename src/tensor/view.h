#pragma once
#include "backend/device.h"
#include "tensor/dim_vec.h"
#include "tensor/dtype.h"

namespace tern {

/// All that a kernel may see of a tensor: memory, geometry, dtype and the stream to run on. Strides count elements, and
/// may be zero (broadcast) or negative. Trivially copyable.
struct View {
  void* data = nullptr;
  Shape shape;
  Strides strides;
  DType dtype = DType::f32;
  Stream stream;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int dims() const { return shape.size(); }
  std::int64_t numel() const { return tern::numel(shape); }
  bool is_contiguous() const { return tern::is_contiguous(shape, strides); }
};

/// Whether a kernel replaces what its output holds or adds to it.
enum class Write : std::uint8_t { overwrite, accumulate };

}  // namespace tern
