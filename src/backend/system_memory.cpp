#include "backend/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>

namespace tern::backend {

static constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// The number in a file; unlimited where there is no such file, or it says "max".
static std::uint64_t limit_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string word;
  std::uint64_t value = unlimited;
  if (in >> word) std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

/// A group's limit counts for all groups within it. Inside a container the path may be the host's: its own group is then the root.
static std::uint64_t limit_along(const std::filesystem::path& root, const std::filesystem::path& group, const char* file) {
  std::uint64_t limit = limit_in(root / file);
  std::filesystem::path at = root;
  for (const auto& part : group.relative_path()) limit = std::min(limit, limit_in((at /= part) / file));
  return limit;
}

std::uint64_t cgroup_memory_limit(const std::filesystem::path& memberships, const std::filesystem::path& root) {
  std::uint64_t limit = unlimited;
  std::ifstream in(memberships);
  for (std::string line; std::getline(in, line);) {  // "0::/path" of version 2, "9:memory:/path" of version 1
    const std::size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,") limit = std::min(limit, limit_along(root, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      limit = std::min(limit, limit_along(root / "memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

std::uint64_t usable_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t physical = pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
  const std::uint64_t limit = cgroup_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup");
  return physical == 0 && limit == unlimited ? 0 : physical == 0 ? limit : std::min(physical, limit);
}

}  // namespace tern::backend
