#pragma once
#include <cstdint>

namespace tern::backend {

/// Bytes of memory that this process may use: the machine's, or less if its control groups (of a container or a batch job), of version 1 or
/// 2, have limits. 0 if unknown.
std::uint64_t usable_memory();

}  // namespace tern::backend
