// The number of threads follows what a process may use: its affinity, and the quota of its control group.
#include <sched.h>

#include <cstdlib>
#include <fstream>

#include "skip.h"
#include "support.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

/// The processors that this process may run on.
std::vector<int> allowed_processors() {
  cpu_set_t allowed;
  std::vector<int> result;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return result;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) result.push_back(i);
  return result;
}

/// The text of a training's first lines in which its threads stand, of a process for which a shell prepares itself.
std::string threads_of(const std::string& prepare, const std::string& launcher = "") {
  const TempDirectory directory;
  const Result result = done(shell("unset OMP_NUM_THREADS; " + prepare + " exec " + launcher + " \"$0\" \"$@\"", recall,
                                   words_of("train --out " + (directory / "run").string() +
                                            " --preset quick --device cpu --pairs 2 --train-examples 8 --valid-examples 2 "
                                            "--test-examples 2 --width 8 --layers 1 --epochs 1")));
  const std::size_t end = result.out.find(" CPU thread");
  REQUIRE(end != std::string::npos);
  const std::size_t begin = result.out.rfind(' ', end - 1) + 1;
  return result.out.substr(begin, end - begin);
}

/// A control group of this test's own with a quota of CPU time, of either version; it needs the rights to make one.
class Quota {
 public:
  Quota() {
    const std::string name = fmt::format("tern-test-{}", ::getpid());
    for (const char* root : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"}) {
      const fs::path group = fs::path(root) / name;
      std::error_code error;
      if (!fs::create_directory(group, error)) continue;
      path_ = group;
      is_first_version_ = fs::exists(group / "cpu.cfs_quota_us");
      if (is_first_version_ || fs::exists(group / "cpu.max")) return;
      remove();
    }
  }
  ~Quota() { remove(); }
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;

  /// Sets the quota, in hundredths of a processor. False if it cannot be set.
  bool set(int percent) const {
    const std::string of_a_period = fmt::format("{} 100000", percent * 1000);
    return !path_.empty() &&
           write(is_first_version_ ? "cpu.cfs_quota_us" : "cpu.max", is_first_version_ ? std::to_string(percent * 1000) : of_a_period);
  }
  /// A shell's command by which it joins the group.
  std::string join() const { return fmt::format("echo $$ > {} || exit 9;", (path_ / "cgroup.procs").string()); }

 private:
  bool write(const char* file, const std::string& text) const {
    std::ofstream out(path_ / file);
    out << text << std::flush;
    return out.good();
  }
  void remove() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
    path_.clear();
  }

  fs::path path_;
  bool is_first_version_ = false;
};

}  // namespace

TEST_CASE("A training takes a thread for each processor that its affinity allows") {
  const std::vector<int> allowed = allowed_processors();
  if (allowed.size() < 2) return tern::test::skip("it needs two processors");
  CHECK(threads_of("", fmt::format("taskset -c {}", allowed[0])) == "1");
}

TEST_CASE("A training takes no more threads than its control group has processors' time for") {
  if (allowed_processors().size() < 2) return tern::test::skip("it needs two processors");
  const Quota quota;
  if (!quota.set(100) || std::system(fmt::format("sh -c '{}' 2> /dev/null", quota.join()).c_str()) != 0)
    return tern::test::skip("it needs the rights to make a control group");
  CHECK(threads_of(quota.join()) == "1");
  REQUIRE(quota.set(150));
  CHECK(threads_of(quota.join()) == "2");  // a part of a processor is one
}
