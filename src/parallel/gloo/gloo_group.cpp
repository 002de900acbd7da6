#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "parallel/call_queue.h"
#include "parallel/gloo/gloo_collectives.h"
#include "parallel/process_group.h"
#include "parallel/ring.h"

// Note [Collectives on a CPU]
// A thread of the group runs the collectives one after the other (CallQueue). When a connection ends, Gloo drops a message that was half
// written or half read on it, so that a wait for this message lasts until the timeout, which is longer than a launcher's grace period for
// the other ranks. Therefore a second thread, the watchdog, listens to the ring of neighbours (parallel/ring.h), as in a GPU's group. When
// a neighbour has ended, or when Gloo itself reports a fault, it tells the other neighbour, ends all waits with an Error, and closes Gloo's
// connections. A call that still hangs is abandoned, and ends with the timeout or the process.
namespace tern::parallel {

namespace {

using namespace std::chrono_literals;

/// The watchdog of a group: fails it when another rank has ended. Lives from before the group's first call until after its last.
class Watchdog {
 public:
  Watchdog(Ring& ring, CallQueue& calls, GlooCollectives& gloo, int rank)
      : ring_(ring), calls_(calls), gloo_(gloo), rank_(rank), thread_([this] { watch(); }) {}
  ~Watchdog() {
    // A rank that is unwound by an exception takes part in no further collective.
    if (std::uncaught_exceptions() > exceptions_before_) calls_.abort(fmt::format("rank {} has given up", rank_));
    calls_.finish();
    is_ending_ = true;
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  /// Time between two checks.
  static constexpr auto pause = 20ms;
  /// Time to complete a collective to which the rank that ended has already contributed.
  static constexpr auto patience = 300ms;

  void watch() {
    for (bool is_last = false; !is_last;) {
      is_last = is_ending_;
      // Read before the wait for the ring: the ring's reason, which names the rank, takes precedence if it comes in that time.
      const std::string fault = calls_.fault();
      std::string reason = ring_.wait(is_last ? 0ms : pause);
      if (reason.empty()) reason = fault;
      if (reason.empty()) continue;
      ring_.tell(reason);
      calls_.fail(reason, patience);
      gloo_.close();
      return;
    }
    ring_.say_goodbye();
  }

  Ring& ring_;
  CallQueue& calls_;
  GlooCollectives& gloo_;
  const int rank_, exceptions_before_ = std::uncaught_exceptions();
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(const LaunchEnvironment& environment, std::shared_ptr<Store> store, const GroupOptions& options)
      : ProcessGroup(environment.rank, environment.size, cpu),
        gloo_(std::make_shared<GlooCollectives>(environment, options.timeout)),
        ring_(environment, *store, options.timeout),
        calls_(fmt::format("rank {} of {}", rank(), size())),
        watchdog_(ring_, calls_, *gloo_, rank()) {
    calls_.post("connecting", 0, [gloo = gloo_, store] { gloo->connect(store); }).wait();
  }

  const char* engine() const override { return "gloo"; }

 protected:
  // A call shares the tensors and the engine, as it may outlive the group.
  Work start_all_reduce(const Tensor& x, ReduceOp op) override {
    return calls_.post("all_reduce", bytes_of(x), [gloo = gloo_, x, op] { gloo->all_reduce(x, op); });
  }
  Work start_broadcast(const Tensor& x, int root) override {
    return calls_.post("broadcast", bytes_of(x), [gloo = gloo_, x, root] { gloo->broadcast(x, root); });
  }
  Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) override {
    return calls_.post("reduce_scatter", bytes_of(x), [gloo = gloo_, y, x, op] { gloo->reduce_scatter(y, x, op); });
  }
  Work start_all_gather(const Tensor& y, const Tensor& x) override {
    return calls_.post("all_gather", bytes_of(y), [gloo = gloo_, y, x] { gloo->all_gather(y, x); });
  }
  void wait_for_all() override {
    calls_.post("barrier", 0, [gloo = gloo_] { gloo->barrier(); }).wait();
  }

 private:
  const std::shared_ptr<GlooCollectives> gloo_;
  Ring ring_;
  CallQueue calls_;
  const Watchdog watchdog_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_gloo_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store,
                                              const GroupOptions& options) {
  return std::make_unique<GlooGroup>(environment, std::move(store), options);
}

}  // namespace tern::parallel
