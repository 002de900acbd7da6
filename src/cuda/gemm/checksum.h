#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/device.h"

namespace tern::gpu {

/// A number that differs, but by chance, where two memories do. Waits for the stream.
std::uint64_t checksum_of(const void* data, std::size_t bytes, Stream stream);

}  // namespace tern::gpu
