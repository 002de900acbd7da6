#pragma once
#include "cuda/device/semaphore.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/runtime/semaphore.h"

// The names before: gone when their last users are.
namespace tern::gpu {

inline unsigned* arrivals(Stream stream, std::size_t count) { return completion_counters(stream, count); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct SharedBarrier : MBarrier {
  __device__ void expect(unsigned bytes) { arrive_and_expect_tx(bytes); }
};
__device__ __forceinline__ void sync_named(int barrier, int threads) { named_barrier_sync(barrier, threads); }
__device__ __forceinline__ void copy_box_async(void* to, const CUtensorMap_st& map, int inner, int outer, SharedBarrier& barrier) {
  tma_load_2d(to, map, inner, outer, barrier);
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap_st& map) { tma_prefetch_map(map); }
__device__ __forceinline__ void show_to_matrix_units() { fence_proxy_async(); }
__device__ __forceinline__ void show_to_copies() { fence_barrier_init(); }
__device__ __forceinline__ void meet_in_cluster() { cluster_sync(); }
__device__ __forceinline__ void send_in_cluster(const float4* place, float4 value, SharedBarrier& barrier, int block) {
  st_async(place, value, barrier, static_cast<unsigned>(block));
}
template <int count>
__device__ __forceinline__ void give_registers() {
  warpgroup_reg_dealloc<count>();
}
template <int count>
__device__ __forceinline__ void take_registers() {
  warpgroup_reg_alloc<count>();
}
__device__ __forceinline__ std::uint64_t descriptor_of(const float* tile) { return wgmma_descriptor(tile); }
__device__ __forceinline__ void begin_products() { warpgroup_arrive(); }
__device__ __forceinline__ void commit_products() { warpgroup_commit_batch(); }
template <int groups>
__device__ __forceinline__ void wait_products() {
  warpgroup_wait<groups>();
}
template <int count>
__device__ __forceinline__ void hold(float (&d)[count]) {
  warpgroup_fence_operand(d);
}
template <int count>
__device__ __forceinline__ void multiply_8(float (&d)[count], const std::uint32_t (&a)[4], std::uint64_t b, bool adds) {
  wgmma_k8_tf32(d, a, b, adds);
}
#endif

}  // namespace tern::gpu
