#pragma once
#include <cstdint>

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

}  // namespace tern
