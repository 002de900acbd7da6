#pragma once
#include "cuda/device/async_copy.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/vec16.cuh"

// Rows of a matrix under reductions. Softmax, cross-entropy and the norms share this partition of a row over threads, this access to
// misaligned rows, and this all-reduce. (rows/row_launch.h chooses a partition and launches it.)
//
//   row of 37 floats, misaligned by 3                          | partition        | threads of a row             | all-reduce
//   16-byte vector  v0        v1        v2           v9        | ---------------- | ---------------------------- | -------------------
//                ...#|####|####|####|####| ... |####|##..      | threads <= 32    | lanes of a warp              | shuffles
//                 ^ the row before                   ^ after   | threads > 32     | whole warps of a block       | and shared memory
//   thread t of 4 holds vectors t, t + 4, t + 8 of the row     | cluster > 1      | the blocks of a cluster      | and DSMEM
//
// Each row is read once and written once. Adjacent threads hold adjacent vectors, so that a warp's loads are coalesced, and each thread
// issues all its loads before it uses the first, because bandwidth needs many bytes in flight.
namespace tern::gpu {

// ---- Access: the vectors of a row

enum class RowAccess {
  aligned,     ///< rows begin and end at multiples of 16 bytes: each vector is within one row
  misaligned,  ///< vectors at multiples of 16 bytes; the first and last of a row may contain elements of adjacent rows
  scalar,      ///< element by element
};

/// Elements per vector.
template <class T, RowAccess access>
inline constexpr int row_vector_width = access == RowAccess::scalar ? 1 : vec16_width<T>;

/// Skew: number of elements before a row at which its first vector begins. `element` is the row's first element, counted from any multiple
/// of 16 bytes.
template <RowAccess access, int width>
__device__ __forceinline__ int row_skew(std::int64_t element) {
  return access == RowAccess::misaligned ? static_cast<int>(element) & (width - 1) : 0;
}

/// Columns of a row that a thread holds: vectors that begin at `first` (below 0 in a misaligned row) and at every `stride` after it.
struct RowColumns {
  int first, stride;

  __device__ int operator[](int vector) const { return first + vector * stride; }
};

/// True if a column is one of the first `count`.
__device__ __forceinline__ bool is_within(int column, int count) { return static_cast<unsigned>(column) < static_cast<unsigned>(count); }

/// True if the whole vector is within the row, given that it begins before the row's end.
template <RowAccess access, int width>
__device__ __forceinline__ bool is_vector_within(int column, int columns) {
  return access != RowAccess::misaligned || (column >= 0 && column + width <= columns);
}

/// Sets the elements of a vector that belong to other rows to `value`.
template <RowAccess access, int width>
__device__ __forceinline__ void clear_outside(float (&values)[width], int column, int columns, float value = 0) {
  if (is_vector_within<access, width>(column, columns)) return;
#pragma unroll
  for (int k = 0; k < width; ++k)
    if (!is_within(column + k, columns)) values[k] = value;
}

/// Writes the elements of the vector at `column` that are within the row; it begins before the row's end.
template <RowAccess access, int width, class T>
__device__ __forceinline__ void write_row_vector(T* to, int column, int columns, const float (&values)[width]) {
  if constexpr (width == 1) {
    *to = convert<T>(values[0]);
  } else if (is_vector_within<access, width>(column, columns)) {
    // In assembly, because the compiler would split it into stores of single elements.
    const uint4 packed = pack<T>(values);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(packed.x), "r"(packed.y), "r"(packed.z), "r"(packed.w)
                 : "memory");
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (is_within(column + k, columns)) to[k] = convert<T>(values[k]);
  }
}

/// Compiler barrier: makes the value opaque, so that addresses are recomputed from it rather than kept in registers since an earlier loop,
/// where registers are scarce.
__device__ __forceinline__ void launder(int& value) { asm volatile("" : "+r"(value)); }

// ---- Partition: the threads of a row

/// Partition of rows over threads.
struct RowPartition {
  unsigned threads = 1;  ///< threads of a block that share a row: a power of two up to 32, or whole warps
  unsigned rows = 1;     ///< rows of a block at a time; 1 in a cluster
  unsigned cluster = 1;  ///< blocks that share a row: a power of two

  TERN_HOST_DEVICE unsigned block() const { return threads * rows; }
};

/// Position of a thread in the group that shares its row. whole_block: a group of more than a warp is a whole block.
template <bool whole_block>
class RowThread {
 public:
  __device__ explicit RowThread(const RowPartition& partition)
      : threads_(partition.threads), rows_(partition.rows), cluster_(partition.cluster) {
    if (in_a_warp()) {
      index_ = threadIdx.x >> (31 - __clz(threads_));
      thread_ = threadIdx.x & (threads_ - 1);
      size_ = threads_;
    } else {
      index_ = whole_block ? 0 : threadIdx.x / threads_;
      thread_ = rank() * threads_ + thread_of_block();
      size_ = cluster_ * threads_;
    }
  }

  __device__ bool in_a_warp() const { return threads_ <= 32; }
  __device__ unsigned lanes() const { return min(threads_, 32u); }                      ///< lanes of the group in this warp
  __device__ unsigned cluster() const { return blockIdx.x >> (31 - __clz(cluster_)); }  ///< index of the cluster, or block
  __device__ unsigned rank() const { return blockIdx.x & (cluster_ - 1); }              ///< index of the block in its cluster
  __device__ unsigned index() const { return index_; }                                  ///< index of the group in its block
  __device__ unsigned thread() const { return thread_; }                                ///< index of this thread in the group
  __device__ unsigned size() const { return size_; }                                    ///< number of threads in the group

  /// First row of this group, if row i belongs to group i of the grid.
  __device__ std::int64_t first_row() const { return std::int64_t(cluster()) * rows_ + index_; }

  /// This thread's vectors of a row whose first element is `element` elements after a multiple of 16 bytes.
  template <RowAccess access, int width>
  __device__ RowColumns columns(std::int64_t element) const {
    return {static_cast<int>(thread_) * width - row_skew<access, width>(element), static_cast<int>(size_) * width};
  }

 protected:
  /// Index of this thread among the threads of its group in its block, for groups of more than a warp.
  __device__ unsigned thread_of_block() const { return whole_block ? threadIdx.x : threadIdx.x - index_ * threads_; }

  unsigned threads_, rows_, cluster_, index_, thread_, size_;
};

/// Shared memory of an all-reduce: one value for each warp of the row, exchanged over DSMEM in a cluster, in one slot or in two that
/// alternate. If several groups of warps share a block, each has an mbarrier that counts its warps.
template <bool whole_block, class V, unsigned slots>
struct RowExchange {
  static constexpr unsigned max_warps = 16;  ///< warps of a block
  DsmemExchange<V, max_warps, slots> warps;
};
template <class V, unsigned slots>
struct RowExchange<false, V, slots> : RowExchange<true, V, slots> {
  MBarrier arrived[RowExchange::max_warps / 2];
};

/// Group of threads that share a row, as seen by one of them, with its all-reduce. V: type of the values that its warps exchange; slots: 1
/// for a kernel that exchanges once.
template <bool whole_block, class V = float2, unsigned slots = 2>
class RowGroup : public RowThread<whole_block> {
  using Thread = RowThread<whole_block>;
  using Thread::cluster_, Thread::index_, Thread::thread_of_block, Thread::threads_;

 public:
  using Exchange = RowExchange<whole_block, V, slots>;
  using Thread::in_a_warp;

  /// The exchange is in shared memory.
  __device__ RowGroup(const RowPartition& partition, Exchange& exchange) : Thread(partition), exchange_(exchange) {
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) {
      exchange.warps.init();
      return;
    }
#endif
    if constexpr (!whole_block) {
      if (in_a_warp()) return;
      if (thread_of_block() == 0) exchange.arrived[index_].init(threads_ / 32 * warp_arrivals);
      __syncthreads();
    }
  }
  /// Called once, before the first exchange: a block of the cluster must have started before others write to its shared memory.
  __device__ void wait_for_cluster() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) cluster_wait();
#endif
  }

  /// Values of the group's warps in shared memory. Read through 32-bit addresses: the compiler cannot track the memory space through the
  /// exchange, and would use generic loads and two registers per pointer.
  struct WarpValues {
    std::uint32_t address;
    unsigned count;

    __device__ V operator[](unsigned warp) const { return load_shared<V>(address + warp * unsigned(sizeof(V))); }
  };
  /// Gathers the values of the group's warps for all of its threads; `value` is the same in all lanes of a warp. A group within a warp does
  /// not need this.
  __device__ WarpValues all_gather(V value) {
    const unsigned warps = threads_ / 32, thread = thread_of_block(), turn = turn_++;
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) return {shared_address(exchange_.warps.all_gather(value, turn, cluster_)), warps * cluster_};
#endif
    const std::uint32_t values = shared_address(exchange_.warps.values[turn % slots] + (whole_block ? 0 : index_ * warps));
    if (thread % 32 == 0) store_shared(values + thread / 32 * unsigned(sizeof(V)), value);
    if constexpr (whole_block) {
      __syncthreads();
    } else {
      exchange_.arrived[index_].arrive_warp(thread % 32);  // all lanes have read the previous turn's values, too
      exchange_.arrived[index_].wait(turn & 1);
    }
    return {values, warps};
  }

  /// Sums over the group, in all of its threads, with the same bits, because all add in the same order.
  __device__ float2 all_reduce_sum(float2 value) {
    value = sum_lanes<32>(value, threads_);
    if (in_a_warp()) return value;
    const WarpValues values = all_gather(value);
    const unsigned count = values.count;
    const unsigned lane = threadIdx.x % 32;
    if (cluster_ == 1) {
      const unsigned warp = lane % Exchange::max_warps;
      return sum_lanes<Exchange::max_warps>(warp < count ? values[warp] : float2{}, 32);
    }
    value = {};
    for (unsigned i = lane; i < count; i += 32) {
      const float2 of_warp = values[i];
      value.x += of_warp.x, value.y += of_warp.y;
    }
    return sum_lanes<32>(value, 32);
  }

 private:
  /// Sums over `max_lanes` adjacent lanes, of which `lanes` share the row: unlike lanes_all_reduce, without a loop.
  template <unsigned max_lanes>
  static __device__ float2 sum_lanes(float2 value, unsigned lanes) {
#pragma unroll
    for (unsigned step = max_lanes / 2; step > 0; step /= 2) {
      const float2 other{shuffle_xor(value.x, step), shuffle_xor(value.y, step)};
      if (step < lanes) value.x += other.x, value.y += other.y;
    }
    return value;
  }

  Exchange& exchange_;
  unsigned turn_ = 0;
};

}  // namespace tern::gpu
