#pragma once
#include <cstdint>
#include <filesystem>

namespace tern::backend {

/// The bytes of memory that this process may use: the machine's, or less where the control groups that it is in (a container's, a batch
/// job's) have limits, of version 1 or 2. 0 where the system does not say.
std::uint64_t usable_memory();

/// The lowest memory limit of the control groups that a file as /proc/self/cgroup names, beneath `root`, which is /sys/fs/cgroup; the
/// largest number where there is none.
std::uint64_t cgroup_memory_limit(const std::filesystem::path& memberships, const std::filesystem::path& root);

}  // namespace tern::backend
