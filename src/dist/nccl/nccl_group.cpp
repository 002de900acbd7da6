#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "backend/device_failure.h"
#include "backend/event.h"
#include "backend/memory.h"
#include "cuda/runtime/stream.h"
#include "dist/nccl/progress.h"
#include "dist/process_group.h"
#include "dist/ring.h"
#include "ops/factory.h"
#include "tensor/context.h"

// Note [Collectives on a GPU]
// Collectives by NCCL are queued on a stream of the group, which waits for the caller's stream first; Work::wait makes the caller's stream
// wait for that one, and no host waits. A graph that is recorded takes all of it in, and its replays run without the host.
//
// So a collective that never ends, as another rank is gone, would show nowhere but at a wait for the device that does not come back. A
// thread of the group, the watchdog, looks after it. It notices (1) what NCCL itself reports, (2) a neighbour of the ring that ends, since
// within a machine NCCL waits for memory that a dead process would have written, (3) counts that collectives write to host memory when
// they begin and end, and which stand still for the timeout: replays count too. It then marks the device as failed, so that whoever waits
// for it gets the Error, tells the neighbours, and breaks NCCL's kernels off.
namespace tern::dist {

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
  fail("dist", fmt::format("expected a dtype of numbers but got {}", name(dtype)));
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
        timeout_(options.timeout),
        ring_(environment, store, options.timeout),
        stream_(device, gpu::Priority::high),
        progress_(device) {
    ncclUniqueId id;
    if (rank() == 0) {
      check("ncclGetUniqueId", ncclGetUniqueId(&id));
      store.set("nccl", std::string(id.internal, sizeof id.internal));
    } else {
      const std::string bytes = store.get("nccl", options.timeout);
      if (bytes.size() != sizeof id.internal) fail("dist", fmt::format("expected NCCL's id from rank 0 but got {} bytes", bytes.size()));
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // no call waits for another rank, which may never come
    gpu::use({device});
    const ncclResult_t result = ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config);
    if (result != ncclSuccess && result != ncclInProgress) refuse(result);
    if (const std::string reason = settle(); !reason.empty()) {
      ncclCommAbort(communicator_);
      ring_.tell(reason);
      fail("dist", fmt::format("rank {} of {} on {} found no way to the others: {}", rank(), size(), to_string(device), reason));
    }
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclGroup() override {
    is_ending_ = true;
    watchdog_.join();
    gpu::use({device()});
    // A rank that leaves by an exception does not come to the others' next collective.
    if (std::uncaught_exceptions() > exceptions_before_) give_up(fmt::format("rank {} has given up", rank()));
    if (has_failed_) {
      cudaStreamSynchronize(gpu::handle(stream_.get()));
      backend::clear_failure(device());
      return;  // the communicator is gone
    }
    ring_.say_goodbye();
    ncclCommFinalize(communicator_);
    if (settle().empty()) ncclCommDestroy(communicator_);
    else ncclCommAbort(communicator_);
  }

  const char* engine() const override { return "nccl"; }

 protected:
  Work start_all_reduce(const Tensor& x, ReduceOp op) override {
    return post("all_reduce", {x}, [&] {
      void* const data = x.view().data;
      return ncclAllReduce(data, data, count(x), nccl_dtype(x.dtype()), nccl_op(op), communicator_, stream());
    });
  }

  Work start_broadcast(const Tensor& x, int root) override {
    return post("broadcast", {x}, [&] {
      void* const data = x.view().data;
      return ncclBroadcast(data, data, count(x), nccl_dtype(x.dtype()), root, communicator_, stream());
    });
  }

  Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) override {
    return post("reduce_scatter", {y, x}, [&] {
      return ncclReduceScatter(x.view().data, y.view().data, count(y), nccl_dtype(x.dtype()), nccl_op(op), communicator_, stream());
    });
  }

  Work start_all_gather(const Tensor& y, const Tensor& x) override {
    return post("all_gather", {y, x},
                [&] { return ncclAllGather(x.view().data, y.view().data, count(x), nccl_dtype(x.dtype()), communicator_, stream()); });
  }

  void wait_for_all() override {
    const NoGrad unrecorded;
    const Tensor token = zeros({1}, DType::i32, device());
    all_reduce(token).wait();
    backend::synchronize(Cuda{}, context().stream(device()));
  }

 private:
  static std::size_t count(const Tensor& x) { return static_cast<std::size_t>(x.numel()); }
  cudaStream_t stream() const { return gpu::handle(stream_.get()); }

  /// Holds the tensors until what the caller queues from then on finds them done.
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

  template <class F>
  Work post(const char* op, Tensors tensors, F&& call) {
    {
      const std::lock_guard lock(mutex_);  // the watchdog takes the communicator away
      backend::throw_if_failed(device());
      gpu::use({device()});
      backend::wait_stream(stream_.get(), context().stream(device()));
      if (unfinished_ == 0) progress_.count_begin(stream_.get());
      ++unfinished_;
      if (const ncclResult_t result = call(); result != ncclSuccess && result != ncclInProgress) {
        if (--unfinished_ == 0) progress_.count_end(stream_.get());
        check(op, result);
      }
    }
    if (const std::string reason = settle(); !reason.empty()) {
      give_up(reason);
      backend::throw_if_failed(device());
    }
    return Work(std::make_unique<NcclWork>(*this, std::move(tensors)));
  }

  /// A collective whose result the caller wants; the last one counts as the end of all.
  void end_one(backend::Event& done) {
    const std::lock_guard lock(mutex_);
    if (--unfinished_ > 0) return;
    progress_.count_end(stream_.get());
    done.record(stream_.get());
  }

  /// Waits for the calls that make connections, as the first collective of each kind does, to be through. Says why not, "" for success.
  std::string settle() {
    const auto deadline = deadline_in(timeout_);
    for (;;) {
      ncclResult_t state = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        if (has_failed_) return failure_;
        ncclCommGetAsyncError(communicator_, &state);
      }
      if (state == ncclSuccess) return {};
      if (state != ncclInProgress) return words_for(state);
      if (std::chrono::steady_clock::now() > deadline) return late();
      std::this_thread::sleep_for(100us);
    }
  }

  void watch() {
    std::uint32_t begun = 0, ended = 0;
    auto since = Clock::now();
    while (!is_ending_) {
      std::string reason = ring_.wait(50ms);
      if (reason.empty()) {
        ncclResult_t state = ncclSuccess;
        const std::lock_guard lock(mutex_);
        if (has_failed_) return;
        ncclCommGetAsyncError(communicator_, &state);
        if (state != ncclSuccess && state != ncclInProgress) reason = words_for(state);
      }
      if (progress_.begun() != begun || progress_.ended() != ended || progress_.begun() == progress_.ended()) {
        begun = progress_.begun();
        ended = progress_.ended();
        since = Clock::now();
      } else if (reason.empty() && Clock::now() - since > timeout_) {
        reason = late();
      }
      if (!reason.empty()) return give_up(reason);
    }
  }

  void give_up(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (has_failed_) return;
    has_failed_ = true;
    failure_ = reason;
    backend::mark_failed(device(), fmt::format("[dist] a collective on rank {} of {} failed: {}", rank(), size(), reason));
    ring_.tell(reason);
    ncclCommAbort(communicator_);
  }

  std::string late() const {
    return fmt::format("it did not end within {:g} s: another rank has stopped, or cannot be reached",
                       std::chrono::duration<double>(timeout_).count());
  }
  static std::string words_for(ncclResult_t result) {
    return fmt::format("NCCL says {}: another rank has ended, or cannot be reached", ncclGetErrorString(result));
  }

  [[noreturn]] void refuse(ncclResult_t result) const {
    const char* const more = ncclGetLastError(communicator_);
    fail("dist", fmt::format("rank {} of {} on {} found no way to the others: NCCL says {}{}{}", rank(), size(), to_string(device()),
                             ncclGetErrorString(result), *more ? ": " : "", more));
  }
  void check(const char* what, ncclResult_t result) const {
    if (result != ncclSuccess)
      fail("dist", fmt::format("{} on rank {} of {} failed: NCCL says {}", what, rank(), size(), ncclGetErrorString(result)));
  }

  std::chrono::milliseconds timeout_;
  Ring ring_;
  gpu::OwnedStream stream_;
  Progress progress_;
  std::mutex mutex_;  ///< of the communicator and what follows
  ncclComm_t communicator_ = nullptr;
  int unfinished_ = 0;  ///< collectives that nobody has waited for
  std::string failure_;
  const int exceptions_before_ = std::uncaught_exceptions();
  std::atomic<bool> has_failed_{false}, is_ending_{false};
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                              const GroupOptions& options) {
  return std::make_unique<NcclGroup>(environment, *store, device, options);
}

}  // namespace tern::dist
