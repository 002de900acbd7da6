#include "backend/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "backend/control_group.h"

namespace tern::backend {

std::uint64_t usable_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t physical = pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
  const std::uint64_t limit = group_limits().memory;
  if (physical != 0) return std::min(physical, limit);
  return limit == std::numeric_limits<std::uint64_t>::max() ? 0 : limit;
}

}  // namespace tern::backend
