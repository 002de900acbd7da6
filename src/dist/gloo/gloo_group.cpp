#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/error.h"
#include "backend/observer.h"
#include "dist/process_group.h"
#include "dist/socket.h"
#include "tensor/dispatch.h"

// Collectives between CPUs by Gloo over TCP: the engine of torch.distributed on CPUs, whose reductions run in rings that pipeline parts of
// a tensor, and which tells when a peer is gone. A group has a thread, which runs its collectives one after the other.
namespace tern::dist {

namespace {

/// The store as Gloo knows one.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<dist::Store> store, std::chrono::milliseconds timeout) : store_(std::move(store)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override { store_->set(key, {data.begin(), data.end()}); }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->get(key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_->get(key, timeout_);
  }
  /// Gloo gives its connections' timeout, which is not that of ranks to come.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  std::shared_ptr<dist::Store> store_;
  std::chrono::milliseconds timeout_;
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
  // A NaN of any rank is the result, as in tern's own max and min.
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

/// While it lives, a write to a connection that a peer has closed is an error and no signal: Gloo asks its sockets for none. Threads that
/// begin in the meantime keep it so.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    sigset_t waiting;
    sigpending(&waiting);
    was_waiting_ = sigismember(&waiting, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoBrokenPipeSignal() {
    sigset_t waiting;
    sigpending(&waiting);
    const timespec at_once{};
    if (!was_waiting_ && sigismember(&waiting, SIGPIPE) == 1) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t signal_, before_;
  bool was_waiting_ = false;
};

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * size_of(x.dtype()); }

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(const LaunchEnvironment& environment, std::shared_ptr<Store> store, const GroupOptions& options)
      : ProcessGroup(environment.rank, environment.size, cpu), timeout_(options.timeout) {
    GlooStore rendezvous(std::move(store), options.timeout);
    const NoBrokenPipeSignal quiet;
    try {
      auto device = gloo::transport::tcp::CreateDevice(attributes(environment));
      auto context = std::make_shared<gloo::rendezvous::Context>(rank(), size());
      // Gloo waits five times as long for a connection: for a rank that stops while they are made, say.
      context->setTimeout(std::max(options.timeout / 5, std::chrono::milliseconds(1)));
      context->connectFullMesh(rendezvous, device);
      context->setTimeout(options.timeout);
      context_ = context;
      // A rank that is done soon must not close its connections while others still make theirs.
      gloo::BarrierOptions all_connected(context_);
      all_connected.setTag(++tag_);
      gloo::barrier(all_connected);
    } catch (const gloo::Exception& error) {
      fail("dist", fmt::format("rank {} of {} found no way to the others: {}", rank(), size(), plain(error.what())));
    }
    thread_ = std::thread([this] { run(); });
  }

  ~GlooGroup() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    has_task_.notify_one();
    thread_.join();
  }

  const char* engine() const override { return "gloo"; }

 protected:
  Work start_all_reduce(const Tensor& x, ReduceOp op) override {
    return post("all_reduce", bytes_of(x), [this, x, op] {
      for_dtype(x.dtype(), [&]<class T>() {
        gloo::AllreduceOptions options(context_);
        options.setOutput(x.data<T>(), static_cast<std::size_t>(x.numel()));
        options.setReduceFunction(reduce_of<T>(op));
        options.setTag(++tag_);
        gloo::allreduce(options);
      });
      if (op == ReduceOp::mean) scale(x.view().data, x.numel(), x.dtype(), 1.0 / size());
    });
  }

  Work start_broadcast(const Tensor& x, int root) override {
    return post("broadcast", bytes_of(x), [this, x, root] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(x.view().as<char>(), bytes_of(x));
      options.setRoot(root);
      options.setTag(++tag_);
      gloo::broadcast(options);
    });
  }

  Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) override {
    return post("reduce_scatter", bytes_of(x), [this, x, y, op] {
      for_dtype(x.dtype(), [&]<class T>() { reduce_scatter_in_ring(x.data<T>(), y.data<T>(), y.numel(), reduce_of<T>(op)); });
      if (op == ReduceOp::mean) scale(y.view().data, y.numel(), y.dtype(), 1.0 / size());
    });
  }

  Work start_all_gather(const Tensor& y, const Tensor& x) override {
    return post("all_gather", bytes_of(y), [this, x, y] {
      gloo::AllgatherOptions options(context_);
      char *const to = y.view().as<char>(), *const from = x.view().as<char>();
      if (from != to + static_cast<std::size_t>(rank()) * bytes_of(x)) options.setInput(from, bytes_of(x));
      options.setOutput(to, bytes_of(y));
      options.setTag(++tag_);
      gloo::allgather(options);
    });
  }

  void wait_for_all() override {
    post("barrier", 0, [this] {
      gloo::BarrierOptions options(context_);
      options.setTag(++tag_);
      gloo::barrier(options);
    }).wait();
  }

 private:
  /// When a collective ran, in nanoseconds of the steady clock.
  struct Time {
    std::int64_t begin = 0, end = 0;
  };
  struct Task {
    const char* op;
    std::function<void()> run;
    std::promise<Time> done;
  };

  class GlooWork final : public Work::State {
   public:
    GlooWork(std::future<Time> done, const char* op, std::size_t bytes) : done_(std::move(done)), op_(op), bytes_(bytes) {}
    void wait() override {
      const std::int64_t began = now_ns();
      const Time ran = done_.get();
      backend::tell(
          [&](backend::Observer& told) { told.end_collective(op_, ran.begin, ran.end, now_ns() - began, static_cast<double>(bytes_)); });
    }
    bool is_done() override { return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

   private:
    std::future<Time> done_;
    const char* op_;
    std::size_t bytes_;
  };

  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// `run` holds the tensors.
  Work post(const char* op, std::size_t bytes, std::function<void()> run) {
    Task task{op, std::move(run), {}};
    std::future<Time> done = task.done.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    has_task_.notify_one();
    return Work(std::make_unique<GlooWork>(std::move(done), op, bytes));
  }

  void run() {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        has_task_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      try {
        if (!failure_.empty()) throw Error(failure_);
        Time ran;
        try {
          ran.begin = now_ns();
          task.run();
          ran.end = now_ns();
        } catch (const gloo::Exception& error) {
          failure_ = fmt::format("[dist] {} on rank {} of {} failed: {}", task.op, rank(), size(), plain(error.what()));
          // The others are told by this, and not by their own timeouts.
          context_->closeConnections();
          throw Error(failure_);
        }
        task.run = nullptr;  // before the caller goes on, who may count who holds the tensors
        task.done.set_value(ran);
      } catch (...) {
        task.done.set_exception(std::current_exception());
      }
    }
  }

  /// y = this rank's part of the sum of all x: each part goes round the ranks, and each adds its own. All others begin with the part that
  /// is to arrive at its rank last.
  template <class T>
  void reduce_scatter_in_ring(T* x, T* y, std::int64_t count, const Reduce& reduce) {
    const int ranks = size(), next = (rank() + 1) % ranks, previous = (rank() + ranks - 1) % ranks;
    const auto elements = static_cast<std::size_t>(count);
    const auto part = [&](int i) { return x + static_cast<std::int64_t>(((i % ranks) + ranks) % ranks) * count; };
    std::vector<T> sending(part(rank() - 1), part(rank() - 1) + count), receiving(elements);
    const std::uint64_t slot = std::uint64_t{0x7f} << 56 | std::uint64_t{++tag_} << 24;
    for (int step = 0; step + 1 < ranks; ++step) {
      const auto out = context_->createUnboundBuffer(sending.data(), elements * sizeof(T));
      const auto in = context_->createUnboundBuffer(receiving.data(), elements * sizeof(T));
      in->recv(previous, slot + static_cast<std::uint64_t>(step));
      out->send(next, slot + static_cast<std::uint64_t>(step));
      if (!in->waitRecv(timeout_) || !out->waitSend(timeout_)) GLOO_THROW_IO_EXCEPTION("the transfer was given up");
      reduce(receiving.data(), receiving.data(), part(rank() - step - 2), elements);
      std::swap(sending, receiving);
    }
    std::memcpy(y, sending.data(), elements * sizeof(T));
  }

  /// Gloo's words without the place in its source that they begin with.
  static std::string plain(std::string text) {
    if (!text.empty() && text.front() == '[')
      if (const std::size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    return text + ": another rank has ended, has stopped, or cannot be reached";
  }

  std::chrono::milliseconds timeout_;
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;  ///< of the thread
  std::string failure_;    ///< of the thread: what the first failure said
  std::mutex mutex_;
  std::condition_variable has_task_;
  std::deque<Task> tasks_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_gloo_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store,
                                              const GroupOptions& options) {
  return std::make_unique<GlooGroup>(environment, std::move(store), options);
}

}  // namespace tern::dist
