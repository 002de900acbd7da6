#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/memory.h"
#include "backend/stream.h"
#include "cuda/runtime/launch.h"
#include "ops/factory.h"
#include "parallel/nccl/progress.h"
#include "parallel/process_group.h"
#include "parallel/socket.h"
#include "tensor/context.h"

// Note [Collectives on a GPU]
// Collectives are queued on a stream of the group, which first waits for the caller's
// stream. Work::wait makes the caller's stream wait for the group's; the host does not wait. A graph capture includes all of this, and its
// replays need no host.
//
// NCCL's communicator is blocking, as a non-blocking one starts a thread for each call, which takes longer than a short collective.
// Everything that waits for another rank happens when the group is made, on a thread that is abandoned if the others do not connect.
// After that all ranks are connected and a call only queues its kernel; it blocks while the device's queue is full, at most until the
// kernels before it are aborted.
//
// A collective that never ends, since another rank is gone, would therefore only show in a wait for the device that does not return. A
// thread of the group, the watchdog, detects (1) an error that NCCL reports, (2) a neighbour of the ring that has ended, since within a
// machine NCCL waits for memory that the dead process would have written, (3) a lack of progress for the timeout, by counters that
// collectives, also replayed ones, write to host memory when they begin and end. It then marks the device as failed, so that waits for it
// throw the Error, tells the neighbours, and aborts NCCL's kernels.
namespace tern::parallel {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

ncclDataType_t nccl_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
    case DType::boolean: break;
  }
  fail("parallel", fmt::format("expected a dtype of numbers but got {}", name(dtype)));
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::mean: return ncclAvg;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::sum: break;
  }
  return ncclSum;
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(const LaunchEnvironment& environment, Store& store, Device device, const GroupOptions& options)
      : ProcessGroup(environment.rank, environment.size, device),
        timeout_(milliseconds_of(options.timeout)),
        ring_(environment, store, options.timeout),
        stream_(device, gpu::Priority::high),
        counting_stream_(device, gpu::Priority::high),
        progress_(device) {
    ncclUniqueId id;
    if (rank() == 0) {
      check("ncclGetUniqueId", ncclGetUniqueId(&id));
      store.set("nccl", std::string(id.internal, sizeof id.internal));
    } else {
      const std::string bytes = store.get("nccl", options.timeout);
      if (bytes.size() != sizeof id.internal)
        fail("parallel", fmt::format("expected NCCL's id from rank 0 but got {} bytes", bytes.size()));
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);  // connects all ranks now, and not in the first collective
    struct Setup {
      ncclComm_t communicator = nullptr;
      ncclResult_t result = ncclSuccess;
    };
    const auto setup = within(timeout_, [id, device, rank = rank(), size = size()] {
      Setup made;
      gpu::use({device});
      made.result = ncclCommInitRank(&made.communicator, size, id, rank);
      return made;
    });
    if (!setup || setup->result != ncclSuccess) {
      const std::string reason = setup ? words_for(setup->result) : late();
      ring_.tell(reason);
      fail("parallel",
           fmt::format("rank {} of {} on {} found no way to the others: {}", this->rank(), this->size(), to_string(device), reason));
    }
    communicator_ = setup->communicator;
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclGroup() override {
    // A rank that is unwound by an exception takes part in no further collective.
    if (std::uncaught_exceptions() > exceptions_before_) give_up(fmt::format("rank {} has given up", rank()));
    end_all();
    cudaSetDevice(device().index);
    while (cudaStreamQuery(stream()) == cudaErrorNotReady) std::this_thread::sleep_for(1ms);  // the watchdog bounds it
    if (aborted_.valid()) aborted_.wait_for(timeout_);
    is_ending_ = true;
    watchdog_.join();
    if (has_failed_) {
      backend::clear_failure(device());
      return;  // the communicator is gone
    }
    ring_.say_goodbye();
    if (!within(timeout_, [communicator = communicator_] { return ncclCommDestroy(communicator); })) ncclCommAbort(communicator_);
  }

  const char* engine() const override { return "nccl"; }

 protected:
  Work start_all_reduce(const Tensor& x, ReduceOp op) override {
    void* const data = x.view().data;
    return post({x}, [&] {
      check("all_reduce", ncclAllReduce(data, data, count(x), nccl_dtype(x.dtype()), nccl_op(op), communicator_, stream()));
    });
  }

  Work start_broadcast(const Tensor& x, int root) override {
    return post({x}, [&] {
      void* const data = x.view().data;
      check("broadcast", ncclBroadcast(data, data, count(x), nccl_dtype(x.dtype()), root, communicator_, stream()));
    });
  }

  Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) override {
    void *const from = x.view().data, *const to = y.view().data;
    return post({y, x}, [&] {
      check("reduce_scatter", ncclReduceScatter(from, to, count(y), nccl_dtype(x.dtype()), nccl_op(op), communicator_, stream()));
    });
  }

  Work start_all_gather(const Tensor& y, const Tensor& x) override {
    void *const from = x.view().data, *const to = y.view().data;
    return post({y, x}, [&] { check("all_gather", ncclAllGather(from, to, count(x), nccl_dtype(x.dtype()), communicator_, stream())); });
  }

  void wait_for_all() override {
    const NoGrad unrecorded;
    const Tensor token = zeros({1}, DType::i32, device());
    all_reduce(token).wait();
    backend::synchronize(Cuda{}, context().stream(device()));
  }

 private:
  static std::size_t count(const Tensor& x) { return static_cast<std::size_t>(x.numel()); }

  /// The result of f, called on a thread of its own; none if it takes longer than `time`, in which case the thread is abandoned.
  template <class F>
  static auto within(std::chrono::milliseconds time, F f) -> std::optional<decltype(f())> {
    std::packaged_task<decltype(f())()> task(std::move(f));
    auto result = task.get_future();
    std::thread(std::move(task)).detach();
    if (result.wait_for(time) != std::future_status::ready) return {};
    return result.get();
  }
  cudaStream_t stream() const { return gpu::handle(stream_.get()); }

  /// A Work that holds the tensors until the caller's stream waits for the collective.
  class NcclWork final : public Work::State {
   public:
    NcclWork(NcclGroup& group, Tensors tensors) : group_(group), tensors_(std::move(tensors)), done_(group.stream_.get()) {}
    void wait() override {
      group_.end_one(done_);
      done_.wait(context().stream(group_.device()));
      tensors_.clear();
      backend::throw_if_failed(group_.device());
    }
    bool is_done() override { return done_.is_reached(); }

   private:
    NcclGroup& group_;
    Tensors tensors_;
    backend::Event done_;
  };

  /// Calls f, which queues work on the group's stream, after all work that the caller has queued.
  template <class F>
  Work post(Tensors tensors, F&& f) {
    const std::lock_guard lock(mutex_);  // the watchdog may abort the communicator
    backend::throw_if_failed(device());
    gpu::use({device()});
    const backend::Event begin(context().stream(device()));
    begin.wait(stream_.get());
    if (unfinished_ == 0) count_begin(begin);
    ++unfinished_;
    try {
      f();
    } catch (const Error&) {
      if (--unfinished_ == 0) count_end(backend::Event(stream_.get()));
      backend::throw_if_failed(device());  // with the reason of the failure
      throw;
    }
    return Work(std::make_unique<NcclWork>(*this, std::move(tensors)));
  }

  /// Ends one collective for the caller. The last unfinished one counts the end of all for the watchdog.
  void end_one(backend::Event& done) {
    const std::lock_guard lock(mutex_);
    if (--unfinished_ > 0) return;
    if (!context().recording) return count_end(done);
    progress_.count_end(stream_.get());
    done.record(stream_.get());  // recorded again: a graph capture may only end when all its streams have joined
  }

  // The counters have a stream of their own, for which no collective and no caller waits: on the group's stream their two kernels would
  // delay the next collective. In a graph they are on the group's stream.

  void count_begin(const backend::Event& begin) {
    if (context().recording) return progress_.count_begin(stream_.get());
    begin.wait(counting_stream_.get());
    progress_.count_begin(counting_stream_.get());
  }
  void count_end(const backend::Event& end) {
    if (context().recording) return progress_.count_end(stream_.get());
    end.wait(counting_stream_.get());
    progress_.count_end(counting_stream_.get());
  }

  void watch() {
    std::uint32_t begun = 0, ended = 0;
    auto since = Clock::now();
    while (!is_ending_ && !has_failed_) {
      std::string reason = ring_.wait(50ms);
      // A call that holds the lock is queueing work, or waits for room in the device's queue, which the counters show.
      if (const std::unique_lock lock(mutex_, std::try_to_lock); reason.empty() && lock && !has_failed_) {
        ncclResult_t state = ncclSuccess;
        ncclCommGetAsyncError(communicator_, &state);
        if (state != ncclSuccess) reason = words_for(state);
      }
      if (progress_.begun() != begun || progress_.ended() != ended || progress_.begun() == progress_.ended()) {
        begun = progress_.begun();
        ended = progress_.ended();
        since = Clock::now();
      } else if (reason.empty() && Clock::now() - since > timeout_) {
        reason = late();
      }
      if (!reason.empty()) give_up(reason);
    }
  }

  void give_up(const std::string& reason) {
    // With a timeout: a call that holds the lock may wait for kernels that only end when NCCL is aborted.
    const std::unique_lock lock(mutex_, 1s);
    if (has_failed_.exchange(true)) return;
    backend::mark_failed(device(), fmt::format("[parallel] a collective on rank {} of {} failed: {}", rank(), size(), reason));
    ring_.tell(reason);
    // On a thread: it waits for work on the device, which may wait for the watchdog.
    std::packaged_task<void()> abort([communicator = communicator_] { ncclCommAbort(communicator); });
    aborted_ = abort.get_future();
    std::thread(std::move(abort)).detach();
  }

  std::string late() const {
    return fmt::format("it did not end within {:g} s: another rank has stopped, or cannot be reached",
                       std::chrono::duration<double>(timeout_).count());
  }
  static std::string words_for(ncclResult_t result) {
    return fmt::format("NCCL says {}: another rank has ended, or cannot be reached", ncclGetErrorString(result));
  }

  void check(const char* what, ncclResult_t result) const {
    if (result != ncclSuccess)
      fail("parallel", fmt::format("{} on rank {} of {} failed: NCCL says {}", what, rank(), size(), ncclGetErrorString(result)));
  }

  std::chrono::milliseconds timeout_;
  Ring ring_;
  gpu::OwnedStream stream_, counting_stream_;
  Progress progress_;
  std::timed_mutex mutex_;  ///< guards the communicator and the members below
  ncclComm_t communicator_ = nullptr;
  int unfinished_ = 0;  ///< collectives that nobody has waited for
  const int exceptions_before_ = std::uncaught_exceptions();
  std::future<void> aborted_;  ///< the abort of NCCL after a failure
  std::atomic<bool> has_failed_{false}, is_ending_{false};
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                              const GroupOptions& options) {
  return std::make_unique<NcclGroup>(environment, *store, device, options);
}

}  // namespace tern::parallel
