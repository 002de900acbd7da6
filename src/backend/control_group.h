#pragma once
#include <cstdint>
#include <filesystem>

namespace tern::backend {

/// Limits of the control groups (cgroups) of a process, set by a container or a batch job.
struct GroupLimits {
  std::uint64_t memory;  ///< bytes; the largest number if there is no limit
  double processors;     ///< CPU time per second of clock time; infinite if there is no limit
};

/// Lowest limits of the groups, of version 1 or 2, that a file like /proc/self/cgroup lists, found below `root`, usually /sys/fs/cgroup.
GroupLimits group_limits(const std::filesystem::path& memberships, const std::filesystem::path& root);

/// Limits of this process.
GroupLimits group_limits();

/// Number of threads for `processors` processors under the groups' limits, rounded up; at least 1.
int threads_for(int processors, const GroupLimits& limits);

}  // namespace tern::backend
