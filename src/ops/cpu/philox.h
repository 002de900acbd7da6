#pragma once
#include <cmath>

#include "ops/cpu/loops.h"
#include "tensor/random.h"

namespace tern::loops {

inline constexpr std::int64_t blocks_per_chunk = chunk / 4;

/// words[w][b] = word w of the block at position + b, for blocks_per_chunk of them at most.
void philox_blocks(std::uint64_t seed, std::uint64_t position, std::int64_t count, std::uint32_t (*words)[blocks_per_chunk]);

/// unit_float(word) < probability holds where word >> 8 is below this, exactly.
inline std::uint32_t threshold(double probability) { return std::uint32_t(std::ceil(std::min(std::max(0.0, probability), 1.0) * 0x1p24)); }

}  // namespace tern::loops
