#pragma once
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "dist/process_group.h"
#include "errors.h"
#include "files.h"

namespace tern::dist::test {

/// A rank of run_ranks.
struct Rank {
  LaunchEnvironment environment;
  std::shared_ptr<Store> store;
  std::unique_ptr<ProcessGroup> group;
};

/// Runs f on so many threads, each a rank with a group, and gives what each threw, "" for nothing. A rank that throws gives its group up.
inline std::vector<std::string> run_ranks(int size, const std::function<void(Rank&)>& f, const GroupOptions& options = {}) {
  const tern::test::TempDirectory directory;
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i)
    threads.emplace_back([&, i] {
      try {
        Rank rank{
            {.rank = i, .size = size, .local_rank = i, .local_size = size}, std::make_shared<FileStore>(directory / "store"), nullptr};
        rank.group = make_process_group(rank.environment, rank.store, cpu, "world", options);
        f(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(i)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// None of the ranks threw.
inline void check_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}

}  // namespace tern::dist::test
