#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "parallel/store.h"
#include "tensor/tensor.h"

namespace tern::kernels {
enum class CollectiveKind : std::uint8_t;
}

namespace tern::parallel {

/// Reduction of the ranks' elements.
enum class ReduceOp { sum, mean, max, min };

/// A collective in progress. Holds its tensors until it is done; the destructor waits for it.
class Work {
 public:
  /// An engine's implementation of a Work.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;     ///< implements Work::wait
    virtual bool is_done() = 0;  ///< implements Work::is_done
  };

  Work() = default;  ///< a Work that is done
  /// For engines: a collective that has started.
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  /// @{
  Work(Work&&) noexcept = default;         ///< leaves the other one done
  Work& operator=(Work&& other) noexcept;  ///< swaps the two: the other one's destructor waits for this one's collective
  /// @}
  ~Work();

  /// Waits for the result. On a GPU the caller's stream waits, and not the host. Throws Error if this or an earlier collective of the group
  /// failed.
  void wait();
  /// True if wait() would return, or throw, at once. Does not throw.
  bool is_done() const { return !state_ || state_->is_done(); }

 private:
  std::unique_ptr<State> state_;
};

/// Options of a process group.
struct GroupOptions {
  /// Seconds that a collective may last, including the wait for the other ranks. It turns the hang on a missing rank into an Error.
  double timeout = 30;
};

/// The processes of a run, of ranks 0 to size() - 1, each with one device. Every process has to call the same collectives in the same
/// order, with tensors of the same shapes and dtypes. A process may call from several threads, one at a time.
///
/// Tensors have to be contiguous, on the group's device, and of f32, f64, bf16, f16, i32, i64 or u8. Sums of 16 bits are rounded at each
/// step between ranks. Results are bitwise equal on all ranks and, for a given number of ranks, in every run. Collectives are asynchronous:
/// they run on a thread or a stream of the group, in the order of the calls. A CapturedStep captures those of a GPU, and a compiled
/// function has them in its programs: it has to be destroyed before its group.
///
/// If a rank ends, or does not answer within the timeout, this and every later collective is an Error on all other ranks; on a GPU also
/// every wait for the device and every launch of a graph (Note [Collectives on a GPU]).
class ProcessGroup {
 public:
  virtual ~ProcessGroup();
  int rank() const { return rank_; }         ///< rank of this process, from 0
  int size() const { return size_; }         ///< number of processes
  Device device() const { return device_; }  ///< device of the collectives' tensors
  /// "gloo", "nccl", or "local" for a single process.
  virtual const char* engine() const = 0;

  /// x = the reduction of all ranks' x, element by element. `mean` takes floating dtypes only.
  [[nodiscard]] Work all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// x = rank `root`'s x.
  [[nodiscard]] Work broadcast(const Tensor& x, int root = 0);
  /// y (N) = part `rank` of the reduction of all ranks' x (size N). y may be that part of x; the other parts of x are then undefined.
  [[nodiscard]] Work reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op = ReduceOp::sum);
  /// y (size N) = the concatenation of all ranks' x (N). x may be its part of y.
  [[nodiscard]] Work all_gather(const Tensor& y, const Tensor& x);
  /// Blocks the calling thread, also on a GPU, until all ranks have called it.
  void barrier();

 protected:
  ProcessGroup(int rank, int size, Device device);  ///< for engines
  /// For an engine's destructor: ends what nobody has waited for.
  void end_all();
  /// An engine's all_reduce. Here and below the tensors have been checked.
  virtual Work start_all_reduce(const Tensor& x, ReduceOp op) = 0;
  virtual Work start_broadcast(const Tensor& x, int root) = 0;  ///< an engine's broadcast
  /// An engine's reduce_scatter; y may be a part of x.
  virtual Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) = 0;
  virtual Work start_all_gather(const Tensor& y, const Tensor& x) = 0;  ///< an engine's all_gather; x may be a part of y
  virtual void wait_for_all() = 0;                                      ///< an engine's barrier

 private:
  struct Collectives;
  class Begun;

  void check(const char* op, const Tensor& x) const;
  void check_parts(const char* op, const Tensor& part, const Tensor& whole) const;
  Work begin(kernels::CollectiveKind kind, std::int64_t how, const Tensor& y, const Tensor& x);
  Work start(kernels::CollectiveKind kind, std::int64_t how, const Tensor& y, const Tensor& x);

  int rank_, size_;
  Device device_;
  std::shared_ptr<Collectives> collectives_;  ///< shared with programs
};

/// True if this build has the engine for groups on such devices.
bool has_engine(DeviceType type);

/// Makes the group of all processes of a launch: by Gloo on the CPU, by NCCL on a GPU, and without an engine for a single process. Ranks of
/// one machine need different GPUs. A run may have several groups, of different `name`s, which all ranks have to make in the same order.
/// Throws Error in a build without the engine, and if the other ranks do not connect within the timeout.
std::unique_ptr<ProcessGroup> make_process_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                                 const std::string& name = "world", const GroupOptions& options = {});

/// Makes the group of the launcher's environment variables (launch_environment(), open_store()), or of this process alone if there are
/// none.
std::unique_ptr<ProcessGroup> make_process_group(Device device, const GroupOptions& options = {});

/// The group over Gloo, on the CPU; make_process_group calls it in a build that has Gloo.
std::unique_ptr<ProcessGroup> make_gloo_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store,
                                              const GroupOptions& options);
/// The group over NCCL, on a GPU; make_process_group calls it in a build that has NCCL.
std::unique_ptr<ProcessGroup> make_nccl_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                              const GroupOptions& options);

}  // namespace tern::parallel
