#pragma once
#include <cuda_awbarrier_primitives.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/device/group.cuh"
#include "cuda/rows/layer_norm_rows.cuh"
#include "cuda/runtime/launch.h"

// What layer_norm and its gradient share: how rows are dealt out to threads, how the threads of a row add up, and how they are launched.
//
// A row stays in registers, a few vectors of it in each of its threads, so that memory sees it once. The threads of a row are a team:
// some lanes of a warp for short rows, then whole warps of a block, then the blocks of a cluster. How many, and which of their vectors
// lie beyond the row's end, is known at run time only: a few kernels then serve all lengths.
namespace tern::gpu::norm {

inline constexpr unsigned max_cluster = 8;  ///< blocks; every device that has clusters has them of this size

/// How rows are dealt out.
struct Plan {
  unsigned threads = 1;  ///< of a block that share a row: a power of two up to 32, or whole warps
  unsigned rows = 1;     ///< that a block holds at a time; 1 in a cluster
  unsigned cluster = 1;  ///< blocks that share a row: a power of two

  unsigned block() const { return threads * rows; }
};

/// The plan for rows of so many elements, of which a thread takes `elements` at most, in vectors of `width`. A block has at most
/// `max_threads`; it has several teams of at most `sharing` threads, up to `row_block` in all. threads is 0 where even a cluster cannot
/// hold a row.
inline Plan plan_rows(std::int64_t columns, int elements, int width, unsigned row_block, unsigned sharing, unsigned max_threads,
                      bool clusters) {
  const std::int64_t vectors = (columns + width - 1) / width, needed = (columns + elements - 1) / elements;
  Plan plan;
  if (needed > std::int64_t(max_threads) * (clusters ? max_cluster : 1)) return {0, 0, 0};
  if (needed <= 32) {
    // At least eight vectors side by side, the 128 bytes that memory gives at once.
    while (plan.threads < needed || (plan.threads < 8 && plan.threads < vectors)) plan.threads *= 2;
  } else {
    while (needed > std::int64_t(max_threads) * plan.cluster) plan.cluster *= 2;
    plan.threads = static_cast<unsigned>((needed + plan.cluster * 32 - 1) / (plan.cluster * 32) * 32);
  }
  if (plan.cluster == 1 && plan.threads <= sharing) plan.rows = std::max(1u, row_block / plan.threads);
  return plan;
}

/// Where the warps of teams leave their sums for each other, for two exchanges in turn: while some warps still read one, others may be at
/// the next. And the barriers at which they wait: of each of a block's teams, or of each turn of a cluster, where sums come from afar and
/// the barriers count their bytes.
struct alignas(128) Exchange {
  static constexpr unsigned max_warps = 16;  ///< of a block
  float2 sums[2][max_warps * max_cluster];
  __mbarrier_t arrived[max_warps / 2];
};

/// The team that the calling thread is in. `alone`: a team of more than a warp has its block for itself.
template <bool alone>
class Team {
 public:
  /// The exchange lies in shared memory.
  __device__ Team(const Plan& plan, Exchange& exchange) : exchange_(exchange), threads_(plan.threads), cluster_(plan.cluster) {
    if (in_a_warp()) {
      thread_ = threadIdx.x & (threads_ - 1);
      group_ = threadIdx.x >> (31 - __clz(threads_));
    } else {
      group_ = alone ? 0 : threadIdx.x / threads_;
      thread_ = threadIdx.x - group_ * threads_;
    }
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) {
      if (threadIdx.x == 0) {
        for (int turn = 0; turn < 2; ++turn) __mbarrier_init(exchange.arrived + turn, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      }
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
      return;
    }
#endif
    if (!alone && !in_a_warp()) {
      if (thread_ == 0) __mbarrier_init(exchange.arrived + group_, threads_ / 32);
      __syncthreads();
    }
  }
  /// Once, before the first add_up: waits until the blocks of the cluster run, and can be written to.
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }

  __device__ bool in_a_warp() const { return threads_ <= 32; }
  __device__ unsigned cluster() const { return blockIdx.x >> (31 - __clz(cluster_)); }  ///< the number of the team's cluster, or block
  __device__ unsigned group() const { return group_; }                                  ///< the team's number in its block
  __device__ unsigned rank() const { return blockIdx.x & (cluster_ - 1); }              ///< the block's number in its cluster
  __device__ unsigned thread() const { return rank() * threads_ + thread_; }            ///< this thread's number in the team
  __device__ unsigned size() const { return threads_ * cluster_; }

  /// The sums over the team, to all of its threads. The same bits for each of them: all add in the same order.
  __device__ float2 add_up(float2 value) {
    value = add_lanes<16>(value, threads_);
    if (in_a_warp()) return value;
    const unsigned warps = threads_ / 32, warp = thread_ / 32, lane = thread_ % 32;
    float2* sums = exchange_.sums[turn_ & 1];
    if (cluster_ == 1) {
      sums += group_ * warps;
      if (lane == 0) sums[warp] = value;
      if constexpr (alone) {
        __syncthreads();
      } else {
        if (lane == 0) __mbarrier_arrive(exchange_.arrived + group_);
        wait(exchange_.arrived + group_, turn_ & 1);
      }
      const unsigned other = lane % Exchange::max_warps;
      value = add_lanes<Exchange::max_warps / 2>(other < warps ? sums[other] : float2{}, 32);
    } else {
      exchange_in_cluster(sums, value, rank() * warps + warp, warps * cluster_);
      value = {};
      for (unsigned i = lane; i < warps * cluster_; i += 32) value.x += sums[i].x, value.y += sums[i].y;
      value = add_lanes<16>(value, 32);
    }
    ++turn_;
    return value;
  }

 private:
  static __device__ unsigned address_of(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

  /// Until the phase of this parity is over.
  static __device__ void wait(__mbarrier_t* barrier, bool parity) {
#if __CUDA_ARCH__ >= 900
    constexpr std::uint32_t nanoseconds = 1u << 20;  // at most, before it looks again
    while (!__mbarrier_try_wait_parity(barrier, parity, nanoseconds)) {
    }
#else
    while (!__mbarrier_test_wait_parity(barrier, parity)) {
    }
#endif
  }

  /// Puts the value into sums[at] of all blocks, and waits for the others' values. A store that says to its target's barrier that it has
  /// arrived: a barrier of the cluster would first wait for all earlier writes, and empty the first cache.
  __device__ void exchange_in_cluster(float2* sums, float2 value, unsigned at, unsigned count) const {
#if __CUDA_ARCH__ >= 900
    __mbarrier_t* const barrier = exchange_.arrived + (turn_ & 1);
    const unsigned arrived = address_of(barrier), lane = thread_ % 32;
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(count * unsigned(sizeof value)) : "memory");
    if (lane < cluster_) {
      asm volatile(
          "{\n\t.reg .b32 there, barrier;\n\t"
          "mapa.shared::cluster.u32 there, %0, %2;\n\t"
          "mapa.shared::cluster.u32 barrier, %1, %2;\n\t"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [barrier];\n\t}" ::"r"(address_of(sums + at)),
          "r"(arrived), "r"(lane), "f"(value.x), "f"(value.y)
          : "memory");
    }
    wait(barrier, turn_ / 2 & 1);
#endif
  }

  /// Among the lanes up to `most` apart, of which `lanes` are in the team.
  template <unsigned most>
  static __device__ float2 add_lanes(float2 value, unsigned lanes) {
#pragma unroll
    for (unsigned step = most; step > 0; step /= 2) {
      const float2 other{shuffle_xor(value.x, step), shuffle_xor(value.y, step)};
      if (step < lanes) value.x += other.x, value.y += other.y;
    }
    return value;
  }

  Exchange& exchange_;
  unsigned threads_, cluster_, group_, thread_, turn_ = 0;
};

inline bool has_clusters(Stream stream) { return attribute(cudaDevAttrComputeCapabilityMajor, stream.device) >= 9; }

/// How many clusters, or blocks, run at once: clusters lie within parts of the chip that need not be multiples of them. Asked once for
/// each plan.
inline unsigned clusters_at_once(const void* kernel, const Plan& plan, std::size_t shared, Stream stream) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, unsigned, unsigned>, unsigned> known;
  const std::lock_guard lock(mutex);
  unsigned& clusters = known[{kernel, stream.device.index, plan.cluster, plan.threads}];
  if (clusters == 0) {
    use(stream);
    int found = 0;
    if (plan.cluster == 1) {
      const int block = static_cast<int>(plan.block());
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, block, shared), "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      found *= attribute(cudaDevAttrMultiProcessorCount, stream.device);
    } else {
      cudaLaunchAttribute size{};
      size.id = cudaLaunchAttributeClusterDimension;
      size.val.clusterDim = {plan.cluster, 1, 1};
      const cudaLaunchConfig_t config{plan.cluster, plan.block(), shared, nullptr, &size, 1};
      check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
    }
    clusters = static_cast<unsigned>(std::max(found, 1));
  }
  return clusters;
}

/// Calls run.operator()<T>() for the types that are computed in f32; false for f64.
template <class F>
bool dispatch_short_floats(DType dtype, F&& run) {
  switch (dtype) {
    case DType::f32: run.template operator()<float>(); return true;
    case DType::f16: run.template operator()<f16>(); return true;
    case DType::bf16: run.template operator()<bf16>(); return true;
    case DType::f64: return false;
    default: fail("layer_norm", std::string("expected a floating dtype but got ") + name(dtype));
  }
}

/// `clusters` clusters, or blocks, of the plan.
template <class... Parameters, class... Arguments>
void launch_plan(void (*kernel)(Parameters...), unsigned clusters, const Plan& plan, std::size_t shared, Stream stream,
                 Arguments&&... arguments) {
  if (plan.cluster == 1) return launch(kernel, clusters, plan.block(), shared, stream, std::forward<Arguments>(arguments)...);
  launch_clusters(kernel, clusters * plan.cluster, plan.block(), plan.cluster, shared, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace tern::gpu::norm
