#pragma once
#include "cuda/device/async_copy.cuh"

// Thread block clusters (sm_90): up to eight blocks that run at the same time and access each other's shared memory (DSMEM).
namespace tern::gpu {

inline constexpr unsigned max_cluster = 8;  ///< blocks; the portable maximum of every device with clusters

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

/// Arrives at the cluster's barrier. A thread that returns from cluster_wait then knows that this block has started, and sees its writes
/// before a fence; other writes of this thread may still be pending.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory"); }
/// Waits for all threads of the cluster that have not exited.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

/// Starts to write a value to the same address in the shared memory of a block of the cluster (st.async), where that block's copy of the
/// barrier counts the bytes.
__device__ __forceinline__ void st_async(const float4* place, float4 value, MBarrier& barrier, unsigned block) {
  asm volatile(
      "{\n.reg .u32 there, signal;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 signal, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [signal];\n}\n" ::"r"(shared_address(place)),
      "r"(shared_address(&barrier.state)), "r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}
__device__ __forceinline__ void st_async(const float2* place, float2 value, MBarrier& barrier, unsigned block) {
  asm volatile(
      "{\n.reg .u32 there, signal;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 signal, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [signal];\n}\n" ::"r"(shared_address(place)),
      "r"(shared_address(&barrier.state)), "r"(block), "f"(value.x), "f"(value.y)
      : "memory");
}
__device__ __forceinline__ void st_async(const float* place, float value, MBarrier& barrier, unsigned block) {
  asm volatile(
      "{\n.reg .u32 there, signal;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 signal, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [signal];\n}\n" ::"r"(shared_address(place)),
      "r"(shared_address(&barrier.state)), "r"(block), "f"(value)
      : "memory");
}

#endif

/// All-gather through DSMEM, by which the blocks of a cluster all-reduce: every warp writes its value to all blocks, which then reduce the
/// same values in the same order. Two slots, used alternately: while some warps still read one, others may already write the other. A
/// kernel that exchanges once needs one slot, which leaves more of the L1 cache.
///
/// Each store signals its arrival at the target's mbarrier (st.async). A cluster barrier would first wait for all earlier writes to global
/// memory, and flush the L1 cache.
template <class V, unsigned max_warps, unsigned slots = 2>
struct alignas(128) DsmemExchange {
  V values[slots][max_warps * max_cluster];
  MBarrier full[slots];

#if __CUDA_ARCH__ >= 900
  /// Called by all threads, once and early. Call cluster_wait before the first all_gather: until then a block may not have started.
  __device__ void init() {
    if (threadIdx.x == 0) {
#pragma unroll
      for (MBarrier& barrier : full) barrier.init(1);
      fence_barrier_init();
    }
    cluster_arrive_relaxed();
  }
  /// Gathers the values of all warps of the cluster, blocks outermost, for all threads. `turn` counts the calls in a kernel from 0; `value`
  /// is that of the warp, in its first `cluster` lanes.
  __device__ const V* all_gather(V value, unsigned turn, unsigned cluster) {
    const unsigned warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = turn % slots;
    if (threadIdx.x == 0) full[slot].arrive_and_expect_tx(cluster * warps * unsigned(sizeof(V)));
    if (lane < cluster) st_async(values[slot] + cluster_rank() * warps + warp, value, full[slot], lane);
    full[slot].wait(turn / slots % 2);
    return values[slot];
  }
#endif
};

}  // namespace tern::gpu
