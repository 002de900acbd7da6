#pragma once
#include <vector>

#include "tensor/random.h"
#include "tensor/tensor.h"

namespace tern {

/// Numbers in [-1, 1) in f64, the same for a seed.
inline Tensor values(std::uint64_t seed, const Shape& shape) {
  std::vector<double> result(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = 2 * double(unit_float(philox(seed, i).words[0])) - 1;
  return Tensor::from(result, shape);
}

using Doubles = std::vector<double>;

/// A leaf of these numbers in f64, and the numbers of a tensor.
inline Tensor leaf(const Doubles& values, const Shape& shape) { return Tensor::from(values, shape).set_requires_grad(); }
inline Tensor leaf(const Doubles& values) { return leaf(values, {static_cast<std::int64_t>(values.size())}); }
/// Of one number, (); a braced number is a list.
template <class T>
  requires std::is_arithmetic_v<T>
Tensor leaf(T value) {
  return leaf({static_cast<double>(value)}, {});
}
inline Doubles list(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace tern
