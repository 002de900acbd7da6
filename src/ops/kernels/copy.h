#pragma once
#include "tensor/kernel.h"

namespace tern::kernels {

/// y = x, converted to y's dtype; same shape, any strides (x may be broadcast, y may not). To bool: x != 0.
struct Copy {
  In x;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Note [Sums in 16 bits]: y, of a 16-bit dtype, is a running sum, whose exact form `sum` is in f32: sum += x, and y = sum rounded. Where y
/// is not sum rounded, because others wrote to it, the sum goes on from y. One shape, everything contiguous; x has y's dtype.
struct AddRounded {
  In x;
  InOut sum, y;
  void run(Cpu) const;
  void run(Cuda) const;
};
/// Additions to a 16-bit sum that may round to 16 bits each; longer sums use add_rounded.
inline constexpr int max_rounded_sums = 8;

/// Sets every element of y to value.
struct Fill {
  Out y;
  double value;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y[i] = start + i * step, for a one-dimensional y of a numeric dtype.
struct Arange {
  Out y;
  double start, step;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y = x where column - row <= diagonal (lower) or >= diagonal (upper), else 0; the last two dimensions.
struct Triangle {
  In x;
  Out y;
  std::int64_t diagonal;
  bool upper;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
