#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

struct CUtensorMap_st;  // CUtensorMap, of <cuda.h>, a host header: an opaque __grid_constant__ parameter of kernels

// Asynchronous copies to shared memory, the barriers that signal their completion, and clusters, whose blocks share that memory:
//
//   cp.async   16, 8 or 4 bytes a thread, from global to shared memory; waited for by the number of committed groups     (sm_80)
//   TMA        a box of a tensor, requested by one thread; an mbarrier counts its bytes                                  (sm_90)
//   mbarrier   a barrier in shared memory, whose phase completes when its threads and bytes have arrived    (sm_80, bytes sm_90)
//   cluster    up to eight blocks that run at the same time and access each other's shared memory (DSMEM)                (sm_90)
//   pipeline   a ring of stages, each with a full and an empty mbarrier: Pipeline; PipelineState is a thread's position in it
namespace tern::gpu {

/// 32-bit shared-memory address, as PTX takes it.
__device__ __forceinline__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

/// Loads and stores of 2, 4, 8 or 16 bytes at such an address.
template <class V>
__device__ __forceinline__ V load_shared(std::uint32_t address) {
  if constexpr (sizeof(V) == 2) {
    std::uint16_t x;
    asm volatile("ld.shared.b16 %0, [%1];\n" : "=h"(x) : "r"(address) : "memory");
    return std::bit_cast<V>(x);
  } else if constexpr (sizeof(V) == 4) {
    unsigned x;
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(x) : "r"(address) : "memory");
    return std::bit_cast<V>(x);
  } else if constexpr (sizeof(V) == 8) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
    return std::bit_cast<V>(x);
  } else {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
    return std::bit_cast<V>(x);
  }
}
template <class V>
__device__ __forceinline__ void store_shared(std::uint32_t address, V value) {
  if constexpr (sizeof(V) == 2) {
    asm volatile("st.shared.b16 [%0], %1;\n" ::"r"(address), "h"(std::bit_cast<std::uint16_t>(value)) : "memory");
  } else if constexpr (sizeof(V) == 4) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(std::bit_cast<unsigned>(value)) : "memory");
  } else if constexpr (sizeof(V) == 8) {
    const auto x = std::bit_cast<uint2>(value);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(address), "r"(x.x), "r"(x.y) : "memory");
  } else {
    const auto x = std::bit_cast<uint4>(value);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
  }
}

// cp.async

/// Starts a copy of `bytes` bytes to shared memory, or of zeros if the predicate is false. Copies of 16 bytes bypass the L1 cache.
template <int bytes>
__device__ __forceinline__ void cp_async(std::uint32_t to, const void* from, bool predicate) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(predicate ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(to), "l"(from), "n"(bytes), "r"(predicate ? bytes : 0) : "memory");
}
template <int bytes>
__device__ __forceinline__ void cp_async(std::uint32_t to, const void* from) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  if constexpr (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}
/// Commits this thread's copies since the last commit as a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most `groups` of this thread's latest groups are pending.
template <int groups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(groups) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// mbarrier

/// Arrival count of a warp in one phase of an mbarrier: see MBarrier::arrive_warp.
#ifdef TERN_RACECHECK
constexpr unsigned warp_arrivals = 32;
#else
constexpr unsigned warp_arrivals = 1;
#endif

/// Barrier in shared memory whose phase completes when `count` threads and all expected bytes have arrived; then the next phase begins.
/// Phases are distinguished by their parity, 0 for the first.
struct MBarrier {
  std::uint64_t state;

  /// Called by one thread; other threads see it after fence_barrier_init and a barrier of the block or the cluster.
  __device__ void init(unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&state)), "r"(count));
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&state)) : "memory"); }
  /// Arrives for the whole warp: lane 0 does, after __syncwarp, which orders the accesses of all lanes before the arrival. The racecheck
  /// tool of compute-sanitizer does not follow that order and reports each of those accesses, so in a build for it (TERN_RACECHECK) every
  /// lane arrives for itself.
  __device__ __forceinline__ void arrive_warp(unsigned lane = threadIdx.x % 32) {
    __syncwarp();
    if (warp_arrivals == 32 || lane == 0) arrive();
  }
#if __CUDA_ARCH__ >= 900
  /// Arrives, and makes the phase wait for `bytes` bytes of copies (arrive.expect_tx).
  __device__ void arrive_and_expect_tx(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&state)), "r"(bytes) : "memory");
  }
#endif
  /// Waits until the phase of this parity has completed. The phase before the first has parity 1, and counts as completed.
  __device__ void wait(unsigned parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1, 0x100000;\n@over bra done;\nbra "
        "again;\ndone:\n}\n" ::"r"(shared_address(&state)),
        "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred over;\nagain:\nmbarrier.test_wait.parity.shared.b64 over, [%0], %1;\n@over bra done;\nbra again;\ndone:\n}\n" ::"r"(
            shared_address(&state)),
        "r"(parity)
        : "memory");
#endif
  }
};

/// A thread's position in a ring of stages: the index of the stage, and the parity of the full barrier's phase in this round. A consumer
/// waits on full[index] with `phase`; the producer, for which stages are empty at first, on empty[index] with `phase ^ 1`.
template <int stages>
struct PipelineState {
  int index = 0;
  unsigned phase = 0;

  __device__ __forceinline__ void advance() {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

#if __CUDA_ARCH__ >= 900

/// Barriers of a ring of stages that one thread, the producer, fills by TMA.
template <int stages>
struct Pipeline {
  MBarrier full[stages], empty[stages];

  /// As MBarrier::init. A stage is empty when `readers` threads have arrived.
  __device__ __forceinline__ void init(unsigned readers) {
    for (int i = 0; i < stages; ++i) {
      full[i].init(1);
      empty[i].init(readers);
    }
  }
  /// Producer: waits until the stage is empty, and returns its full barrier, which counts the `bytes` that are to be loaded.
  __device__ __forceinline__ MBarrier& begin_load(const PipelineState<stages>& state, unsigned bytes) {
    empty[state.index].wait(state.phase ^ 1);
    full[state.index].arrive_and_expect_tx(bytes);
    return full[state.index];
  }
  /// Consumer: waits until the stage is full.
  __device__ __forceinline__ void wait_full(const PipelineState<stages>& state) { full[state.index].wait(state.phase); }
};

#endif

// Fences and named barriers

/// Makes barriers that this thread has initialized visible to TMA and to the cluster.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }
/// Makes this thread's writes to shared memory visible to the async proxy: wgmma and TMA.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/// Synchronizes `threads` threads, in whole warps, at one of the block's 16 hardware barriers; barrier 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
/// Arrives at such a barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

// TMA

#if __CUDA_ARCH__ >= 900

/// Starts to load the box of a tensor map that starts at element (inner, outer), with zeros outside of the tensor. The barrier counts its
/// bytes.
__device__ __forceinline__ void tma_load_2d(void* to, const CUtensorMap_st& map, int inner, int outer, MBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(inner), "r"(outer), "r"(shared_address(&barrier.state))
      : "memory");
}
/// The same for a tensor of three dimensions, from element (x0, x1, x2) on, the innermost first.
__device__ __forceinline__ void tma_load_3d(std::uint32_t to, const CUtensorMap_st& map, int x0, int x1, int x2, MBarrier& barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];\n" ::"r"(to),
               "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(shared_address(&barrier.state))
               : "memory");
}
/// The same for a tensor of four dimensions, from element (x0, x1, x2, x3) on, the innermost first.
__device__ __forceinline__ void tma_load_4d(std::uint32_t to, const CUtensorMap_st& map, int x0, int x1, int x2, int x3,
                                            MBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(to),
      "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(&barrier.state))
      : "memory");
}
/// Starts a bulk copy of contiguous bytes; size and addresses are multiples of 16 bytes.
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, unsigned bytes, MBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier.state))
               : "memory");
}
/// Prefetches the tensor map, a parameter of the kernel, to the descriptor cache.
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap_st& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

#endif

// Thread block clusters

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
