#pragma once
#include <cstddef>

#include "backend/device.h"

namespace tern::gpu {

/// At least `count` counters for kernels queued on the stream, all zero. Safe while a graph is recorded.
unsigned* arrivals(Stream stream, std::size_t count);

}  // namespace tern::gpu
