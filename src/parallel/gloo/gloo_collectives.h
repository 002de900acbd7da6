#pragma once
#include <gloo/context.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "parallel/launch_environment.h"
#include "parallel/process_group.h"
#include "parallel/store.h"

namespace tern::parallel {

inline std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * size_of(x.dtype()); }

/// Collectives between CPUs over TCP by Gloo, the CPU engine of torch.distributed. Reductions run in rings that pipeline parts of a tensor.
/// All functions but close() are for one thread, and throw CollectiveAborted if another rank has ended or does not answer within the
/// timeout.
class GlooCollectives {
 public:
  GlooCollectives(const LaunchEnvironment& environment, std::chrono::milliseconds timeout);

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

}  // namespace tern::parallel
