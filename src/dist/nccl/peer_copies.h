#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/launch_environment.h"
#include "dist/process_group.h"

namespace tern::dist {

/// Note [Copy engines]
/// NCCL's kernels move bytes by multiprocessors. Beside a backward pass that costs more than these: a product whose blocks fill the GPU
/// once takes two rounds where some of its multiprocessors are taken. Between GPUs of one machine that reach each other's memory, large
/// collectives go by the copy engines instead: DMA units, which leave all multiprocessors to computation.
///
/// Rank r owns part r of a tensor. all_reduce is reduce_scatter and all_gather of the parts, a piece of each at a time:
///
///     rank r, stream                                                       memory of rank p
///     wait for free[p], copy piece of part p  ------------- NVLink ------> slot `parts` of r; arrived[r] = 1
///     wait for arrived[all p], add the slots to the own piece (a kernel of few blocks), free[r] of all p = 1
///     wait for free[p], copy own piece        ------------- NVLink ------> slot `results` of r; arrived[r] = 1
///     wait for arrived[p], copy slot `results` of p to its place, free[r] of p = 1
///
/// Each part is added up in one place, in the order of the ranks, in float32: the same bits on all ranks and in every run. Each rank sends
/// and receives what a ring would: 2 (N - 1) / N of the bytes.
///
/// Flags are words of host memory that all ranks map; the GPU's front end waits for 1 and writes 0, or writes 1, without a multiprocessor
/// (cuStreamBatchMemOp). As they carry no count, a graph may hold them and be replayed. The host can write them as well: that is how waits
/// for a rank that is gone are broken off.
class PeerCopies {
 public:
  /// Called by all ranks together. Null on all of them where the GPUs of some do not reach each other. Throws Error where a rank does not
  /// come in time.
  static std::unique_ptr<PeerCopies> make(const LaunchEnvironment& environment, Store& store, Device device,
                                          std::chrono::milliseconds timeout);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// Whether reductions of this dtype are possible: f32, bf16 and f16. No address counts, of which ranks may have others.
  static bool can_reduce(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

  /// Queued on the stream; `count` elements in all. As ProcessGroup's.
  void all_reduce(void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream);
  /// y has count / N elements.
  void reduce_scatter(void* y, const void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream);
  void all_gather(void* y, const void* x, std::int64_t count, DType dtype, Stream stream);

  /// Lets all waits that are queued go on, for nothing: of a group that has failed. From any thread, without a call of CUDA. Each call
  /// ends one wait for each flag.
  void release() noexcept;

 private:
  enum Slot { parts, results };
  enum class Flag { arrived, free };
  class Queue;
  /// Elements of a tensor by rank: all parts have `part` elements, the last ones perhaps fewer.
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
  std::vector<char*> slots_;         ///< by rank, as this process sees its memory; [rank_] is its own
  void* flags_ = nullptr;            ///< shared by all ranks, in host memory
  void* flags_on_device_ = nullptr;  ///< the same, as the GPU sees them
  std::size_t flag_bytes_ = 0;
};

}  // namespace tern::dist
