#pragma once
#include <cstdint>

namespace tern::backend {

/// The bytes of memory that this process may use: the machine's, or less where the control groups that it is in (a container's, a batch
/// job's) have limits, of version 1 or 2. 0 where the system does not say.
std::uint64_t usable_memory();

}  // namespace tern::backend
