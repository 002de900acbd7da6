#pragma once
#include <cstdint>

#include "backend/device.h"

namespace tern::backend {

/// Bytes of memory that this process may use: the machine's, or less if its control groups (of a container or a batch job), of version 1 or
/// 2, have limits. 0 if unknown.
std::uint64_t usable_memory();

/// Returns the memory that the CPU's allocator keeps for later tensors to the system.
void release_cached_memory(Cpu);

}  // namespace tern::backend
