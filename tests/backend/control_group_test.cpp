// Limits of control groups, in made-up trees of both versions.
#include <filesystem>
#include <limits>

#include "backend/memory.h"
#include "backend/threads.h"
#include "catch.h"
#include "files.h"

namespace tern {

namespace {

using test::spill;
constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();
constexpr double all_processors = std::numeric_limits<double>::infinity();

struct Tree {
  test::TempDirectory root;
  Tree() {
    for (const char* group : {"user/job", "memory/batch", "cpu/batch/job"}) std::filesystem::create_directories(root / group);
  }
  std::uint64_t memory() const { return backend::group_limits(root / "self", root.path()).memory; }
  double processors() const { return backend::group_limits(root / "self", root.path()).processors; }
};

}  // namespace

TEST_CASE("The limits of control groups count as memory") {
  const Tree tree;
  CHECK(tree.memory() == no_limit);
  spill(tree.root / "self", "0::/user/job\n");
  CHECK(tree.memory() == no_limit);
  spill(tree.root / "user/job/memory.max", "max\n");
  CHECK(tree.memory() == no_limit);
  spill(tree.root / "user/memory.max", "600000000\n");  // an outer group's
  CHECK(tree.memory() == 600000000);
  spill(tree.root / "user/job/memory.max", "500000000\n");
  CHECK(tree.memory() == 500000000);
  spill(tree.root / "self", "3:cpu,cpuacct:/batch\n9:memory:/batch\n");
  spill(tree.root / "memory/batch/memory.limit_in_bytes", "700000000\n");
  spill(tree.root / "memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(tree.memory() == 700000000);
  spill(tree.root / "self", "0::/somewhere/of/the/host\n");
  spill(tree.root / "memory.max", "400000000\n");  // inside of a container the group is the root
  CHECK(tree.memory() == 400000000);
  CHECK(backend::usable_memory() > 0);
}

TEST_CASE("The quotas of control groups count as processors") {
  const Tree tree;
  CHECK(tree.processors() == all_processors);
  spill(tree.root / "self", "0::/user/job\n");
  CHECK(tree.processors() == all_processors);
  spill(tree.root / "user/job/cpu.max", "max 100000\n");
  CHECK(tree.processors() == all_processors);
  spill(tree.root / "user/cpu.max", "300000 100000\n");  // an outer group's
  CHECK(tree.processors() == 3);
  spill(tree.root / "user/job/cpu.max", "25000 50000\n");
  CHECK(tree.processors() == 0.5);
  spill(tree.root / "self", "0::/somewhere/of/the/host\n");
  spill(tree.root / "cpu.max", "400000 100000\n");  // inside of a container the group is the root
  CHECK(tree.processors() == 4);
  CHECK(tree.memory() == no_limit);
}

TEST_CASE("There is a thread for each processor that a quota has time for") {
  const auto threads = [](int processors, double quota) { return backend::threads_for(processors, {no_limit, quota}); };
  CHECK(threads(8, all_processors) == 8);
  CHECK(threads(8, 3) == 3);
  CHECK(threads(8, 2.5) == 3);
  CHECK(threads(8, 0.5) == 1);
  CHECK(threads(2, 4) == 2);
  CHECK(threads(0, all_processors) == 1);
}

TEST_CASE("The quotas of control groups of version 1 count as processors") {
  const Tree tree;
  spill(tree.root / "self", "9:memory:/batch\n3:cpu,cpuacct:/batch/job\n1:cpuset:/\n0::/\n");
  CHECK(tree.processors() == all_processors);
  spill(tree.root / "cpu/cpu.cfs_quota_us", "-1\n");
  spill(tree.root / "cpu/cpu.cfs_period_us", "100000\n");
  CHECK(tree.processors() == all_processors);
  spill(tree.root / "cpu/batch/cpu.cfs_quota_us", "250000\n");  // an outer group's
  CHECK(tree.processors() == all_processors);                   // a quota is nothing without its period
  spill(tree.root / "cpu/batch/cpu.cfs_period_us", "100000\n");
  CHECK(tree.processors() == 2.5);
  spill(tree.root / "cpu/batch/job/cpu.cfs_quota_us", "600000\n");
  spill(tree.root / "cpu/batch/job/cpu.cfs_period_us", "100000\n");
  CHECK(tree.processors() == 2.5);
  spill(tree.root / "cpu/batch/job/cpu.cfs_quota_us", "150000\n");
  CHECK(tree.processors() == 1.5);
}

}  // namespace tern
