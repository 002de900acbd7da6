#pragma once
#include <cstddef>

#include "backend/device.h"

namespace tern::gpu {

/// At least `count` completion counters (Note [Last block]) for kernels queued on the stream, all zero. Safe while a graph is recorded.
unsigned* completion_counters(Stream stream, std::size_t count);

}  // namespace tern::gpu
