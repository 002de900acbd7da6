// Members of Tensor that are ops: tensor/tensor.h declares them without including any op.
#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

Tensor Tensor::sum(const Dims& dims, bool keepdim) const { return tern::sum(*this, dims, keepdim); }
Tensor Tensor::mean(const Dims& dims, bool keepdim) const { return tern::mean(*this, dims, keepdim); }
Tensor Tensor::reshape(const Shape& shape) const { return tern::reshape(*this, shape); }
Tensor Tensor::T() const {
  if (dims() < 2) fail("T", fmt::format("expected at least two dimensions but got {}", to_string(shape())));
  return transpose(*this, -2, -1);
}
Tensor Tensor::to(Device device) const { return tern::to(*this, device); }
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }

}  // namespace tern
