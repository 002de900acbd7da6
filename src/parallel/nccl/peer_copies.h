#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/launch_environment.h"
#include "parallel/process_group.h"

namespace tern::parallel {

/// Note [Copy engines]
/// NCCL's kernels occupy multiprocessors. During a backward pass this costs more than their share: a GEMM whose blocks fill the GPU in one
/// wave needs two waves if some multiprocessors are taken. Between GPUs of one machine with access to each other's memory, large
/// collectives therefore run on the copy engines: DMA units, which leave all multiprocessors to computation.
///
/// Rank r owns part r of a tensor. all_reduce is reduce_scatter and all_gather of the parts, a piece of each at a time:
///
///     rank r, stream                                                       memory of rank p
///     wait for free[p], copy piece of part p  ------------- NVLink ------> slot `parts` of r; arrived[r] = 1
///     wait for arrived[all p], add the slots to the own piece (a kernel of few blocks), free[r] of all p = 1
///     wait for free[p], copy own piece        ------------- NVLink ------> slot `results` of r; arrived[r] = 1
///     wait for arrived[p], copy slot `results` of p to its place, free[r] of p = 1
///
/// Each part is summed on one rank, in the order of the ranks, in float32: bitwise equal on all ranks and in every run. Each rank sends and
/// receives as many bytes as in a ring: 2 (N - 1) / N of the tensor.
///
/// Flags are words of host memory that all ranks map. The GPU's front end waits for 1 and writes 0, or writes 1, without a multiprocessor
/// (cuStreamBatchMemOp). They hold no counts, so that a graph with them can be replayed. The host can write them as well, which ends waits
/// for a rank that is gone.
class PeerCopies {
 public:
  /// To be called by all ranks together. Null on all ranks if some of their GPUs have no access to each other's memory. Throws Error if a
  /// rank does not connect within the timeout.
  static std::unique_ptr<PeerCopies> make(const LaunchEnvironment& environment, Store& store, Device device,
                                          std::chrono::milliseconds timeout);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// True for the dtypes of reductions. Depends on the dtype alone, and not on alignment, so that all ranks decide alike.
  static bool can_reduce(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

  /// The collectives of ProcessGroup, queued on a stream. `count`: the elements of x.
  void all_reduce(void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream);
  void reduce_scatter(void* y, const void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream);
  void all_gather(void* y, const void* x, std::int64_t count, DType dtype, Stream stream);

  /// Ends one queued wait for each flag, without its data, after the group has failed. May be called from any thread; makes no CUDA call.
  void release() noexcept;

 private:
  enum Slot { parts, results };
  enum class Flag { arrived, free };
  class Queue;
  /// Division of a tensor among the ranks: parts of `part` elements, the last ones perhaps of fewer, in pieces of `piece` elements.
  struct Layout {
    std::int64_t count, part, piece;
    std::size_t element;
    std::int64_t first(int rank, std::int64_t offset) const { return rank * part + offset; }
    /// Elements of the piece at `offset` of a rank's part.
    std::int64_t elements(int rank, std::int64_t offset) const;
  };

  PeerCopies(int rank, int size);
  void map_flags(const std::string& name, bool is_creator);
  Layout layout(std::int64_t count, std::int64_t part, DType dtype) const;
  char* slot(char* base, Slot kind, int sender) const;
  std::uint32_t* flag(int waiter, Slot slot, Flag kind, int other) const;
  void send_parts(const char* x, const Layout& layout, std::int64_t offset, Queue& queue) const;
  void add_parts(char* y, const char* own, const Layout& layout, std::int64_t offset, DType dtype, ReduceOp op, Queue& queue) const;
  void send_result(const char* own, const Layout& layout, std::int64_t offset, Queue& queue) const;
  void take_results(char* y, const Layout& layout, std::int64_t offset, Queue& queue) const;
  std::vector<int> others_with_elements(const Layout& layout, std::int64_t offset) const;

  int rank_, size_;
  std::size_t slot_bytes_;
  std::vector<int> others_;
  std::vector<char*> slots_;         ///< by rank: its staging memory, as this process maps it
  void* flags_ = nullptr;            ///< shared by all ranks, in host memory
  void* flags_on_device_ = nullptr;  ///< the device address of flags_
  std::size_t flag_bytes_ = 0;
};

}  // namespace tern::parallel
