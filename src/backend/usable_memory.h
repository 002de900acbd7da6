#pragma once
#include "backend/memory.h"

namespace tern::backend {

/// @{
/// Bytes of the device's memory that this process may use: of a GPU, those that are free or that its allocator keeps. 0 if unknown.
inline std::uint64_t usable_memory(Cpu, Device) { return usable_memory(); }
std::uint64_t usable_memory(Cuda, Device device);
/// @}

}  // namespace tern::backend
