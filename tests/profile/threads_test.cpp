// Several threads in one profile: each with spans of its own that nest, rows of all together, and starts and ends at any moment.
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "autodiff/engine.h"
#include "files.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "profile/memory_history.h"
#include "profile/op_table.h"
#include "profile/profiler.h"
#include "skip.h"
#include "support.h"
#include "tensor/context.h"

using namespace tern;
using namespace tern::profile;
using namespace tern::profile::test;

namespace {

constexpr int rounds = 150;

/// The work of a thread: a module of its own around an op of its own, and the gradient of both.
template <class F>
void work(const void* module, F op) {
  Tensor x = ones({3, 5});
  x.set_requires_grad();
  for (int i = 0; i < rounds; ++i) {
    Tensor loss;
    {
      const Pass pass("forward");
      const ModuleFrame scope(module, "Worker");
      loss = sum(op(x));
    }
    loss.backward();
  }
}

/// Begins f on so many threads at once, and waits for them.
template <class F>
void at_once(int count, F f) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      f(i);
    });
  for (std::thread& thread : threads) thread.join();
}

std::int64_t spans_of(const Profile& profile, std::uint32_t thread, Kind kind, const std::string& name, const std::string& pass) {
  return std::count_if(profile.spans.begin(), profile.spans.end(), [&](const Span& span) {
    return span.thread == thread && span.kind == kind && profile.name(span) == name && profile.names[span.pass] == pass;
  });
}

std::uint32_t thread_of(const Profile& profile, const std::string& name) {
  const auto found = std::find(profile.threads.begin(), profile.threads.end(), name);
  REQUIRE(found != profile.threads.end());
  return static_cast<std::uint32_t>(found - profile.threads.begin());
}

struct Workers {
  int modules[2] = {};
  ModuleNames names;
  Workers() { names.add(&modules[0], "left"), names.add(&modules[1], "right"); }
  static constexpr const char* thread[] = {"worker left", "worker right"};
  static constexpr const char* op[] = {"exp", "tanh"};
  void run(Profiler& profiler) {
    at_once(2, [&](int i) {
      const WatchedThread watched(profiler, thread[i]);
      work(&modules[i], [i](const Tensor& x) { return i == 0 ? exp(x) : tanh(x); });
    });
  }
};

}  // namespace

TEST_CASE("Two threads at once have each its spans, exactly, in one profile") {
  Workers workers;
  Profiler profiler({.names = workers.names});
  profiler.begin_step();
  log(ones({2}));
  workers.run(profiler);
  profiler.end_step();
  const Profile profile = profiler.finish();
  check_nests(profile);
  CHECK(profile.threads.size() == 3);
  CHECK(profile.steps() == 1);
  CHECK(spans_of(profile, 0, Kind::op, "log", "") == 1);
  for (const int i : {0, 1}) {
    const std::uint32_t thread = thread_of(profile, Workers::thread[i]);
    INFO(Workers::thread[i]);
    CHECK(spans_of(profile, thread, Kind::pass, "forward", "forward") == rounds);
    CHECK(spans_of(profile, thread, Kind::pass, "backward", "backward") == rounds);
    CHECK(spans_of(profile, thread, Kind::module, i == 0 ? "left" : "right", "forward") == rounds);
    for (const char* pass : {"forward", "backward"}) {
      CHECK(spans_of(profile, thread, Kind::op, Workers::op[i], pass) == rounds);
      CHECK(spans_of(profile, thread, Kind::op, Workers::op[1 - i], pass) == 0);
      CHECK(spans_of(profile, thread, Kind::op, "sum", pass) == rounds);
    }
    for (const Span& span : profile.spans)
      if (span.thread == thread && span.kind == Kind::op && span.parent != none) {
        CHECK(profile.spans[span.parent].thread == thread);
        if (profile.name(span) == Workers::op[i]) CHECK(profile.modules[span.module].path == (i == 0 ? "left" : "right"));
      }
  }
  // Rows are of all threads together, and passes hold the ops in them; the wall time is the step's.
  std::map<std::pair<std::string, std::string>, std::int64_t> counts;
  std::int64_t in_rows = 0, in_passes = 0, host = 0, in_threads = 0;
  for (const OpRow& row : op_rows(profile)) counts[{row.op, row.pass}] = row.calls, in_rows += row.host_ns;
  CHECK(counts[{"sum", "forward"}] == 2 * rounds);
  CHECK(counts[{"exp", "backward"}] == rounds);
  for (const PassRow& row : pass_rows(profile)) {
    CHECK(row.host_ns >= row.op_ns);
    in_passes += row.op_ns, host += row.host_ns;
  }
  CHECK(in_rows == in_passes);
  std::int64_t beside = 0;
  for (const Span& span : profile.spans)
    if (span.thread != 0 && (span.kind == Kind::pass || (span.kind == Kind::op && profile.names[span.pass].empty())))
      beside += span.duration();
  CHECK(host == profile.wall() + beside);
  for (const ThreadRow& row : thread_rows(profile)) {
    in_threads += row.op_ns;
    CHECK(row.kernels >= (row.thread == "thread 0" ? 1 : 4 * rounds));
  }
  CHECK(in_threads == in_rows);
  CHECK(op_table(profile).find("| worker right |") != std::string::npos);
}

TEST_CASE("A trace has a track for each thread, with its name") {
  Workers workers;
  Profiler profiler({.names = workers.names});
  workers.run(profiler);
  {
    const Pass pass("communication");
    exp(ones({3}));
  }
  const Profile profile = profiler.finish();
  const tern::test::TempDirectory directory;
  write_chrome_trace(profile, directory / "trace.json");
  const nlohmann::json trace = nlohmann::json::parse(tern::test::slurp(directory / "trace.json"));
  std::map<int, std::string> names;
  std::map<int, std::set<std::string>> ops;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name") names[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    if (event["ph"] == "X" && event["cat"] == "op") ops[event["tid"].get<int>()].insert(event["name"].get<std::string>());
  }
  std::map<std::string, std::set<std::string>> by_name;
  for (const auto& [track, name] : names) by_name[name] = ops[track];
  CHECK(by_name["worker left"].count("exp") == 1);
  CHECK(by_name["worker left"].count("tanh") == 0);
  CHECK(by_name["worker right"].count("tanh") == 1);
  CHECK(by_name["worker right"].count("exp") == 0);
  CHECK(by_name["communication of thread 0"].count("exp") == 1);
}

TEST_CASE("A gradient that another thread computes has the module of the forward") {
  int module = 0;
  ModuleNames names;
  names.add(&module, "encoder");
  Profiler profiler({.names = names});
  Tensor x = ones({3}), loss;
  x.set_requires_grad();
  {
    const ModuleFrame scope(&module, "Encoder");
    loss = sum(exp(x));
  }
  std::thread([&] {
    const WatchedThread watched(profiler, "backward");
    loss.backward();
  }).join();
  const Profile profile = profiler.finish();
  CHECK(calls(profile, "exp", "backward", "encoder") == 1);
  CHECK(spans_of(profile, thread_of(profile, "backward"), Kind::op, "exp", "backward") == 1);
  const std::vector<PassRow> rows = pass_rows(profile);
  const auto backward = std::find_if(rows.begin(), rows.end(), [](const PassRow& row) { return row.pass == "backward"; });
  REQUIRE(backward != rows.end());
  CHECK(backward->host_ns > 0);
}

TEST_CASE("Profiles begin, start again and end while threads work") {
  std::atomic<bool> is_over{false};
  std::atomic<Profiler*> current{nullptr};
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  int modules[2] = {};
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      while (!is_over) {
        ++inside;
        if (Profiler* const profiler = current.load()) {
          const WatchedThread watched(*profiler, "worker");
          --inside;  // from here on the profiler may end
          for (int j = 0; j < 60; ++j) {
            const Pass pass("forward");
            const ModuleFrame scope(&modules[i], "Worker");
            exp(ones({4}));
            if (j % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        } else {
          --inside;
          std::this_thread::yield();
        }
      }
    });
  std::size_t spans = 0;
  for (int i = 0; i < 12; ++i) {
    Profiler profiler;
    current = &profiler;
    for (int j = 0; j < 3; ++j) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      profiler.restart();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    current = nullptr;
    while (inside > 0) std::this_thread::yield();
    const Profile profile = profiler.finish();
    check_nests(profile);
    spans += profile.spans.size();
    for (const Span& span : profile.spans) REQUIRE(span.thread < profile.threads.size());
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(spans > 0);
}

TEST_CASE("A thread is watched once by a profiler, and may outlive it") {
  auto profiler = std::make_unique<Profiler>();
  CHECK_THROWS_WITH(WatchedThread(*profiler, "again"),
                    "[profile] expected a thread that the profiler does not watch yet but it does, as 'thread 0'");
  std::atomic<int> stage{0};
  std::thread worker([&] {
    const WatchedThread watched(*profiler, "worker");
    exp(ones({2}));
    const Pass open("forward");
    stage = 1;
    while (stage < 2) std::this_thread::yield();
    tanh(ones({2}));  // nobody records it
    CHECK(backend::observer != nullptr);
  });
  while (stage < 1) std::this_thread::yield();
  const Profile profile = profiler->finish();
  profiler.reset();
  stage = 2;
  worker.join();
  check_nests(profile);
  CHECK(spans_of(profile, 1, Kind::pass, "forward", "forward") == 1);
  CHECK(spans_of(profile, 1, Kind::op, "exp", "") == 1);
  CHECK(spans_of(profile, 1, Kind::op, "tanh", "forward") == 0);
  CHECK(backend::observer == nullptr);
}

TEST_CASE("Observers of a thread come and go in any order, and each sees what happens meanwhile") {
  int module = 0;
  auto first = std::make_unique<Profiler>();
  const ModuleFrame scope(&module, "Outer");
  exp(ones({2}));
  auto history = std::make_unique<MemoryHistory>(cpu);
  auto second = std::make_unique<Profiler>();
  Tensor x = ones({3});
  x.set_requires_grad();
  const Tensor loss = sum(tanh(x));
  history->end();  // with one that began before it, and one that began after it
  log(ones({2}));
  const Profile outer = first->finish();
  first.reset();
  loss.backward();
  CHECK(calls(outer, "exp", "", "Outer") == 1);
  CHECK(calls(outer, "tanh", "", "Outer") == 1);
  CHECK(calls(outer, "log", "", "Outer") == 1);
  CHECK(calls(outer, "tanh", "backward", "Outer") == 0);
  const Profile inner = second->finish();
  CHECK(calls(inner, "exp", "", "") == 0);
  CHECK(calls(inner, "tanh", "", "") == 1);  // it did not see the module begin
  CHECK(calls(inner, "tanh", "backward", "Outer") == 1);
  CHECK(calls(inner, "log", "", "") == 1);
  std::set<std::string> named;
  for (const MemoryBlock& block : history->blocks())
    if (block.op) named.insert(*block.op);
  CHECK(named.count("tanh") == 1);
  CHECK(named.count("log") == 0);
  CHECK(backend::observer == nullptr);
}

TEST_CASE("A GPU's kernels have the thread that launched them", "[cuda]") {
  Profiler profiler({.device = cuda()});
  at_once(2, [&](int i) {
    const WatchedThread watched(profiler, Workers::thread[i]);
    const Tensor x = ones({4}, DType::f32, cuda());
    for (int j = 0; j < rounds; ++j) i == 0 ? exp(x) : tanh(x);
  });
  const Profile profile = profiler.finish();
  if (profile.device_records.empty()) tern::test::skip("CUPTI does not answer");
  for (const int i : {0, 1}) {
    int kernels = 0;
    for (const DeviceRecord& record : profile.device_records)
      if (profile.names[record.op] == Workers::op[i]) {
        ++kernels;
        REQUIRE(record.span != none);
        CHECK(profile.spans[record.span].thread == thread_of(profile, Workers::thread[i]));
      }
    CHECK(kernels == rounds);
  }
}
