#pragma once
#include <cstdint>

#include "tensor/random.h"

namespace tern {

/// True if dropout with probability p drops element i of a tensor whose random numbers begin at `position`: Note [Dropout's bits], word by
/// word.
inline bool is_dropped(std::uint64_t seed, std::uint64_t position, std::uint64_t i, double p) {
  const std::uint64_t element = 4 * position + i, block = element / 8 * 2, number = element % 8;
  const std::uint32_t word = philox<7>(seed, block).words[number / 2];
  return double(number % 2 == 0 ? word % 65536 : word / 65536) < p * 65536;
}

}  // namespace tern
