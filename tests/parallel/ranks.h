#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "files.h"
#include "message.h"
#include "parallel/process_group.h"

namespace tern::parallel::test {

/// A rank of run_ranks.
struct Rank {
  LaunchEnvironment environment;
  std::shared_ptr<Store> store;
  std::unique_ptr<ProcessGroup> group;
};

/// A process that tern-launch has started is a rank of its own, with a GPU: ranks of one GPU must look like ranks of several machines
/// (NCCL_HOSTID), since NCCL takes one process a GPU.
inline bool is_launched() {
  static const bool is = launch_environment().has_value();
  return is;
}

/// As a rank of a launch: f, if the launch has so many.
inline std::string run_rank(int size, const std::function<void(Rank&)>& f, const GroupOptions& options) {
  static const LaunchEnvironment environment = *launch_environment();
  static const std::shared_ptr<Store> store = open_store(environment, 30);
  static int groups = 0;
  if (size != environment.size) return "";
  return message_of<std::exception>([&] {
    const Device device = cuda(environment.local_rank % cuda_device_count());
    Rank rank{environment, store, nullptr};
    rank.group = make_process_group(environment, store, device, "group" + std::to_string(groups++), options);
    f(rank);
    rank.group->barrier();
  });
}

/// Runs f on so many threads, each a rank with a group, and gives what each threw, "" for nothing. A rank that throws gives its group up.
inline std::vector<std::string> run_ranks(int size, const std::function<void(Rank&)>& f, const GroupOptions& options = {}) {
  if (is_launched()) return {run_rank(size, f, options)};
  const tern::test::TempDirectory directory;
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i)
    threads.emplace_back([&, i] {
      errors[static_cast<std::size_t>(i)] = message_of<std::exception>([&] {
        Rank rank{
            {.rank = i, .size = size, .local_rank = i, .local_size = size}, std::make_shared<FileStore>(directory / "store"), nullptr};
        rank.group = make_process_group(rank.environment, rank.store, cpu, "world", options);
        f(rank);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// None of the ranks threw.
inline void check_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}

}  // namespace tern::parallel::test
