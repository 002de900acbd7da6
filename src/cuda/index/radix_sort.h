#pragma once
#include "backend/device.h"

namespace tern::gpu {

/// Sorts `count` pairs, at most 2^30, by the low `bits` bits of their keys, ascending and stably. The results are written to the `sorted`
/// arrays, which must not overlap the others.
void sort_pairs(const std::uint32_t* keys, std::uint32_t* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values,
                std::int64_t count, int bits, Stream stream);
void sort_pairs(const std::uint64_t* keys, std::uint64_t* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values,
                std::int64_t count, int bits, Stream stream);

/// The number of bits that the numbers below `count` take.
constexpr int bits_for(std::uint64_t count) {
  int bits = 0;
  while (bits < 64 && (std::uint64_t(1) << bits) < count) ++bits;
  return bits;
}

}  // namespace tern::gpu
