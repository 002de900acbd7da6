#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/call_queue.h"
#include "parallel/process_group.h"
#include "parallel/socket.h"
#include "parallel/store.h"
#include "tensor/dispatch.h"

// Note [Collectives on a CPU]
// A thread of the group runs the collectives one after the other (CallQueue). When a connection ends, Gloo drops a message that was half
// written or half read on it, so that a wait for this message lasts until the timeout, which is longer than a launcher's grace period for
// the other ranks. Therefore a second thread, the watchdog, listens to the ring of neighbours (parallel/socket.h), as in a GPU's group.
// When a neighbour has ended, or when Gloo itself reports a fault, it tells the other neighbour, ends all waits with an Error, and closes
// Gloo's connections. A call that still hangs is abandoned, and ends with the timeout or the process.
namespace tern::parallel {

namespace {

using namespace std::chrono_literals;

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * size_of(x.dtype()); }

/// Collectives between CPUs over TCP by Gloo, the CPU engine of torch.distributed. Reductions run in rings that pipeline parts of a tensor.
/// All functions but close() are for one thread, and throw CollectiveAborted if another rank has ended or does not answer within the
/// timeout.
class GlooCollectives {
 public:
  GlooCollectives(const LaunchEnvironment& environment, double timeout);

  /// Waits for the other ranks and connects each with each. To be called before the collectives.
  void connect(std::shared_ptr<Store> store);
  void all_reduce(const Tensor& x, ReduceOp op);
  void broadcast(const Tensor& x, int root);
  void reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op);
  void all_gather(const Tensor& y, const Tensor& x);
  void barrier();
  /// Closes the connections, which the other ranks notice. May be called from any thread; does nothing before connect() has returned.
  void close();

 private:
  template <class F>
  void run(F&& f);
  template <class T, class F>
  void reduce_scatter_in_ring(T* x, T* y, std::int64_t count, const F& reduce);

  const LaunchEnvironment environment_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;
  std::atomic<bool> is_connected_{false};
};

/// Gloo's interface to the store.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<parallel::Store> store, double timeout) : store_(std::move(store)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override { store_->set(key, {data.begin(), data.end()}); }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->get(key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_->get(key, timeout_);
  }
  /// Ignores Gloo's timeout, which is that of its connections: ranks may take longer to start.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  std::shared_ptr<parallel::Store> store_;
  double timeout_;
};

/// The address at which other processes reach this one: on the interface that GLOO_SOCKET_IFNAME names, or on the one from which the master
/// is reached.
gloo::transport::tcp::attr attributes(const LaunchEnvironment& environment) {
  gloo::transport::tcp::attr result;
  if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME")) result.iface = interface;
  else result.hostname = address_towards(environment.master_address);
  return result;
}

/// out = a and b, element by element.
using Reduce = gloo::AllreduceOptions::Func;
template <class T, class F>
Reduce reduce_with(F f) {
  return [f](void* out, const void* a, const void* b, std::size_t count) {
    using C = compute_t<T>;
    auto* const y = static_cast<T*>(out);
    const auto *const x1 = static_cast<const T*>(a), *const x2 = static_cast<const T*>(b);
    for (std::size_t i = 0; i < count; ++i) y[i] = static_cast<T>(f(static_cast<C>(x1[i]), static_cast<C>(x2[i])));
  };
}
template <class T>
Reduce reduce_of(ReduceOp op) {
  // A NaN on any rank gives NaN, as in ops max and min.
  if (op == ReduceOp::max) return reduce_with<T>([](auto a, auto b) { return a > b || a != a ? a : b; });
  if (op == ReduceOp::min) return reduce_with<T>([](auto a, auto b) { return a < b || a != a ? a : b; });
  return reduce_with<T>([](auto a, auto b) { return a + b; });
}

template <class F>
void for_dtype(DType dtype, F&& f) {
  dispatch_all(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) f.template operator()<T>();
  });
}

void scale(void* data, std::int64_t count, DType dtype, double factor) {
  for_dtype(dtype, [&]<class T>() {
    using C = compute_t<T>;
    auto* const x = static_cast<T*>(data);
    for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<T>(static_cast<C>(x[i]) * static_cast<C>(factor));
  });
}

/// The first line of Gloo's message, without the source location at its start.
std::string plain(std::string text) {
  text.erase(std::min(text.find('\n'), text.size()));
  if (!text.empty() && text.front() == '[')
    if (const std::size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  return text + ": another rank has ended, has stopped, or cannot be reached";
}

GlooCollectives::GlooCollectives(const LaunchEnvironment& environment, double timeout)
    : environment_(environment),
      timeout_(milliseconds_of(timeout)),
      context_(std::make_shared<gloo::rendezvous::Context>(environment.rank, environment.size)) {}

template <class F>
void GlooCollectives::run(F&& f) {
  try {
    f();
  } catch (const gloo::Exception& error) {
    throw CollectiveAborted(plain(error.what()));
  } catch (const gloo::EnforceNotMet& error) {
    throw CollectiveAborted(plain(error.what()));
  }
}

void GlooCollectives::connect(std::shared_ptr<Store> store) {
  run([&] {
    GlooStore rendezvous(std::move(store), std::chrono::duration<double>(timeout_).count());
    auto device = gloo::transport::tcp::CreateDevice(attributes(environment_));
    // Gloo waits five times this long for a connection, such as to a rank that stops while they are made.
    context_->setTimeout(std::max(timeout_ / 5, std::chrono::milliseconds(1)));
    static_cast<gloo::rendezvous::Context&>(*context_).connectFullMesh(rendezvous, device);
    context_->setTimeout(timeout_);
  });
  is_connected_ = true;
  // A rank that ends early must not close its connections while others still connect.
  barrier();
}

void GlooCollectives::all_reduce(const Tensor& x, ReduceOp op) {
  run([&] {
    for_dtype(x.dtype(), [&]<class T>() {
      gloo::AllreduceOptions options(context_);
      options.setOutput(x.data<T>(), static_cast<std::size_t>(x.numel()));
      options.setReduceFunction(reduce_of<T>(op));
      options.setTag(++tag_);
      gloo::allreduce(options);
    });
  });
  if (op == ReduceOp::mean) scale(x.view().data, x.numel(), x.dtype(), 1.0 / environment_.size);
}

void GlooCollectives::broadcast(const Tensor& x, int root) {
  run([&] {
    gloo::BroadcastOptions options(context_);
    options.setOutput(x.view().as<char>(), bytes_of(x));
    options.setRoot(root);
    options.setTag(++tag_);
    gloo::broadcast(options);
  });
}

void GlooCollectives::reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) {
  run([&] { for_dtype(x.dtype(), [&]<class T>() { reduce_scatter_in_ring(x.data<T>(), y.data<T>(), y.numel(), reduce_of<T>(op)); }); });
  if (op == ReduceOp::mean) scale(y.view().data, y.numel(), y.dtype(), 1.0 / environment_.size);
}

void GlooCollectives::all_gather(const Tensor& y, const Tensor& x) {
  run([&] {
    gloo::AllgatherOptions options(context_);
    char *const to = y.view().as<char>(), *const from = x.view().as<char>();
    if (from != to + static_cast<std::size_t>(environment_.rank) * bytes_of(x)) options.setInput(from, bytes_of(x));
    options.setOutput(to, bytes_of(y));
    options.setTag(++tag_);
    gloo::allgather(options);
  });
}

void GlooCollectives::barrier() {
  run([&] {
    gloo::BarrierOptions options(context_);
    options.setTag(++tag_);
    gloo::barrier(options);
  });
}

void GlooCollectives::close() {
  if (is_connected_) context_->closeConnections();
}

/// A ring reduce-scatter: y = this rank's part of the reduction of all x. Each part travels round the ring, each rank adds its own
/// elements, and the part arrives at its own rank last.
template <class T, class F>
void GlooCollectives::reduce_scatter_in_ring(T* x, T* y, std::int64_t count, const F& reduce) {
  const int rank = environment_.rank, ranks = environment_.size, next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const auto elements = static_cast<std::size_t>(count);
  const auto part = [&](int i) { return x + static_cast<std::int64_t>(((i % ranks) + ranks) % ranks) * count; };
  std::vector<T> sending(part(rank - 1), part(rank - 1) + count), receiving(elements);
  const std::uint64_t slot = std::uint64_t{0x7f} << 56 | std::uint64_t{++tag_} << 24;
  for (int step = 0; step + 1 < ranks; ++step) {
    const auto out = context_->createUnboundBuffer(sending.data(), elements * sizeof(T));
    const auto in = context_->createUnboundBuffer(receiving.data(), elements * sizeof(T));
    in->recv(previous, slot + static_cast<std::uint64_t>(step));
    out->send(next, slot + static_cast<std::uint64_t>(step));
    if (!in->waitRecv(timeout_) || !out->waitSend(timeout_)) GLOO_THROW_IO_EXCEPTION("the transfer was given up");
    reduce(receiving.data(), receiving.data(), part(rank - step - 2), elements);
    std::swap(sending, receiving);
  }
  std::memcpy(y, sending.data(), elements * sizeof(T));
}

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
