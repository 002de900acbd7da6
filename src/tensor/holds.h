#pragma once
#include <cmath>

#include "tensor/dtype.h"

namespace tern::detail {

/// True if the dtype can represent the number: for an integer dtype a whole number within bounds, for a float any number.
inline bool holds(DType dtype, double number) {
  if (is_floating(dtype)) return true;
  if (number != std::floor(number)) return false;
  switch (dtype) {
    case DType::boolean: return number == 0 || number == 1;
    case DType::u8: return number >= 0 && number <= 255;
    case DType::i32: return number >= -0x1p31 && number < 0x1p31;
    default: return number >= -0x1p63 && number < 0x1p63;
  }
}

/// True if elements of the dtype can be set to the number: an integer dtype truncates it, and the result must be in range.
inline bool takes(DType dtype, double number) { return dtype == DType::boolean || holds(dtype, std::trunc(number)); }

}  // namespace tern::detail
