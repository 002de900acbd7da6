#pragma once
#include "backend/device.h"

namespace tern::gpu {

/// Sorts `count` pairs, at most 2^30, by the low `bits` bits of their keys, which are std::uint32_t or std::uint64_t, ascending and stably.
/// Results are written to the `sorted` arrays, which must not overlap the others.
template <class Key>
void sort_pairs(const Key* keys, Key* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values, std::int64_t count, int bits,
                Stream stream);

}  // namespace tern::gpu
