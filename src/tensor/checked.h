#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/error.h"

namespace tern {

/// Sum or product of two sizes. Throws Error that names `where` if it does not fit into 64 bits.
inline std::int64_t checked_add(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    fail(where, "expected sizes that fit into 64 bits but got " + std::to_string(a) + " + " + std::to_string(b));
  return sum;
}
inline std::int64_t checked_mul(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    fail(where, "expected sizes that fit into 64 bits but got " + std::to_string(a) + " * " + std::to_string(b));
  return product;
}

/// Product of sizes >= 0 and of `factor`, in which a size of 0 counts as 1, so that the strides of an empty tensor fit too; nothing if a
/// size is negative or the product does not fit into 64 bits.
template <class Sizes>
std::optional<std::int64_t> checked_product(const Sizes& sizes, std::int64_t factor = 1) {
  for (const std::int64_t size : sizes)
    if (size < 0 || __builtin_mul_overflow(factor, std::max<std::int64_t>(size, 1), &factor)) return std::nullopt;
  return factor;
}

}  // namespace tern
