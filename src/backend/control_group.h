#pragma once
#include <cstdint>
#include <filesystem>

namespace tern::backend {

/// The limits that the control groups of a process (a container, a batch job) set.
struct GroupLimits {
  std::uint64_t memory;  ///< bytes; the largest number without a limit
  double processors;     ///< CPU time a second of clock time; infinite without a limit
};

/// The lowest limits of the groups of version 1 or 2 that a file as /proc/self/cgroup names, beneath `root`, which is /sys/fs/cgroup.
GroupLimits group_limits(const std::filesystem::path& memberships, const std::filesystem::path& root);

/// Of this process.
GroupLimits group_limits();

/// Threads for so many processors of which the groups' limits allow a part: of a part of one, one.
int threads_for(int processors, const GroupLimits& limits);

}  // namespace tern::backend
