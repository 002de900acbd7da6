#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "dist/launch_environment.h"
#include "tensor/tensor.h"

namespace tern::dist {

/// Reduction of the ranks' elements: their sum, mean, largest or least.
enum class ReduceOp { sum, mean, max, min };

/// A collective on its way, which holds its tensors until it is done. One that goes without being waited for is waited for first.
class Work {
 public:
  /// An engine's side of one.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;     ///< as Work::wait
    virtual bool is_done() = 0;  ///< as Work::is_done
  };

  Work() = default;  ///< one that is done
  /// For engines: a collective that has begun.
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  /// @{
  Work(Work&&) noexcept = default;  ///< the other one is done from then on, or waited for when it ends
  Work& operator=(Work&& other) noexcept;
  /// @}
  ~Work();

  /// Waits until the result is there; on a GPU it is the caller's stream that waits, and not the host. Throws Error where the collective
  /// failed, and of a later one of the group as well.
  void wait();
  /// True where wait() would not wait. Throws nothing: an error is wait()'s to tell.
  bool is_done() const { return !state_ || state_->is_done(); }

 private:
  std::unique_ptr<State> state_;
};

/// Options of a process group.
struct GroupOptions {
  /// Timeout of a collective on a rank, the wait for other ranks included. One that never comes is then an
  /// Error and no hang.
  std::chrono::milliseconds timeout{30'000};
  /// Copy engines: where all ranks are GPUs of one machine that reach each other's memory, collectives of so many bytes or more go by them,
  /// and leave the multiprocessors to what computes beside them (Note [Copy engines]). 0: all go by NCCL.
  std::int64_t copy_engine_bytes = std::int64_t(4) << 20;
};

/// Processes that compute together: rank 0 to size() - 1, each with a group of its own, on one device. Every process calls the same
/// collectives in the same order with tensors of the same shapes and dtypes; a process may call from several threads, one at a time.
///
/// Tensors are contiguous, lie on the group's device, and are of f32, f64, bf16, f16, i32, i64 or u8; sums of 16 bits are rounded at each
/// step between ranks. Results are the same bits on all ranks and, for one number of ranks, in every run. Collectives run
/// beside what follows, on a thread or a stream of the group, in the order of the calls. A CapturedStep takes those of a GPU in; it goes
/// before its group.
///
/// A rank that ends, or does not answer within the timeout, makes the collective an Error on each of the others, and every later one too;
/// on a GPU also whatever else waits for the device or launches a graph there (Note [Collectives on a GPU]).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  int rank() const { return rank_; }         ///< of this process, from 0
  int size() const { return size_; }         ///< number of processes
  Device device() const { return device_; }  ///< of the tensors that collectives take
  /// "gloo", "nccl", or "local" of one process.
  virtual const char* engine() const = 0;

  /// x = the sum, mean, largest or least of all ranks' x, element by element. mean: of floating dtypes.
  [[nodiscard]] Work all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// x = that of rank `root`.
  [[nodiscard]] Work broadcast(const Tensor& x, int root = 0);
  /// y (N) = part `rank` of what all_reduce makes of x (size N). y may be that part of x itself, and x's other parts are then undefined.
  [[nodiscard]] Work reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// y (size N) = all ranks' x (N), one after the other. x may be its own part of y.
  [[nodiscard]] Work all_gather(const Tensor& y, const Tensor& x);
  /// Waits until all ranks are here: the thread, on every device.
  void barrier();

 protected:
  ProcessGroup(int rank, int size, Device device) : rank_(rank), size_(size), device_(device) {}  ///< for engines
  /// An engine's all_reduce, of tensors that have been checked, as in the three below.
  virtual Work start_all_reduce(const Tensor& x, ReduceOp op) = 0;
  virtual Work start_broadcast(const Tensor& x, int root) = 0;  ///< an engine's broadcast
  /// An engine's reduce_scatter; y may be a part of x.
  virtual Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) = 0;
  virtual Work start_all_gather(const Tensor& y, const Tensor& x) = 0;  ///< an engine's all_gather; x may be a part of y
  virtual void wait_for_all() = 0;                                      ///< an engine's barrier

 private:
  void check(const char* op, const Tensor& x) const;
  void check_parts(const char* op, const Tensor& part, const Tensor& whole) const;

  int rank_, size_;
  Device device_;
};

/// True where this build has the engine that groups on such a device need.
bool has_engine(DeviceType type);

/// The group of all processes of a launch: Gloo's on the CPU, NCCL's on a GPU, which no other rank of the machine has, and of one process,
/// on any device, one that does nothing. `name` tells the
/// groups of a run apart, which are made in one order by all. Throws Error in a build without the engine, and where the others do not come
/// in time.
std::unique_ptr<ProcessGroup> make_process_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                                 const std::string& name = "world", const GroupOptions& options = {});

/// As that, by what the launcher says in the environment: launch_environment(), open_store(). A process without a launcher is alone.
std::unique_ptr<ProcessGroup> make_process_group(Device device, const GroupOptions& options = {});

// The engines of CPUs and GPUs, in builds that have them.
/// The group over Gloo, on the CPU; make_process_group calls it in a build that has Gloo.
std::unique_ptr<ProcessGroup> make_gloo_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store,
                                              const GroupOptions& options);
/// The group over NCCL, on a GPU; make_process_group calls it in a build that has NCCL.
std::unique_ptr<ProcessGroup> make_nccl_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                              const GroupOptions& options);

}  // namespace tern::dist
