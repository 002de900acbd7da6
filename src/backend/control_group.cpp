#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "backend/memory.h"
#include "backend/parse.h"
#include "backend/threads.h"

namespace tern::backend {

namespace fs = std::filesystem;

/// Next number of a file; none if there is no such file, or it says "max" or -1.
static std::optional<std::uint64_t> next_number(std::istream& in) {
  std::string word;
  in >> word;
  return parse_number<std::uint64_t>(word);
}

static std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  return next_number(in);
}

static void lower_memory(GroupLimits& limits, std::optional<std::uint64_t> bytes) {
  if (bytes) limits.memory = std::min(limits.memory, *bytes);
}

/// Applies a quota of CPU time per period, both in microseconds.
static void lower_processors(GroupLimits& limits, std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period) {
  if (quota && period && *quota > 0 && *period > 0)
    limits.processors = std::min(limits.processors, static_cast<double>(*quota) / static_cast<double>(*period));
}

/// Calls visit for a group and its ancestors, whose limits apply to all groups within. Inside a container the path may be the host's: then
/// the container's group is the root.
static void for_each_group(const fs::path& root, const fs::path& group, const std::function<void(const fs::path&)>& visit) {
  fs::path at = root;
  visit(at);
  for (const auto& part : group.relative_path()) visit(at /= part);
}

GroupLimits group_limits(const std::string& memberships, const std::string& root_) {
  const fs::path root = root_;
  GroupLimits limits{std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<double>::infinity()};
  std::ifstream in(memberships);
  for (std::string line; std::getline(in, line);) {  // "0::/path" of version 2, "9:memory:/path" or "3:cpu,cpuacct:/path" of version 1
    const std::size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,")
      for_each_group(root, group, [&](const fs::path& at) {
        lower_memory(limits, number_in(at / "memory.max"));
        std::ifstream max(at / "cpu.max");
        const auto quota = next_number(max), period = next_number(max);
        lower_processors(limits, quota, period);
      });
    if (controllers.find(",memory,") != std::string::npos)
      for_each_group(root / "memory", group, [&](const fs::path& at) { lower_memory(limits, number_in(at / "memory.limit_in_bytes")); });
    if (controllers.find(",cpu,") != std::string::npos)
      for_each_group(root / "cpu", group, [&](const fs::path& at) {
        lower_processors(limits, number_in(at / "cpu.cfs_quota_us"), number_in(at / "cpu.cfs_period_us"));
      });
  }
  return limits;
}

int threads_for(int processors, const GroupLimits& limits) {
  if (limits.processors < processors) processors = static_cast<int>(std::ceil(limits.processors));
  return std::max(processors, 1);
}

GroupLimits group_limits() { return group_limits("/proc/self/cgroup", "/sys/fs/cgroup"); }

std::uint64_t usable_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const std::uint64_t physical = pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
  const std::uint64_t limit = group_limits().memory;
  if (physical != 0) return std::min(physical, limit);
  return limit == std::numeric_limits<std::uint64_t>::max() ? 0 : limit;
}

}  // namespace tern::backend
